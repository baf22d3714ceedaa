//! Collectives: chains of sends, receives and reductions on a stream of their own.
//!
//! A start has the chain's stream wait for the program's; a wait has the program's stream wait for the chain's end.
//! So collectives that are started together progress together, whatever the order of the other ranks.
//!
//! Round *i* starts send *i* and some receives, waits for send *i* and receive *i*, and acts on what has arrived.
//! Receives are started a round ahead, so that most messages find theirs.

use crate::channel::Channel;
use crate::error::Failure;
use crate::memory::{self, Buffer, Region};
use crate::parts::{Part, Parts};
use crate::reduce::{self, Element, Operation};
use crate::statistics;
use crate::stream::{start, wait};
use gdsync::persistent::{PersistentRecv, PersistentSend, Request};
use gdsync::stream::Event;
use gdsync::{Access, MemoryRegion, PinnedMemory, ProtectionDomain, SoftStream, Stream};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What the CPU does in the order of the chain's stream.
type Action = Arc<dyn Fn() + Send + Sync>;

struct Round {
    /// The receives that it starts.
    receives: Range<usize>,
    then: Option<Action>,
}

/// A matched collective. Its parts are the sends of all rounds, and then their receives.
pub(crate) struct Chain {
    pub(crate) parts: Parts,
    first: Option<Action>,
    rounds: Vec<Round>,
    stream: Stream<SoftStream>,
    end: Option<Event>,
}

/// An all-reduce as the program asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    /// The input: none where the output has it.
    pub(crate) source: Option<Buffer>,
    pub(crate) target: Buffer,
    pub(crate) element: Element,
    pub(crate) operation: Operation,
}

/// The legs of a barrier: in round *i*, to the rank 2^*i* ahead, and from the rank as far behind. Pairs of a peer and
/// whether the leg sends.
pub(crate) fn legs_of_barrier(rank: u32, size: u32) -> Vec<(u32, bool)> {
    let distances = (0..u32::BITS).map(|round| 1u64 << round).take_while(|distance| *distance < size.into());
    let place = |distance: u64| ((u64::from(rank) + distance) % u64::from(size)) as u32;
    let legs =
        distances.flat_map(|distance| [(place(distance), true), (place(u64::from(size) - distance), false)]);
    legs.collect()
}

/// The legs of an all-reduce: a ring.
pub(crate) fn legs_of_ring(rank: u32, size: u32) -> Vec<(u32, bool)> {
    match size {
        1 => Vec::new(),
        _ => vec![((rank + 1) % size, true), ((rank + size - 1) % size, false)],
    }
}

/// The bytes of a chunk of the ring.
fn chunk(number: u32, size: u32, bytes: usize, each: usize) -> Range<usize> {
    let elements = (bytes / each) as u128;
    let start = |number: u32| (elements * u128::from(number) / u128::from(size)) as usize * each;
    start(number)..start(number + 1)
}

impl Chain {
    fn new(
        (sends, receives): (Vec<Part>, Vec<Part>),
        first: Option<Action>,
        rounds: Vec<Round>,
    ) -> Result<Self, Failure> {
        let parts = Parts::new(sends.into_iter().chain(receives).collect());
        Ok(Chain { parts, first, rounds, stream: Stream::new(SoftStream::new()?)?, end: None })
    }

    /// A barrier by dissemination. All its receives are started with it: each has a queue pair of its own.
    pub(crate) fn barrier(channels: &[(&Channel, bool)]) -> Result<Self, Failure> {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for (channel, is_send) in channels {
            if *is_send {
                sends.push(Part::Send(PersistentSend::send(&channel.queue_pair, &[])?));
            } else {
                receives.push(Part::Receive(PersistentRecv::new(&channel.queue_pair, &[])?));
            }
        }
        let all = receives.len();
        let of_round = |round| if round == 0 { 0..all } else { all..all };
        let rounds = (0..sends.len()).map(|round| Round { receives: of_round(round), then: None });
        Self::new((sends, receives), None, rounds.collect())
    }

    /// An all-reduce around a ring: each chunk is reduced once, and then handed round. All ranks get the same bytes.
    ///
    /// # Safety
    /// As [`Region::register`], for both buffers, which do not overlap.
    pub(crate) unsafe fn allreduce(
        pd: &ProtectionDomain,
        reduction: Reduction,
        channels: &[(&Channel, bool)],
        (rank, size): (u32, u32),
    ) -> Result<Self, Failure> {
        let Reduction { source, target, element, operation } = reduction;
        // SAFETY: the caller's.
        let region = unsafe { Region::register(pd, target, Access::LOCAL_WRITE) }?;
        let arrivals = MemoryRegion::allocate(pd, target.bytes, Access::LOCAL_WRITE)?;
        let mut first: Option<Action> = None;
        let mut memory = None;
        if let Region::Host(into) = &region {
            memory = Some(into.memory().clone());
            if let Some(source) = source {
                // SAFETY: the caller's.
                let (into, from) = (into.memory().clone(), unsafe { memory::host(source) }?);
                first = Some(Arc::new(move || reduce::copy(&into, &from)));
            }
        }
        let of = |sends: bool| channels.iter().find(|(_, is_send)| *is_send == sends).map(|(one, _)| one);
        let (Some(next), Some(before)) = (of(true), of(false)) else {
            return Self::new((Vec::new(), Vec::new()), first, Vec::new());
        };
        let of_chunk =
            |behind: u32| chunk((rank + 2 * size - behind) % size, size, target.bytes, element.bytes());
        let (mut sends, mut receives, mut rounds) = (Vec::new(), Vec::new(), Vec::new());
        let (reducing, all) = (size - 1, 2 * (size - 1));
        for round in 0..all {
            let is_reducing = round < reducing;
            // In the second half, the chunk that is reduced is the one ahead of the rank.
            let (sent, received) = if is_reducing {
                (of_chunk(round), of_chunk(round + 1))
            } else {
                (of_chunk(round - reducing + size - 1), of_chunk(round - reducing))
            };
            sends.push(Part::Send(PersistentSend::send(&next.queue_pair, &region.slices(sent)?)?));
            let slices = if is_reducing && !received.is_empty() {
                vec![arrivals.slice(received.clone())?]
            } else {
                region.slices(received.clone())?
            };
            receives.push(Part::Receive(PersistentRecv::new(&before.queue_pair, &slices)?));
            let then = memory.clone().filter(|_| is_reducing);
            let then =
                then.map(|into| action((element, operation), into, arrivals.memory().clone(), received));
            let ahead = (round + 2).min(all) as usize;
            let receives = if round == 0 { 0..ahead } else { (round + 1) as usize..ahead };
            rounds.push(Round { receives, then });
        }
        Self::new((sends, receives), first, rounds)
    }

    /// Starts it: in the order of the program's stream.
    pub(crate) fn start(
        &mut self,
        program: &Stream<SoftStream>,
        mut meanwhile: impl FnMut(),
    ) -> Result<(), Failure> {
        let Chain { parts, first, rounds, stream, end } = self;
        stream.wait_event(&program.record()?)?;
        let act = |action: &Option<Action>| -> Result<(), Failure> {
            if let Some(action) = action.clone() {
                statistics::used_cpu();
                stream.launch(move || action())?;
            }
            Ok(())
        };
        act(first)?;
        let (sends, receives) = parts.all.split_at_mut(rounds.len());
        for (number, (round, send)) in rounds.iter().zip(sends).enumerate() {
            let started = receives[round.receives.clone()].iter_mut().map(Part::request);
            let mut list: Vec<&mut dyn Request> = started.chain([send.request()]).collect();
            start(stream, &mut list, &mut meanwhile)?;
            wait(stream, &mut [send.request(), receives[number].request()], &mut meanwhile)?;
            act(&round.then)?;
        }
        *end = Some(stream.record()?);
        Ok(())
    }

    /// Has the program's stream wait for its end.
    pub(crate) fn wait(&self, program: &Stream<SoftStream>) -> Result<(), Failure> {
        self.end.iter().try_for_each(|end| Ok(program.wait_event(end)?))
    }

    /// Where its newest start has ended: the first failure since the last outcome, if there is one.
    pub(crate) fn outcome(&mut self) -> Option<Result<u64, Failure>> {
        match self.look() {
            Ok(true) => self.parts.outcome(),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Looks how far its stream is: work of a queue pair that has failed ends there. True if it is idle.
    pub(crate) fn look(&self) -> Result<bool, Failure> {
        Ok(self.stream.synchronize_timeout(Duration::ZERO)?)
    }
}

fn action(
    what: (Element, Operation),
    into: PinnedMemory,
    other: PinnedMemory,
    range: Range<usize>,
) -> Action {
    Arc::new(move || reduce::reduce(what, &into, &other, range.clone()))
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain")
            .field("parts", &self.parts)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_leg_has_its_other_side_and_none_is_twice() {
        for size in 1..40 {
            for legs in [legs_of_barrier, legs_of_ring] {
                let all = (0..size).flat_map(|rank| legs(rank, size).into_iter().map(move |leg| (rank, leg)));
                let pairs = |is: bool| {
                    let of = all.clone().filter(move |(_, (_, sends))| *sends == is);
                    of.map(|(rank, (peer, sends))| if sends { (rank, peer) } else { (peer, rank) })
                        .collect::<Vec<_>>()
                };
                let (sends, receives) = (pairs(true), pairs(false));
                let distinct: BTreeSet<_> = sends.iter().copied().collect();
                assert_eq!(distinct.len(), sends.len(), "{size}");
                assert_eq!(distinct, receives.into_iter().collect(), "{size}");
            }
        }
    }

    #[test]
    fn a_barrier_hears_of_every_rank() {
        for size in 1..40u32 {
            let rounds = legs_of_barrier(0, size).len() / 2;
            // By rank: which ranks' arrival it knows of.
            let mut known: Vec<BTreeSet<u32>> = (0..size).map(|rank| BTreeSet::from([rank])).collect();
            for round in 0..rounds {
                let before = known.clone();
                for rank in 0..size {
                    let (from, _) = legs_of_barrier(rank, size)[2 * round + 1];
                    known[rank as usize].extend(&before[from as usize]);
                }
            }
            assert!(known.iter().all(|ranks| ranks.len() == size as usize), "{size}");
        }
    }

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
