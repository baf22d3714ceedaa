//! Fault plans, and their text form.

use crate::liberties::LibertyKinds;
use crate::packet::PacketKind;
use gdsync_sys::prm::cqe::Syndrome;
use std::fmt;
use std::time::Duration;

/// Faults for cards to meet: rules, and the seed of their random numbers.
///
/// ```
/// let plan: softhca::FaultPlan = "seed=7; drop p=0.01; rnr every=100".parse()?;
/// assert_eq!((plan.seed, plan.rules.len()), (7, 2));
/// # Ok::<(), softhca::faults::FaultPlanError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct FaultPlan {
    /// Seed of the random numbers.
    pub seed: u64,
    /// The rules; the first that applies to a packet, request, completion or access decides.
    pub rules: Vec<Rule>,
}

impl FaultPlan {
    /// Makes a plan of these rules.
    pub fn new(seed: u64, rules: Vec<Rule>) -> Self {
        FaultPlan { seed, rules }
    }
}

/// An action and its conditions.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rule {
    /// The fault.
    pub action: Action,
    /// Selection among the events that meet the conditions below.
    pub which: Which,
    /// Limit on the number of faults.
    pub times: Option<u64>,
    /// Packets that leave the card or arrive at it; completions of sends or of receives.
    pub direction: Option<Direction>,
    /// Kinds of packets, or of the packets that caused a completion.
    pub kinds: Kinds,
    /// Number of this card's queue pair.
    pub qpn: Option<u32>,
    /// Key of the memory; for [`Action::Gone`] only.
    pub key: Option<u32>,
    /// Side that accesses the memory; for [`Action::Gone`] only.
    pub side: Option<Side>,
}

impl Rule {
    /// Makes a rule with this action for every event that it applies to.
    pub fn new(action: Action) -> Self {
        Rule {
            action,
            which: Which::Every(1),
            times: None,
            direction: None,
            kinds: Kinds::empty(),
            qpn: None,
            key: None,
            side: None,
        }
    }

    /// Returns the kind of decision that a schedule makes in place of this rule's chance, if it can.
    pub(super) fn decided_as(&self) -> Option<LibertyKinds> {
        match (self.which, self.action) {
            (Which::Chance(_), Action::Drop) => Some(LibertyKinds::DROP),
            (Which::Chance(_), Action::Duplicate) => Some(LibertyKinds::DUPLICATE),
            (Which::Chance(_), Action::Delay(_)) => Some(LibertyKinds::DELAY),
            (Which::Chance(_), Action::Rnr) => Some(LibertyKinds::RNR),
            _ => None,
        }
    }

    /// Returns the direction, or its default: outgoing packets for faults of the network, incoming packets
    /// for faults of a responder.
    pub(super) fn direction_or_usual(&self) -> Direction {
        let usual = if self.action == Action::Rnr { Direction::In } else { Direction::Out };
        self.direction.unwrap_or(usual)
    }
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// A packet is lost.
    Drop,
    /// A packet arrives twice in a row; reliable connections only.
    Duplicate,
    /// A packet and the later packets of its queue pair are delayed.
    Delay(Duration),
    /// A packet and the later packets of its queue pair wait until so many packets of other queue pairs have
    /// passed; 10 ms at most.
    Hold(u32),
    /// The responder answers an executable request of a reliable connection with an RNR NAK.
    Rnr,
    /// Outgoing: the work request fails with this syndrome. Incoming: the responder refuses with it and fails.
    Fail(Syndrome),
    /// A completion entry and the later entries of its queue are delayed.
    Late(Duration),
    /// An access finds no region with its key, as if it had just been deregistered.
    Gone,
    /// The card falls silent: it sends no packet and receives none, not even its own.
    Die,
}

/// Maximum delay of [`Action::Hold`] while no other packets pass.
pub(super) const LONGEST_HOLD: Duration = Duration::from_millis(10);

/// Selection of the matching events that a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Which {
    /// The n-th, counted from 1.
    Nth(u64),
    /// Every n-th.
    Every(u64),
    /// Each with this probability, from 0 to 1.
    Chance(f64),
}

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// It leaves the card.
    Out,
    /// It arrives at the card.
    In,
}

/// The side that accesses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The card itself, by a key in its work request.
    Local,
    /// A peer, by a key in its request.
    Remote,
}

/// A set of packet kinds; the empty set means all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(u16);

impl Kinds {
    /// Returns the set of all kinds.
    pub const fn empty() -> Self {
        Kinds(0)
    }

    /// Adds a kind.
    #[must_use]
    pub fn with(self, kind: PacketKind) -> Self {
        Kinds(self.0 | 1 << kind as u16)
    }

    /// Returns whether the set contains this kind. An event without a kind is in the empty set only.
    pub(super) fn allow(self, kind: Option<PacketKind>) -> bool {
        self.0 == 0 || kind.is_some_and(|kind| self.0 & 1 << kind as u16 != 0)
    }
}

/// Syndromes that can be injected, with their words in the text form.
pub(super) const SYNDROMES: [(Syndrome, &str); 9] = [
    (Syndrome::LocalLength, "local-length"),
    (Syndrome::LocalQpOperation, "local-qp-operation"),
    (Syndrome::LocalProtection, "local-protection"),
    (Syndrome::RemoteAccess, "remote-access"),
    (Syndrome::RemoteInvalidRequest, "remote-invalid-request"),
    (Syndrome::RemoteOperation, "remote-operation"),
    (Syndrome::RetryExceeded, "retry-exceeded"),
    (Syndrome::RnrRetryExceeded, "rnr-retry-exceeded"),
    (Syndrome::WrFlush, "flush"),
];

/// A duration, displayed in the largest exact unit.
struct Exact(Duration);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
        let (unit, name) =
            units.into_iter().find(|(unit, _)| nanos.is_multiple_of(*unit)).unwrap_or((1, "ns"));
        write!(f, "{}{name}", nanos / unit)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Drop => f.write_str("drop"),
            Action::Duplicate => f.write_str("duplicate"),
            Action::Delay(time) => write!(f, "delay={}", Exact(*time)),
            Action::Hold(others) => write!(f, "hold={others}"),
            Action::Rnr => f.write_str("rnr"),
            Action::Fail(syndrome) => {
                let known = SYNDROMES.iter().find(|(known, _)| known == syndrome);
                write!(f, "fail={}", known.map_or("?", |(_, word)| word))
            }
            Action::Late(time) => write!(f, "late={}", Exact(*time)),
            Action::Gone => f.write_str("gone"),
            Action::Die => f.write_str("die"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        match self.which {
            Which::Nth(n) => write!(f, " nth={n}")?,
            Which::Every(1) => {}
            Which::Every(n) => write!(f, " every={n}")?,
            Which::Chance(p) => write!(f, " p={p}")?,
        }
        if let Some(times) = self.times {
            write!(f, " times={times}")?;
        }
        match self.direction {
            Some(Direction::Out) => f.write_str(" dir=out")?,
            Some(Direction::In) => f.write_str(" dir=in")?,
            None => {}
        }
        if self.kinds != Kinds::empty() {
            let named = PacketKind::ALL.iter().filter(|(kind, _)| self.kinds.allow(Some(*kind)));
            let words: Vec<&str> = named.map(|(_, word)| *word).collect();
            write!(f, " kind={}", words.join(","))?;
        }
        if let Some(qpn) = self.qpn {
            write!(f, " qp={qpn:#x}")?;
        }
        if let Some(key) = self.key {
            write!(f, " key={key:#x}")?;
        }
        match self.side {
            Some(Side::Local) => f.write_str(" access=local"),
            Some(Side::Remote) => f.write_str(" access=remote"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={}", self.seed)?;
        self.rules.iter().try_for_each(|rule| write!(f, "; {rule}"))
    }
}
