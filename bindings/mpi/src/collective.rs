//! Collectives: chains of sends, receives and reductions on a stream of their own.
//!
//! A start has the chain's stream wait for the program's; a wait has the program's stream wait for the chain's end: each
//! writes a word for which the other waits. So collectives that are started together progress together, whatever the order
//! of the other ranks. The chain has a stream of each kind on which it can be started, and uses the one of the program's kind.
//!
//! Round *i* starts send *i* and some receives, waits for send *i* and receive *i*, and acts on what has arrived.
//! Receives are started a round ahead, so that most messages find theirs.

use crate::channel::Channel;
use crate::error::{Class, Failure};
use crate::lane::{self, Act, CudaLane, Operands, Place};
use crate::memory::{Buffer, Region};
use crate::parts::{Part, Parts};
use crate::stream::{AnyStream, post, start, wait};
use gdsync::cuda::GpuMemory;
use gdsync::cudarc::driver::CudaContext;
use gdsync::memop::{Condition, MemOpStream, Word32};
use gdsync::persistent::{PersistentRecv, PersistentSend, Request};
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{Access, Batch, MemoryRegion, PinnedMemory, ProtectionDomain, SoftStream, Stream};
use gdsync_notify::collective::{Element, Operation};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
struct Round {
    /// The receives that it starts.
    receives: Range<usize>,
    then: Option<Act>,
}

/// How the chain's stream and the program's wait for each other: by the number of the start.
#[derive(Debug)]
struct Words {
    /// The program's stream has come to the start.
    go: Word32,
    /// The chain's stream has come to the end.
    done: Word32,
    /// Starts so far.
    number: u32,
}

impl Words {
    fn new() -> Result<Self, Failure> {
        let memory = PinnedMemory::allocate(2 * size_of::<u32>());
        let memory = memory.map_err(|source| gdsync::Error::Memory { len: 2 * size_of::<u32>(), source })?;
        let word = |at: usize| Word32::new(&memory, at * size_of::<u32>()).map_err(gdsync::Error::from);
        Ok(Words { go: word(0)?, done: word(1)?, number: 0 })
    }
}

/// A matched collective. Its parts are the sends of all rounds, and then their receives.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) parts: Parts,
    rounds: Vec<Round>,
    /// What is reduced; nothing by a barrier.
    operands: Option<Operands>,
    /// Kept for acts, which know them by their addresses.
    regions: Vec<Region>,
    words: Words,
    /// Made with the first start on a software stream.
    soft: Option<Stream<SoftStream>>,
    cuda: Option<CudaLane>,
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

/// Memory for what arrives, of the kind that the output has.
fn arrivals(
    pd: &ProtectionDomain,
    like: &Region,
    bytes: usize,
    gpu: Option<&Arc<CudaContext>>,
) -> Result<Region, Failure> {
    Ok(match like {
        Region::Empty => Region::Empty,
        Region::Host(_) => Region::Host(MemoryRegion::allocate(pd, bytes, Access::LOCAL_WRITE)?),
        Region::Gpu(_) => {
            let text = "a buffer in a GPU's memory is not aligned to its numbers: kernels take them at multiples of their length";
            let context = gpu.ok_or_else(|| Failure::new(Class::Buffer, text))?;
            let memory = GpuMemory::allocate(context, bytes).map_err(gdsync::Error::from)?;
            Region::Gpu(GpuMemoryRegion::register(pd, memory, Access::LOCAL_WRITE)?)
        }
    })
}

impl Chain {
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
        let cuda = lane::gpu_for(None)?.map(|gpu| CudaLane::new(&gpu, None)).transpose()?;
        Ok(Chain {
            rounds: rounds.collect(),
            parts: Parts::new(sends.into_iter().chain(receives).collect()),
            operands: None,
            regions: Vec::new(),
            words: Words::new()?,
            soft: None,
            cuda,
        })
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
        let what = (element, operation);
        let buffers = source.into_iter().chain([target]);
        // A kernel takes numbers at their multiples only.
        let is_aligned = buffers.clone().all(|buffer| buffer.address.is_multiple_of(element.bytes()));
        let on_gpu = buffers.map(|buffer| buffer.address).find(|address| *address != 0);
        let gpu = if is_aligned { lane::gpu_for(on_gpu)? } else { None };
        // SAFETY: the caller's.
        let region = unsafe { Region::register(pd, target, Access::LOCAL_WRITE) }?;
        let arrived = arrivals(pd, &region, target.bytes, gpu.as_ref())?;
        let operands = match &arrived {
            Region::Empty => None,
            // SAFETY: the caller's.
            arrived => Some(unsafe { operands(what, (source, target), arrived, gpu.as_ref()) }?),
        };
        let of = |sends: bool| channels.iter().find(|(_, is_send)| *is_send == sends).map(|(one, _)| one);
        let of_chunk =
            |behind: u32| chunk((rank + 2 * size - behind) % size, size, target.bytes, element.bytes());
        let (mut sends, mut receives, mut rounds) = (Vec::new(), Vec::new(), Vec::new());
        if let (Some(next), Some(before)) = (of(true), of(false)) {
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
                let into = if is_reducing { &arrived } else { &region };
                let slices = into.slices(received.clone())?;
                receives.push(Part::Receive(PersistentRecv::new(&before.queue_pair, &slices)?));
                let then = (is_reducing && !received.is_empty()).then_some(Act::Reduce(received));
                let ahead = (round + 2).min(all) as usize;
                let receives = if round == 0 { 0..ahead } else { (round + 1) as usize..ahead };
                rounds.push(Round { receives, then });
            }
        }
        Ok(Chain {
            parts: Parts::new(sends.into_iter().chain(receives).collect()),
            rounds,
            operands,
            regions: vec![region, arrived],
            words: Words::new()?,
            soft: None,
            cuda: gpu.map(|gpu| CudaLane::new(&gpu, Some(what))).transpose()?,
        })
    }

    /// Refuses a stream on which it cannot be started.
    pub(crate) fn check(&self, program: &AnyStream) -> Result<(), Failure> {
        lane::check(self.cuda.as_ref(), program, self.operands.as_ref()).map(drop)
    }

    /// Starts it: in the order of the program's stream.
    pub(crate) fn start(&mut self, program: &AnyStream, mut meanwhile: impl FnMut()) -> Result<(), Failure> {
        let Chain { parts, rounds, operands, words, soft, cuda, .. } = self;
        let operands = operands.as_ref();
        let cuda = lane::check(cuda.as_ref(), program, operands)?;
        let soft = match (cuda, &soft) {
            (None, None) => Some(&*soft.insert(Stream::new(SoftStream::new()?)?)),
            _ => soft.as_ref(),
        };
        let number = words.number.wrapping_add(1);
        program.post(Batch::new().write_value32(&words.go, number), &mut meanwhile)?;
        words.number = number;
        match (cuda, soft) {
            (Some(lane), _) => {
                let act = |act: &Act| match operands {
                    // SAFETY: the chain has the memory, and leaves it allocated if it is dropped before the stream is idle. The
                    // program's buffers stay until the request's work has ended (`Request::new`).
                    Some(operands) => unsafe { lane.act(act, operands) },
                    None => Ok(()),
                };
                run(&lane.stream, (parts, rounds), words, act, meanwhile)
            }
            (None, Some(stream)) => {
                let act = |act: &Act| match operands {
                    Some(operands) => lane::act_on_cpu(stream, act, operands),
                    None => Ok(()),
                };
                run(stream, (parts, rounds), words, act, meanwhile)
            }
            (None, None) => Ok(()),
        }
    }

    /// Has the program's stream wait for its end.
    pub(crate) fn wait(&self, program: &AnyStream, meanwhile: impl FnMut()) -> Result<(), Failure> {
        let Words { done, number, .. } = &self.words;
        program.post(Batch::new().wait_value32(done, Condition::Geq, *number), meanwhile)
    }

    /// Where its newest start has ended: the first failure since the last outcome, if there is one.
    pub(crate) fn outcome(&mut self) -> Option<Result<u64, Failure>> {
        match self.look() {
            Ok(true) => self.parts.outcome(),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Looks how far its streams are: work of a queue pair that has failed ends there. True if they are idle.
    pub(crate) fn look(&self) -> Result<bool, Failure> {
        let soft = self.soft.as_ref().map(|stream| stream.synchronize_timeout(Duration::ZERO)).transpose()?;
        let cuda =
            self.cuda.as_ref().map(|lane| lane.stream.synchronize_timeout(Duration::ZERO)).transpose()?;
        Ok(soft != Some(false) && cuda != Some(false))
    }
}

impl Drop for Chain {
    /// What kernels work on stays until they have ended: for ever, where that is not known.
    fn drop(&mut self) {
        if self.cuda.is_some() && !matches!(self.look(), Ok(true)) {
            tracing::warn!("a collective is dropped that has not ended: its memory stays");
            std::mem::forget((std::mem::take(&mut self.regions), self.operands.take()));
        }
    }
}

/// The rounds, on the chain's own stream.
fn run<B: MemOpStream>(
    stream: &Stream<B>,
    (parts, rounds): (&mut Parts, &[Round]),
    words: &Words,
    act: impl Fn(&Act) -> Result<(), Failure>,
    mut meanwhile: impl FnMut(),
) -> Result<(), Failure> {
    let begin = Batch::new().wait_value32(&words.go, Condition::Geq, words.number);
    post(stream, begin, &mut meanwhile)?;
    act(&Act::Copy)?;
    let (sends, receives) = parts.all.split_at_mut(rounds.len());
    for (number, (round, send)) in rounds.iter().zip(sends).enumerate() {
        let started = receives[round.receives.clone()].iter_mut().map(Part::request);
        let mut list: Vec<&mut dyn Request> = started.chain([send.request()]).collect();
        start(stream, &mut list, &mut meanwhile)?;
        wait(stream, &mut [send.request(), receives[number].request()], &mut meanwhile)?;
        round.then.iter().try_for_each(&act)?;
    }
    post(stream, Batch::new().write_value32(&words.done, words.number), meanwhile)
}

/// # Safety
/// As [`Chain::allreduce`].
unsafe fn operands(
    what: (Element, Operation),
    (source, target): (Option<Buffer>, Buffer),
    arrivals: &Region,
    gpu: Option<&Arc<CudaContext>>,
) -> Result<Operands, Failure> {
    // SAFETY: the caller's.
    let of = |buffer| unsafe { Place::of(buffer, gpu) };
    let arrivals = match arrivals {
        Region::Host(region) => Place::in_host(region.memory().clone(), gpu),
        Region::Gpu(region) => Place::on_gpu(region.memory().address(), target.bytes),
        Region::Empty => return Err(Failure::new(Class::Buffer, "the buffer has no bytes")),
    };
    Ok(Operands { what, source: source.map(of).transpose()?, target: of(target)?, arrivals })
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
