//! The proof of the merges: no observer can tell a merged batch from an unmerged one.
//!
//! A case is a system: streams with batches, queue pairs and completion queues, a card that delays
//! its work, a CPU that reacts to the points that streams have written. It runs merged and
//! unmerged, each in random orders of steps. `docs/merging.md` says what is compared, and on which
//! premises.

mod system;

use crate::batch::outline::{Descriptor, PaperSend, PaperWait};
use crate::memop::{Condition, MemOpCaps};
use system::System;

/// Numbers of queue pairs and of completion queues of a case. They are few, so that descriptors
/// share them.
const QUEUES: usize = 4;
const STREAMS: usize = 2;

/// Decisions, from bytes.
struct Choices<'a> {
    bytes: std::slice::Iter<'a, u8>,
}

impl<'a> Choices<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Choices { bytes: bytes.iter() }
    }

    /// Below `limit`; 0 once the bytes are used up.
    fn below(&mut self, limit: usize) -> usize {
        usize::from(*self.bytes.next().unwrap_or(&0)) % limit.max(1)
    }

    fn is_over(&self) -> bool {
        self.bytes.len() == 0
    }
}

/// What the CPU does: once the timeline says that a stream has passed a wait, it writes a word.
#[derive(Clone, Debug)]
struct Reaction {
    stream: usize,
    /// Position of the wait among the stream's descriptors.
    after: usize,
    word: u32,
}

/// A system.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    caps: MemOpCaps,
    /// Descriptors of each stream, and where its batches end.
    streams: [Vec<Descriptor>; STREAMS],
    ends: [Vec<usize>; STREAMS],
    /// Of each queue pair: the completion queue of its sends, that of their receives, and `n` if
    /// every `n`th send completes.
    queue_pairs: Vec<(u32, u32, u32)>,
    reactions: Vec<Reaction>,
    seed: u64,
}

impl Case {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut choices = Choices::new(bytes);
        let seed = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        let fenced = choices.below(4) > 0;
        let caps = MemOpCaps {
            max_ops: [255, 8, 9, 12, 20][choices.below(5)],
            writes_are_fenced: fenced,
            flush_after_wait: choices.below(4) == 1,
            ..MemOpCaps::FULL
        };
        let queue_pairs = (0..QUEUES)
            .map(|_| {
                (choices.below(QUEUES) as u32, choices.below(QUEUES) as u32, [1, 1, 2, 3][choices.below(4)])
            })
            .collect();
        let mut case = Case {
            caps,
            streams: Default::default(),
            ends: Default::default(),
            queue_pairs,
            reactions: Vec::new(),
            seed,
        };
        case.fill(&mut choices);
        case
    }

    fn fill(&mut self, choices: &mut Choices<'_>) {
        let (mut sends, mut waits) = ([0u32; QUEUES], [0u32; QUEUES]);
        // Words only grow: those of the streams, then those of the CPU.
        let mut values = [0u32; STREAMS];
        while !choices.is_over() {
            let stream = choices.below(STREAMS);
            let position = self.streams[stream].len();
            // A queue pair belongs to one stream.
            let own = choices.below(QUEUES / STREAMS) * STREAMS + stream;
            let queue = choices.below(QUEUES);
            let kind = choices.below(16);
            let descriptor = match kind {
                0..=4 => {
                    sends[own] += 1;
                    Descriptor::Send(PaperSend {
                        queue_pair: own as u32,
                        index: sends[own] - 1,
                        trigger: None,
                    })
                }
                5..=10 => {
                    waits[queue] += 1;
                    let (queue, index) = (queue as u32, waits[queue] - 1);
                    Descriptor::WaitCq(PaperWait { queue, index, checked: kind == 10 })
                }
                11 => {
                    values[stream] += 1;
                    Descriptor::Write32(stream as u32, values[stream])
                }
                12 => Descriptor::Wait32(1 - stream as u32, Condition::Geq, choices.below(3) as u32),
                13 => match self.reaction(stream) {
                    Some(word) => Descriptor::Wait32(word, Condition::Geq, 1),
                    None => Descriptor::Barrier,
                },
                14 => Descriptor::Barrier,
                _ => {
                    self.ends[stream].push(position);
                    // Waits may be posted in another order than they were prepared in.
                    if let [.., Descriptor::WaitCq(one), Descriptor::WaitCq(next)] =
                        &mut self.streams[stream][..]
                        && one.queue == next.queue
                        && !(one.checked || next.checked)
                    {
                        std::mem::swap(one, next);
                    }
                    continue;
                }
            };
            self.streams[stream].push(descriptor);
        }
        for (ends, stream) in self.ends.iter_mut().zip(&self.streams) {
            ends.push(stream.len());
            ends.dedup();
        }
    }

    /// A word that the CPU writes once it knows that the stream has passed its last wait for a
    /// completion.
    fn reaction(&mut self, stream: usize) -> Option<u32> {
        let after = self.streams[stream].iter().rposition(is_completion)?;
        let word = (STREAMS + self.reactions.len()) as u32;
        self.reactions.push(Reaction { stream, after, word });
        Some(word)
    }

    /// Runs it both ways.
    ///
    /// # Errors
    /// The difference, or the invariant that does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut ends = Vec::new();
        for merged in [false, true] {
            // The order of steps must not matter.
            for order in 0..2 {
                let mut system = System::new(self, merged, self.seed.wrapping_add(order))?;
                system.run()?;
                ends.push(system.end());
            }
        }
        let Some(unmerged) = ends.first() else { return Ok(()) };
        match ends.iter().find(|end| *end != unmerged) {
            Some(other) => Err(format!("it ends as {other:?}, and unmerged as {unmerged:?}")),
            None => Ok(()),
        }
    }
}

fn is_completion(descriptor: &Descriptor) -> bool {
    matches!(descriptor, Descriptor::WaitCq(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `GDSYNC_MERGE_CASES`: number of cases (default: 5,000). `.ci/run` sets 100,000.
    fn cases() -> u32 {
        std::env::var("GDSYNC_MERGE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(5_000)
    }

    #[test]
    fn merged_batches_do_what_plain_ones_do() {
        let config =
            ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() };
        let bytes = proptest::collection::vec(any::<u8>(), 16..220);
        let result = proptest::test_runner::TestRunner::new(config).run(&bytes, |bytes| {
            let case = Case::new(&bytes);
            case.check().map_err(|what| TestCaseError::fail(format!("{what}\n{case:#?}")))
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    }
}
