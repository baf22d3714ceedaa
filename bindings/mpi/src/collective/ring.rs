//! The all-reduce of long buffers: a ring. Each chunk is reduced once, on its way round, and then handed round. A rank
//! sends less than twice the buffer, however many ranks there are, in 2(N-1) rounds.

use crate::collective::schedule::{Receive, Round, Schedule, Send, Target};
use std::ops::Range;

/// The bytes of a chunk.
fn chunk(number: u32, size: u32, bytes: usize, each: usize) -> Range<usize> {
    let elements = (bytes / each) as u128;
    let start = |number: u32| (elements * u128::from(number) / u128::from(size)) as usize * each;
    start(number)..start(number + 1)
}

/// Of `bytes` bytes, in numbers of `each` bytes. One queue pair receives all messages: receives are started a round ahead.
pub(crate) fn ring(rank: u32, size: u32, bytes: usize, each: usize) -> Schedule {
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let behind = |distance: u32| chunk((rank + 2 * size - distance) % size, size, bytes, each);
    let reducing = size - 1;
    let reduce = |round: u32| {
        let received = behind(round + 1);
        let into = Target::Arrivals(received.start);
        Round {
            send: Some(Send { peer: next, bytes: behind(round) }),
            receive: Some(Receive { peer: before, bytes: received, into }),
        }
    };
    // The chunk that is reduced first is the one ahead of the rank.
    let hand_on = |round: u32| Round::moves(next, behind(round + size - 1), before, behind(round));
    Schedule { rounds: (0..reducing).map(reduce).chain((0..reducing).map(hand_on)).collect(), ahead: 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_buffer() {
        for (size, elements) in [(1, 5), (3, 10), (4, 2), (7, 0)] {
            let mut end = 0;
            for number in 0..size {
                let range = chunk(number, size, elements * 8, 8);
                assert_eq!(range.start, end);
                end = range.end;
            }
            assert_eq!(end, elements * 8);
        }
    }
}
