//! The proof of the merges: no observer can tell a merged batch from an unmerged one.
//!
//! A case is a system: streams with batches, queue pairs and completion queues, a card that delays its work, and a
//! CPU that prepares, posts, and reacts to the points that streams have written. It runs merged and unmerged, by
//! doorbells and by the card (triggers release sends, collectors wait), each in random orders of steps.
//! `docs/merging.md` lists the comparisons and their premises.

mod card;
mod running;
mod system;

use crate::batch::outline::{Descriptor, PaperSend, PaperWait};
use crate::memop::{Condition, MemOpCaps};
use system::System;

/// Numbers of queue pairs and of completion queues of a case: few, so that descriptors share them.
const QUEUES: usize = 6;
const STREAMS: usize = 2;
const TRIGGERS: usize = 2;

/// The mode in which a case runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    merged: bool,
    /// True if triggers release the sends of queue pairs that have one, and collectors wait for runs; false if
    /// everything goes by doorbells, and streams wait.
    by_card: bool,
}

impl Mode {
    const PLAIN: Mode = Mode { merged: false, by_card: false };
    const MERGED: Mode = Mode { merged: true, by_card: false };
    const PLAIN_BY_CARD: Mode = Mode { merged: false, by_card: true };
    const MERGED_BY_CARD: Mode = Mode { merged: true, by_card: true };
    #[cfg(fuzzing)]
    pub(crate) const ALL: [Mode; 4] = [Mode::PLAIN, Mode::MERGED, Mode::PLAIN_BY_CARD, Mode::MERGED_BY_CARD];

    fn of(self, descriptor: Descriptor) -> Descriptor {
        match descriptor {
            Descriptor::Send(send) if !self.by_card => Descriptor::Send(PaperSend { trigger: None, ..send }),
            other => other,
        }
    }
}

struct Choices<'a> {
    bytes: std::slice::Iter<'a, u8>,
}

impl<'a> Choices<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Choices { bytes: bytes.iter() }
    }

    /// Returns a number below `limit`; 0 once the bytes are used up.
    fn below(&mut self, limit: usize) -> usize {
        usize::from(*self.bytes.next().unwrap_or(&0)) % limit.max(1)
    }

    fn is_over(&self) -> bool {
        self.bytes.len() == 0
    }
}

/// A reaction of the CPU: once the timeline shows that a stream has passed a wait, it writes a word.
#[derive(Clone, Debug)]
struct Reaction {
    stream: usize,
    /// Position of the wait among the stream's descriptors.
    after: usize,
    word: u32,
}

/// Counts of a case that is being made.
#[derive(Default)]
struct Counts {
    sends: [u32; QUEUES],
    /// Completions of these sends, and waits, of each queue.
    completions: [u32; QUEUES],
    waits: [u32; QUEUES],
    tickets: [u64; TRIGGERS * STREAMS],
}

impl Counts {
    /// Returns the first queue, from `first` on, with a completion that has no wait.
    fn next_to_come(&self, first: usize) -> Option<usize> {
        (first..QUEUES).chain(0..first).find(|queue| self.has_more(*queue))
    }

    fn has_more(&self, queue: usize) -> bool {
        self.waits[queue] < self.completions[queue]
    }

    fn wait(&mut self, queue: usize, checked: bool) -> PaperWait {
        self.waits[queue] += 1;
        PaperWait { queue: queue as u32, index: self.waits[queue] - 1, checked }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    caps: MemOpCaps,
    streams: [Vec<Descriptor>; STREAMS],
    ends: [Vec<usize>; STREAMS],
    /// For each queue pair: the completion queues of its sends and of its receives, and `n` if every `n`th send
    /// completes.
    queue_pairs: Vec<(u32, u32, u32)>,
    /// The trigger of each queue pair. Triggers belong to one stream.
    triggers: Vec<Option<u32>>,
    first_ticket: u64,
    /// The fewest queues of runs that collectors wait for.
    collect_from: Option<u32>,
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
        let trigger = |queue_pair: usize, choice: usize| {
            let of_stream = [None, Some(0), Some(0), Some(1)][choice]?;
            Some((of_stream * STREAMS + queue_pair % STREAMS) as u32)
        };
        let triggers = (0..QUEUES).map(|queue_pair| trigger(queue_pair, choices.below(4))).collect();
        // Tickets wrap around, and so do the halves of a word.
        let first_ticket = [1, 1, u64::from(u32::MAX), u64::MAX - 1][choices.below(4)];
        let collect_from = [None, Some(1), Some(2), Some(3), Some(4)][choices.below(5)];
        let mut case = Case {
            caps,
            streams: Default::default(),
            ends: Default::default(),
            queue_pairs,
            triggers,
            first_ticket,
            collect_from,
            reactions: Vec::new(),
            seed,
        };
        case.fill(&mut choices);
        case
    }

    fn fill(&mut self, choices: &mut Choices<'_>) {
        // Most systems wait only for completions that come: otherwise they would soon hang.
        let may_hang = choices.below(4) == 0;
        let mut made = Counts { tickets: [self.first_ticket; TRIGGERS * STREAMS], ..Counts::default() };
        // Words only grow: those of the streams, then those of the CPU.
        let mut values = [0u32; STREAMS];
        while !choices.is_over() {
            let stream = choices.below(STREAMS);
            let position = self.streams[stream].len();
            // A queue pair belongs to one stream.
            let own = choices.below(QUEUES / STREAMS) * STREAMS + stream;
            let queue = choices.below(QUEUES);
            let kind = choices.below(16);
            let comes = made.next_to_come(queue);
            let descriptor = match kind {
                // The sends of a step, and its waits.
                4 => {
                    let queue_pairs = (stream..QUEUES).step_by(STREAMS);
                    let sends = queue_pairs.map(|own| Descriptor::Send(self.send(own, &mut made)));
                    let sends: Vec<_> = sends.collect();
                    self.streams[stream].extend(sends);
                    continue;
                }
                9 => {
                    for queue in 0..QUEUES {
                        if made.has_more(queue) {
                            self.streams[stream].push(Descriptor::WaitCq(made.wait(queue, false)));
                        }
                    }
                    continue;
                }
                5..=10 if may_hang || comes.is_some() => {
                    let queue = if may_hang { queue } else { comes.unwrap_or(queue) };
                    Descriptor::WaitCq(made.wait(queue, kind == 10))
                }
                0..=10 => Descriptor::Send(self.send(own, &mut made)),
                11 => {
                    values[stream] += 1;
                    Descriptor::Write32(stream as u32, values[stream])
                }
                12 => {
                    let other = 1 - stream;
                    let limit = if may_hang { 3 } else { values[other] as usize + 1 };
                    Descriptor::Wait32(other as u32, Condition::Geq, choices.below(limit) as u32)
                }
                13 => match self.reaction(stream) {
                    Some(word) => Descriptor::Wait32(word, Condition::Geq, 1),
                    None => Descriptor::Barrier,
                },
                14 => Descriptor::Barrier,
                _ => {
                    self.ends[stream].push(position);
                    // Waits may be posted in a different order than they were prepared.
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

    fn send(&self, own: usize, made: &mut Counts) -> PaperSend {
        made.sends[own] += 1;
        let (send_queue, recv_queue, every) = self.queue_pairs[own];
        made.completions[recv_queue as usize] += 1;
        made.completions[send_queue as usize] += u32::from(made.sends[own].is_multiple_of(every));
        let trigger = self.triggers[own].map(|trigger| {
            let next = &mut made.tickets[trigger as usize];
            (trigger, std::mem::replace(next, next.wrapping_add(1)))
        });
        PaperSend { queue_pair: own as u32, index: made.sends[own] - 1, trigger }
    }

    /// Adds a word that the CPU writes once it knows that the stream has passed its last wait for a completion.
    fn reaction(&mut self, stream: usize) -> Option<u32> {
        let after = self.streams[stream].iter().rposition(is_completion)?;
        let word = (STREAMS + self.reactions.len()) as u32;
        self.reactions.push(Reaction { stream, after, word });
        Some(word)
    }

    /// Runs it in several modes, and compares all with the first.
    ///
    /// # Errors
    /// The difference, or the violated invariant.
    pub(crate) fn check(&self, modes: &[Mode]) -> Result<(), String> {
        let mut first = None;
        for mode in modes {
            // The order of steps must not matter.
            for order in 0..2 {
                let said = |what: String| format!("{mode:?}: {what}");
                let mut system = System::new(self, *mode, self.seed.wrapping_add(order)).map_err(said)?;
                system.run().map_err(said)?;
                let end = system.end();
                let (expected, other) = first.get_or_insert_with(|| (end.clone(), *mode));
                if end != *expected {
                    return Err(format!("{mode:?} ends as {end:?}, and {other:?} as {expected:?}"));
                }
            }
        }
        Ok(())
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

    fn check(modes: &[Mode]) {
        let config =
            ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() };
        let bytes = proptest::collection::vec(any::<u8>(), 30..240);
        let result = proptest::test_runner::TestRunner::new(config).run(&bytes, |bytes| {
            let case = Case::new(&bytes);
            case.check(modes).map_err(|what| TestCaseError::fail(format!("{what}\n{case:#?}")))
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    }

    #[test]
    fn merged_batches_do_what_plain_ones_do() {
        check(&[Mode::PLAIN, Mode::MERGED]);
    }

    #[test]
    fn merged_batches_do_what_plain_ones_do_by_the_card() {
        check(&[Mode::PLAIN, Mode::PLAIN_BY_CARD, Mode::MERGED_BY_CARD]);
    }
}
