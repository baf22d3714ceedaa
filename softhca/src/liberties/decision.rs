//! Names of decisions: by the work that they concern, and never by time or by the order of threads.

use super::LibertyKinds;
use crate::random::mix;
use std::fmt;
use std::str::FromStr;

/// A part of a queue pair's work. Numbers count from 0 since the queue pair was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A work request of its send queue.
    Request(u32),
    /// A message that it receives. Each initiator of a DC target counts for itself.
    Message(u32),
    /// A completion entry for it.
    Completion(u32),
    /// Its answer to a packet of the peer, by the number of that packet.
    Answer(u32),
}

impl Subject {
    pub(super) const WORDS: [&str; 4] = ["request", "message", "completion", "answer"];

    /// Makes the subject with a word of [`Self::WORDS`].
    pub(super) fn new(word: &str, number: u32) -> Option<Self> {
        match word {
            "request" => Some(Subject::Request(number)),
            "message" => Some(Subject::Message(number)),
            "completion" => Some(Subject::Completion(number)),
            "answer" => Some(Subject::Answer(number)),
            _ => None,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Subject::Request(_) => "request",
            Subject::Message(_) => "message",
            Subject::Completion(_) => "completion",
            Subject::Answer(_) => "answer",
        }
    }

    /// Its number among those of its kind.
    pub fn number(self) -> u32 {
        match self {
            Subject::Request(number)
            | Subject::Message(number)
            | Subject::Completion(number)
            | Subject::Answer(number) => number,
        }
    }

    /// Returns whether it consists of packets.
    pub(super) fn has_packets(self) -> bool {
        matches!(self, Subject::Request(_) | Subject::Message(_))
    }
}

/// Work of a card. The text form is for example `qp 3 message 12 packet 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Work {
    /// The queue pair: its number, from 0, among those that the card has made.
    pub qp: u32,
    /// The part of its work.
    pub subject: Subject,
    /// The packet of the request or message.
    pub packet: u32,
}

impl Work {
    /// A packet of a request of the same queue pair.
    pub(crate) fn of_request(self, number: u32, packet: u32) -> Self {
        Work { subject: Subject::Request(number), packet, ..self }
    }

    /// The answer to a packet of the same queue pair's peer.
    pub(crate) fn of_answer(self, number: u32) -> Self {
        Work { subject: Subject::Answer(number), packet: 0, ..self }
    }

    /// The first work of a new queue pair.
    pub(crate) fn of_qp(qp: u32) -> Self {
        Work { qp, subject: Subject::Message(0), packet: 0 }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Work { qp, subject, packet } = self;
        write!(f, "qp {qp} {} {}", subject.word(), subject.number())?;
        if subject.has_packets() { write!(f, " packet {packet}") } else { Ok(()) }
    }
}

impl FromStr for Work {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let words: Vec<&str> = text.split(' ').collect();
        let (qp, word, number, packet) = match words[..] {
            ["qp", qp, word, number] => (qp, word, number, "0"),
            ["qp", qp, word, number, "packet", packet] => (qp, word, number, packet),
            _ => return Err(()),
        };
        let [qp, number, packet] = [qp, number, packet].map(|number| number.parse().map_err(drop));
        Ok(Work { qp: qp?, subject: Subject::new(word, number?).ok_or(())?, packet: packet? })
    }
}

/// A decision of a card: whether it takes a liberty of one kind with some work, or lets it meet a fault. The text form is for example
/// `relaxed qp 3 message 12 packet 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// A single kind.
    pub kind: LibertyKinds,
    /// The work.
    pub work: Work,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.words(), self.work)
    }
}

impl Decision {
    /// Returns a number that depends on the seed, the card, and this decision only.
    pub(super) fn seed(&self, seed: u64, card: u64) -> u64 {
        let Work { qp, subject, packet } = self.work;
        let parts = [
            card,
            u64::from(self.kind.bits()),
            u64::from(qp),
            subject.word().len() as u64,
            u64::from(subject.number()),
            u64::from(packet),
        ];
        parts.into_iter().fold(seed, |hash, part| mix(hash ^ part))
    }
}
