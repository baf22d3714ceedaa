//! What a process says of itself. Plain data.

use std::fmt;
use std::time::Duration;

/// Cards that an answer has at most. Those after them are counted only.
pub const MOST_CARDS: usize = 16;
/// Queue pairs of a card that an answer has at most: those that wait first, then by number.
pub const MOST_QUEUE_PAIRS: usize = 256;
/// Streams that an answer has at most: those with the lowest numbers.
pub const MOST_STREAMS: usize = 256;
/// Numbers of queue pairs beside a wait, at most.
pub const MOST_NAMED: usize = 16;

/// A process, or one of several copies of the library in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// When it was made: nanoseconds of `CLOCK_MONOTONIC`, which is one clock for the processes of a host.
    pub at_ns: u64,
    /// Software cards, [`MOST_CARDS`] at most.
    pub cards: Vec<Card>,
    /// Software cards, also those that the list has no place for.
    pub card_count: u32,
    /// Streams of the library that wait for completions, [`MOST_STREAMS`] at most.
    pub streams: Vec<Stream>,
    /// Such streams, also those that the list has no place for.
    pub stream_count: u32,
}

/// A software card. Its counters begin at 0 when it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// Its address in the fabric of one host; 0 on the fabric of several hosts.
    pub lid: u16,
    /// Its address in either fabric: the LID, or the IPv4 address as a number. Peers name it so.
    pub node: u32,
    /// Its port is Ethernet's.
    pub is_ethernet: bool,
    /// The first GID.
    pub gid: [u8; 16],
    /// It was occupied for so long that it could not be asked: everything below is 0 or empty.
    pub is_busy: bool,
    /// Packets and bytes of payload that it has sent.
    pub sent: Traffic,
    /// Packets and bytes of payload that have reached it.
    pub received: Traffic,
    /// Refusals that have reached it because no receive was posted (RNR NAKs).
    pub not_ready: u64,
    /// Refusals that have reached it because a request was out of sequence.
    pub out_of_sequence: u64,
    /// Faults that it has injected.
    pub faults: u64,
    /// Findings of its checker, the last 256 at most.
    pub findings: u32,
    /// Queue pairs, [`MOST_QUEUE_PAIRS`] at most.
    pub queue_pairs: Vec<QueuePair>,
    /// Queue pairs, also those that the list has no place for.
    pub queue_pair_count: u32,
}

/// Packets, and bytes of payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

/// A queue pair of a software card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePair {
    /// Its number.
    pub number: u32,
    /// Its transport, such as `Rc`.
    pub transport: String,
    /// Its state, such as `Rts`.
    pub state: String,
    /// The queue pair that it is connected to.
    pub peer: Option<Peer>,
    /// Work requests that the card has read from the send queue and not completed.
    pub outstanding: u32,
    /// Blocks of 64 bytes of the send queue that were rung and are not completed.
    pub blocks: u32,
    /// How often it has gone back to send again: after a time-out, a refusal, a lost answer.
    pub resends: u64,
    /// What it waits for.
    pub wait: Option<Wait>,
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its card, as [`Card::node`] has it.
    pub node: u32,
    /// The number of its queue pair.
    pub queue_pair: u32,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match u16::try_from(self.node) {
            Ok(lid) => write!(f, "LID {lid:#x}")?,
            Err(_) => write!(f, "{}", std::net::Ipv4Addr::from(self.node))?,
        }
        write!(f, " queue pair {:#x}", self.queue_pair)
    }
}

/// A stream of the library that waits for a completion. (What streams wait for in words of memory is not known.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// Number of its timeline, unique in the process.
    pub number: u64,
    /// Waits for completions that were posted on it and are not met.
    pub waits: u32,
    /// The oldest of them, the one with the lowest mark.
    pub wait: Wait,
}

impl Status {
    /// Adds a wait that was posted on a stream and is not met. Its mark is its place in the stream's order.
    pub fn add_wait(&mut self, stream: u64, wait: Wait) {
        match self.streams.iter_mut().rfind(|known| known.number == stream) {
            Some(known) => {
                known.waits = known.waits.saturating_add(1);
                if wait.mark < known.wait.mark {
                    known.wait = wait;
                }
            }
            None => self.streams.push(Stream { number: stream, waits: 1, wait }),
        }
    }
}

/// What something waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// In words.
    pub what: String,
    /// Two waits with the same words and the same mark are the same wait.
    pub mark: u64,
    /// How long it has waited, where that is known: by a single answer of streams, and of acknowledgements, it is
    /// not.
    pub time: Option<Duration>,
    /// Numbers of the queue pairs of the process whose completion is awaited, [`MOST_NAMED`] at most.
    pub queue_pairs: Vec<u32>,
}
