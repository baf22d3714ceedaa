//! The data of a status.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Most cards in a status; further ones are only counted.
pub const MOST_CARDS: usize = 16;
/// Most queue pairs of a card in a status: waiting ones first, then by number.
pub const MOST_QUEUE_PAIRS: usize = 256;
/// Most streams in a status: those with the lowest numbers.
pub const MOST_STREAMS: usize = 256;
/// Most queue pairs named by a wait.
pub const MOST_NAMED: usize = 16;

/// A process, or one of several copies of the library in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Its time: nanoseconds of `CLOCK_MONOTONIC`, one clock for all processes of a host.
    pub at_ns: u64,
    /// The rank that a launcher has given it.
    pub rank: Option<u32>,
    /// Software cards, at most [`MOST_CARDS`].
    pub cards: Vec<Card>,
    /// Number of software cards, including omitted ones.
    pub card_count: u32,
    /// Streams that wait for completions or words, at most [`MOST_STREAMS`].
    pub streams: Vec<Stream>,
    /// Number of such streams, including omitted ones.
    pub stream_count: u32,
}

/// A software card. Its counters begin at 0 when it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// Its device's LID, the same in every process of the host; 0 on the fabric of several hosts.
    pub lid: u16,
    /// Its address in the fabric, by which peers name it: its number among the cards of an address in the low 16 bits and,
    /// on the fabric of several hosts, the IPv4 address above them.
    pub node: u64,
    /// True if its link layer is Ethernet.
    pub is_ethernet: bool,
    /// The first GID.
    pub gid: [u8; 16],
    /// True if it was too busy to report: everything below is 0 or empty.
    pub is_busy: bool,
    /// Sent traffic.
    pub sent: Traffic,
    /// Received traffic.
    pub received: Traffic,
    /// Received RNR NAKs: the peer had no receive posted.
    pub not_ready: u64,
    /// Received NAKs for packets out of sequence.
    pub out_of_sequence: u64,
    /// Injected faults.
    pub faults: u64,
    /// Findings of its checker, at most the last 256.
    pub findings: u32,
    /// Queue pairs, at most [`MOST_QUEUE_PAIRS`].
    pub queue_pairs: Vec<QueuePair>,
    /// Number of queue pairs, including omitted ones.
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
    /// Work requests that the card has read from the send queue but not completed.
    pub outstanding: u32,
    /// 64-byte blocks of the send queue that are announced but not completed.
    pub blocks: u32,
    /// Number of retransmissions: after a time-out, a NAK, a lost response.
    pub resends: u64,
    /// Its current wait.
    pub wait: Option<Wait>,
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its card's [`Card::node`].
    pub node: u64,
    /// The number of its queue pair.
    pub queue_pair: u32,
    /// The process of that card, as this process's card knows it by their link; 0 if unknown.
    pub pid: u32,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The number of a queue pair tells its card among those of an address.
        if let Some(address) = ipv4(self.node) {
            write!(f, "{address} ")?;
        }
        write!(f, "queue pair {:#x}", self.queue_pair)
    }
}

/// Returns the IPv4 address of a [`Card::node`]; `None` on the fabric of one host.
pub fn ipv4(node: u64) -> Option<Ipv4Addr> {
    let address = (node >> 16) as u32;
    (address != 0).then(|| address.into())
}

/// A stream that waits for a completion, or, while a thread synchronizes it, for a word of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// Number of its timeline, unique in the process.
    pub number: u64,
    /// Unmet waits for completions, and the wait for a word at which it stands.
    pub waits: u32,
    /// The oldest of them, the one with the lowest mark.
    pub wait: Wait,
}

impl Status {
    /// Adds an unmet wait of a stream. Its mark is its position in the stream's order.
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

/// A wait, and its reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// Description.
    pub what: String,
    /// Waits with equal description and mark are the same wait.
    pub mark: u64,
    /// Its duration, if known: a single answer does not tell it for streams and for acknowledgements.
    pub time: Option<Duration>,
    /// Numbers of the process's queue pairs whose completion is awaited, at most [`MOST_NAMED`].
    pub queue_pairs: Vec<u32>,
}
