//! Collectives: chains of sends, receives and reductions on a stream of their own.
//!
//! A start has the chain's stream wait for the program's; a wait has the program's stream wait for the chain's end: each
//! writes a word for which the other waits. So collectives that are started together progress together, whatever the order
//! of the other ranks. The chain has a stream of each kind on which it can be started, and uses the one of the program's kind.
//!
//! A round starts its send and some receives, waits for its send and its receive, and reduces what has arrived: behind
//! its send, which has read the output by then. Receives are started ahead of their rounds, so that most messages find theirs.

mod allreduce;
mod barrier;
mod doubling;
mod ring;
mod schedule;
#[cfg(test)]
mod schedule_tests;

pub(crate) use allreduce::Reduction;
pub(crate) use barrier::barrier;
pub(crate) use schedule::Side;

use crate::channel::Channel;
use crate::error::{Class, Failure};
use crate::lane::{self, Act, CudaLane, Operands};
use crate::memory::Region;
use crate::parts::{Part, Parts};
use crate::stream::{AnyStream, post, start, wait};
use gdsync::memop::{Condition, MemOpStream, Word32};
use gdsync::persistent::{PersistentRecv, PersistentSend};
use gdsync::{Batch, PinnedMemory, SoftStream, Stream};
use schedule::{Receive, Schedule, Send, Target};
use std::ops::Range;
use std::time::Duration;

/// A round of a chain. Ranges are of the chain's sends, and of its receives.
#[derive(Debug)]
struct Round {
    /// The one that it sends, if it sends.
    send: Range<usize>,
    /// The one that it waits for, if it receives.
    receive: Range<usize>,
    /// Those that it starts.
    starts: Range<usize>,
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
    /// How many of the parts are sends.
    sends: usize,
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

impl Chain {
    fn new(
        schedule: &Schedule,
        channels: &[(Side, &Channel)],
        (region, arrived): (Region, Region),
        operands: Option<Operands>,
        cuda: Option<CudaLane>,
    ) -> Result<Self, Failure> {
        let channel = |peer: u32, sends: bool| {
            let is_it = |(side, _): &&(Side, &Channel)| side.peer == peer && side.sends == sends;
            let text = "a collective has no leg for a message of its schedule";
            channels.iter().find(is_it).map(|(_, one)| one).ok_or_else(|| Failure::new(Class::Other, text))
        };
        let (mut sends, mut receives, mut rounds) = (Vec::new(), Vec::new(), Vec::new());
        let mut started = 0;
        for (number, round) in schedule.rounds.iter().enumerate() {
            let (sent, received) = (sends.len(), receives.len());
            let mut then = None;
            if let Some(Send { peer, bytes }) = &round.send {
                let slices = region.slices(bytes.clone())?;
                sends.push(PersistentSend::send(&channel(*peer, true)?.queue_pair, &slices)?);
            }
            if let Some(Receive { peer, bytes, into }) = &round.receive {
                let (slices, act) = match *into {
                    Target::Output => (region.slices(bytes.clone())?, None),
                    Target::Arrivals(from) => {
                        let act = Act::Reduce { bytes: bytes.clone(), from };
                        (arrived.slices(from..from + bytes.len())?, (!bytes.is_empty()).then_some(act))
                    }
                };
                receives.push(PersistentRecv::new(&channel(*peer, false)?.queue_pair, &slices)?);
                then = act;
            }
            let starts = started..schedule.started(number);
            started = starts.end;
            rounds.push(Round { send: sent..sends.len(), receive: received..receives.len(), starts, then });
        }
        let number = sends.len();
        let parts = sends.into_iter().map(Part::Send).chain(receives.into_iter().map(Part::Receive));
        Ok(Chain {
            parts: Parts::new(parts.collect()),
            sends: number,
            rounds,
            operands,
            regions: vec![region, arrived],
            words: Words::new()?,
            soft: None,
            cuda,
        })
    }

    /// A barrier.
    pub(crate) fn barrier(channels: &[(Side, &Channel)], (rank, size): (u32, u32)) -> Result<Self, Failure> {
        let cuda = lane::gpu_for(None)?.map(|gpu| CudaLane::new(&gpu, None)).transpose()?;
        Chain::new(&barrier(rank, size), channels, (Region::Empty, Region::Empty), None, cuda)
    }

    /// Refuses a stream on which it cannot be started.
    pub(crate) fn check(&self, program: &AnyStream) -> Result<(), Failure> {
        lane::check(self.cuda.as_ref(), program, self.operands.as_ref()).map(drop)
    }

    /// Starts it: in the order of the program's stream.
    pub(crate) fn start(&mut self, program: &AnyStream, mut meanwhile: impl FnMut()) -> Result<(), Failure> {
        let Chain { parts, sends, rounds, operands, words, soft, cuda, .. } = self;
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
                run(&lane.stream, parts.all.split_at_mut(*sends), rounds, words, act, meanwhile)
            }
            (None, Some(stream)) => {
                let act = |act: &Act| match operands {
                    Some(operands) => lane::act_on_cpu(stream, act, operands),
                    None => Ok(()),
                };
                run(stream, parts.all.split_at_mut(*sends), rounds, words, act, meanwhile)
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
    (sends, receives): (&mut [Part], &mut [Part]),
    rounds: &[Round],
    words: &Words,
    act: impl Fn(&Act) -> Result<(), Failure>,
    mut meanwhile: impl FnMut(),
) -> Result<(), Failure> {
    let begin = Batch::new().wait_value32(&words.go, Condition::Geq, words.number);
    post(stream, begin, &mut meanwhile)?;
    act(&Act::Copy)?;
    for Round { send, receive, starts, then } in rounds {
        let started = receives[starts.clone()].iter_mut().chain(&mut sends[send.clone()]);
        start(stream, &mut started.map(Part::request).collect::<Vec<_>>(), &mut meanwhile)?;
        let awaited = sends[send.clone()].iter_mut().chain(&mut receives[receive.clone()]);
        wait(stream, &mut awaited.map(Part::request).collect::<Vec<_>>(), &mut meanwhile)?;
        then.iter().try_for_each(&act)?;
    }
    post(stream, Batch::new().write_value32(&words.done, words.number), meanwhile)
}
