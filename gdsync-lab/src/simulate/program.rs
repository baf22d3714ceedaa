//! What the programs of a simulation are made of: links, and steps. Each step stands alone: without any other it means
//! the same, or nothing, so that a failing program can be shrunk.

use std::fmt;
use std::time::Duration;

/// Maximum bytes of a message of a connection: several packets.
pub(super) const LONGEST: usize = 3200;
/// Maximum number of bytes sent inline.
pub(super) const INLINE: usize = 28;
/// Work requests of a queue that may be outstanding.
pub(super) const DEPTH: usize = 16;
/// Persistent sends of an end, and persistent receives.
pub(super) const KEEP: usize = 2;
/// Longest time for which faults hold a packet back (`hold=N` in docs/liberties.md).
pub(super) const LONGEST_HOLD: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rc,
    Uc,
    Ud,
    /// Datagrams of the first end to a multicast group that both ends are in.
    Group,
    Xrc,
    Dc,
}

impl Kind {
    pub(super) fn is_reliable(self) -> bool {
        !matches!(self, Kind::Uc) && !self.is_of_datagrams()
    }

    pub(super) fn is_of_datagrams(self) -> bool {
        matches!(self, Kind::Ud | Kind::Group)
    }

    /// Returns whether the second end is a target, which has no send queue.
    pub(super) fn has_target(self) -> bool {
        matches!(self, Kind::Xrc | Kind::Dc)
    }

    /// Returns whether only the first end sends.
    pub(super) fn is_one_way(self) -> bool {
        self.has_target() || self == Kind::Group
    }
}

/// Streams of a card that the library drives.
pub(super) const STREAMS: usize = 2;

/// The poster of the sends of an end that the library drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Cpu,
    /// This stream of its card, by doorbells.
    Stream(usize),
    /// This stream, by a trigger of the end's own.
    Trigger(usize),
    /// This stream, by its own trigger, which releases sends of several ends.
    Shared(usize),
    /// This stream, by its own trigger with a master, which releases sends of several ends.
    Master(usize),
}

impl By {
    pub(super) fn stream(self) -> Option<usize> {
        match self {
            By::Cpu => None,
            By::Stream(stream) | By::Trigger(stream) | By::Shared(stream) | By::Master(stream) => {
                Some(stream)
            }
        }
    }
}

/// Two connected queue pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkPlan {
    pub(super) kind: Kind,
    /// The card of each end.
    pub(super) cards: [usize; 2],
    /// Its number in the episode.
    pub(super) number: u8,
    /// True if receives come from the card's shared queue.
    pub(super) shared: bool,
    /// True if regions have relaxed ordering.
    pub(super) relaxed: bool,
    /// Code of the time-out: 4, 8 or 67 ms.
    pub(super) timeout: u8,
    pub(super) rnr_timer: u8,
    /// For queue pairs of the library: the poster of each end.
    pub(super) library: Option<[By; 2]>,
}

impl LinkPlan {
    /// Returns how long packets of a former connection must be waited for. UC takes a new message whatever its PSN, so there
    /// what faults hold back has to come first.
    pub(super) fn hold(&self) -> Duration {
        if self.kind == Kind::Uc { LONGEST_HOLD } else { Duration::ZERO }
    }

    /// Returns which of a card's shared queues it uses.
    pub(super) fn pool(&self) -> usize {
        if self.library.is_some() { 2 } else { usize::from(self.kind == Kind::Xrc) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    Add,
    Swap,
    Nop,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) what: What,
    pub(super) length: usize,
    /// Offset in its place at the peer.
    pub(super) offset: usize,
    pub(super) signaled: bool,
    pub(super) fenced: bool,
    /// False if its doorbell is that of a later request.
    pub(super) rung: bool,
    /// Seed of its content and its other choices.
    pub(super) seed: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Post {
        link: usize,
        side: usize,
        work: Work,
    },
    Receives {
        link: usize,
        side: usize,
        count: usize,
    },
    /// Steps cards in random order.
    Run {
        steps: usize,
        seed: u64,
    },
    /// Moves the time to the next timer of a card.
    Skip,
    /// Runs until everything has ended, and checks all memory.
    Settle {
        seed: u64,
    },
    /// Moves a queue pair to ERR.
    Break {
        link: usize,
        side: usize,
    },
    /// Resets the queue pairs of a link, or destroys and makes them anew.
    Remake {
        link: usize,
        destroy: bool,
        seed: u64,
    },
    /// Makes a stream wait for completions of its card's queue pairs, as far as their work is given to the card.
    Await {
        card: usize,
        stream: usize,
        /// True if it may wait for sends that another stream will be given later.
        ahead: bool,
        seed: u64,
    },
    /// Starts persistent requests of a card's queue pairs on a stream, which waits for them, mostly.
    Start {
        card: usize,
        stream: usize,
        seed: u64,
    },
    /// Moves the queue pair of a master to ERR.
    FailMaster {
        card: usize,
        seed: u64,
    },
    /// Drops a card, and starts another in its place.
    Kill {
        card: usize,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Post { link, side, work } => {
                let Work { what, length, signaled, fenced, rung, .. } = work;
                write!(f, "link {link} end {side}: {what:?} of {length} bytes")?;
                let words = [(*signaled, "signaled"), (*fenced, "fenced"), (!rung, "not rung")];
                words.iter().filter(|(is, _)| *is).try_for_each(|(_, word)| write!(f, ", {word}"))
            }
            Step::Receives { link, side, count } => write!(f, "link {link} end {side}: {count} receives"),
            Step::Run { steps, .. } => write!(f, "{steps} steps of cards"),
            Step::Skip => f.write_str("time passes to the next timer"),
            Step::Settle { .. } => f.write_str("everything comes to its end"),
            Step::Break { link, side } => write!(f, "link {link} end {side}: to ERR"),
            Step::Remake { link, destroy: false, .. } => write!(f, "link {link}: reset and connected again"),
            Step::Remake { link, .. } => write!(f, "link {link}: destroyed and made again"),
            Step::Await { card, stream, ahead, .. } => {
                let for_what = if *ahead { ", also for sends that are not posted" } else { "" };
                write!(f, "stream {stream} of card {card} waits{for_what}")
            }
            Step::Start { card, stream, .. } => write!(f, "stream {stream} of card {card} starts a list"),
            Step::FailMaster { card, .. } => write!(f, "card {card}: a master to ERR"),
            Step::Kill { card } => write!(f, "card {card} ends, and another starts"),
        }
    }
}
