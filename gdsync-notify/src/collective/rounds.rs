//! Schedules of rounds: what a rank sends, receives and reduces in each round of a collective, as plain data that tests run without a
//! card. A barrier disseminates; an all-reduce of a short buffer doubles, and one of a long buffer goes round a ring. Plans of teams and
//! the MPI library are both made of them.

use std::ops::Range;

/// A send of these bytes of the output.
#[derive(Clone, Debug)]
pub struct Send {
    /// The receiving rank.
    pub peer: u32,
    /// The bytes.
    pub bytes: Range<usize>,
}

/// Where a message is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// At the same bytes of the output.
    Output,
    /// At this offset of the memory for arrivals, to be reduced into the same bytes of the output.
    Arrivals(usize),
}

/// A receive of these bytes of the peer's output.
#[derive(Clone, Debug)]
pub struct Receive {
    /// The sending rank.
    pub peer: u32,
    /// The bytes.
    pub bytes: Range<usize>,
    /// Where they arrive.
    pub into: Target,
}

/// A round, which ends when its messages have completed and its arrivals are reduced.
#[derive(Clone, Debug)]
pub struct Round {
    /// Its send.
    pub send: Option<Send>,
    /// Its receive.
    pub receive: Option<Receive>,
}

impl Round {
    /// A round that sends from the output to one peer, and receives into the output from another.
    fn moves(to: u32, sent: Range<usize>, from: u32, received: Range<usize>) -> Self {
        Round {
            send: Some(Send { peer: to, bytes: sent }),
            receive: Some(Receive { peer: from, bytes: received, into: Target::Output }),
        }
    }
}

/// The rounds of a rank.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The rounds, in their order.
    pub rounds: Vec<Round>,
    /// How many rounds ahead receives are started, so that messages find their receives posted.
    pub ahead: usize,
}

impl Schedule {
    /// Returns the bytes of the memory for arrivals.
    pub fn arrivals(&self) -> usize {
        let end = |receive: &Receive| match receive.into {
            Target::Output => 0,
            Target::Arrivals(at) => at + receive.bytes.len(),
        };
        self.rounds.iter().filter_map(|round| round.receive.as_ref()).map(end).max().unwrap_or(0)
    }

    /// Returns the number of receives that have been started once a round has started its own.
    pub fn started(&self, round: usize) -> usize {
        let until = (round.saturating_add(self.ahead).saturating_add(1)).min(self.rounds.len());
        self.rounds[..until].iter().filter(|round| round.receive.is_some()).count()
    }
}

/// A barrier by dissemination: in round *i*, a rank sends to the rank 2^*i* ahead and receives from the rank as far behind.
///
/// Messages have no bytes. Each has its own queue pair, so all receives are started with the first round.
pub fn barrier(rank: u32, size: u32) -> Schedule {
    let distances = (0..u32::BITS).map(|round| 1u64 << round).take_while(|distance| *distance < size.into());
    let place = |distance: u64| ((u64::from(rank) + distance) % u64::from(size)) as u32;
    let round = |distance: u64| Round::moves(place(distance), 0..0, place(u64::from(size) - distance), 0..0);
    Schedule { rounds: distances.map(round).collect(), ahead: usize::MAX }
}

/// An all-reduce of `bytes` bytes by recursive doubling: in round *i*, a rank and the one whose number differs in bit *i* exchange
/// their values and both reduce them; each then has the result of 2^(*i*+1) ranks, after log2 N rounds that of all. A rank at or
/// above the largest power of two first gives its numbers to a rank below it, and gets the result from it last.
///
/// Both ranks of an exchange reduce the same two operands, in opposite order. Reductions give the same bits for either order
/// ([`combine`](crate::collective::combine) and its kernel), so all ranks get the same bytes.
///
/// Each message has its own queue pair, and each round its own memory for arrivals, so all receives are started with the first
/// round and a peer that is ahead overwrites nothing. Nor does its next start: a message waits for a receive, and the collective's
/// stream starts the receives of the next start after all reductions of this one. A rank at or above the power of two receives the
/// result into the memory from which it sent: the result contains its numbers, so they have arrived before the result is sent.
pub fn doubling(rank: u32, size: u32, bytes: usize) -> Schedule {
    let power = size.checked_ilog2().map_or(1, |log| 1u32 << log);
    let send = |peer| Some(Send { peer, bytes: 0..bytes });
    if rank >= power {
        let round = Round::moves(rank - power, 0..bytes, rank - power, 0..bytes);
        return Schedule { rounds: vec![round], ahead: usize::MAX };
    }
    let outside = Some(rank + power).filter(|outside| *outside < size);
    let peers = (0..power.trailing_zeros()).map(|bit| rank ^ (1 << bit));
    let folded = outside.map(|peer| (None, peer));
    let exchanges = folded.into_iter().chain(peers.map(|peer| (send(peer), peer)));
    let reducing = exchanges.enumerate().map(|(place, (send, peer))| {
        let into = Target::Arrivals(place * bytes);
        Round { send, receive: Some(Receive { peer, bytes: 0..bytes, into }) }
    });
    let last = outside.map(|peer| Round { send: send(peer), receive: None });
    Schedule { rounds: reducing.chain(last).collect(), ahead: usize::MAX }
}

pub(super) fn chunk(number: u32, size: u32, bytes: usize, each: usize) -> Range<usize> {
    let elements = (bytes / each) as u128;
    let start = |number: u32| (elements * u128::from(number) / u128::from(size)) as usize * each;
    start(number)..start(number + 1)
}

/// An all-reduce of `bytes` bytes, in numbers of `each` bytes, by a ring: each chunk is reduced on its way round, and then passed
/// on round the ring. A rank sends less than twice the buffer, in 2(N-1) rounds.
///
/// One queue pair receives all messages, and receives are started one round ahead.
pub fn ring(rank: u32, size: u32, bytes: usize, each: usize) -> Schedule {
    // No ranks have no rounds, as one has none.
    let size = size.max(1);
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let behind = |distance: u32| chunk((rank + 2 * size - distance) % size, size, bytes, each);
    let reducing = size - 1;
    let reduce = |round: u32| {
        let received = behind(round + 1);
        let into = Target::Arrivals(received.start);
        Round {
            send: Some(Send { peer: next, bytes: behind(round) }),
            receive: Some(Receive { peer: previous, bytes: received, into }),
        }
    };
    // The chunk ahead of the rank is the first to be reduced completely.
    let pass_on = |round: u32| Round::moves(next, behind(round + size - 1), previous, behind(round));
    Schedule { rounds: (0..reducing).map(reduce).chain((0..reducing).map(pass_on)).collect(), ahead: 1 }
}

/// The longest buffer that is reduced by doubling; a longer one goes round a ring. Doubling has fewer rounds, and sends the whole
/// buffer in each. The ring gains first among three ranks: 4 rounds of a third against 3 of the whole, so from 0.6 times the bytes
/// that the network carries during the latency of a round, 30 KB at 25 GB/s and 2 µs; among eight ranks it is 8.8 times as many.
/// The stream's work adds to a round's latency.
pub const SHORT: usize = 32 * 1024;

/// The all-reduce of `bytes` bytes, in numbers of `each` bytes: [`doubling`] if they are at most [`SHORT`], or else [`ring`].
pub fn all_reduce(rank: u32, size: u32, bytes: usize, each: usize) -> Schedule {
    if bytes <= SHORT { doubling(rank, size, bytes) } else { ring(rank, size, bytes, each) }
}
