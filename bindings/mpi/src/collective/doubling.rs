//! The all-reduce of short buffers: recursive doubling. In round *i*, a rank and the one whose number differs in bit *i*
//! exchange what they have, and both reduce it, so that each then has the result of 2^(*i*+1) ranks: log2 N rounds.
//! The ranks behind the last power of two give their numbers to a rank of it first, and get the result from it last.
//!
//! Both ranks of an exchange reduce the same two operands, one as `a` and `b`, the other as `b` and `a`. Reductions give the
//! same bits for either (`gdsync_notify::collective::combine`, and its kernel), so all ranks get the same bytes.
//!
//! Each round's arrivals have a place of their own, so all receives are started with the first round, and a peer that is
//! ahead overwrites nothing. Nor does its next start: a message waits for a receive, and the chain's stream starts those of
//! the next start behind all reductions of this one. A rank outside of the power of two receives the result where it has
//! sent its numbers from: the result is made of them, so they have arrived before it is sent.

use crate::collective::schedule::{Receive, Round, Schedule, Send, Target};

/// Of `bytes` bytes. Each message has a queue pair of its own.
pub(crate) fn doubling(rank: u32, size: u32, bytes: usize) -> Schedule {
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
