//! Collectives: rounds of sends, receives and reductions on the collective's own stream.
//!
//! At a start the collective's stream waits for the program's stream; at a wait the program's stream waits for the collective's
//! end. Each writes a word for which the other waits. So collectives that are started together progress together, in whatever
//! order the other ranks start them. A collective has a stream of each kind on which it can be started, and uses the one of the
//! program's kind.
//!
//! A round starts its send and some receives, waits for its send and its receive, and then reduces what has arrived; by then the
//! send has read the output. Receives are started ahead of their rounds, so that most messages find them posted.

mod allreduce;
mod compute;

pub(crate) use allreduce::Reduction;
pub(crate) use compute::{check_defined, element, operation};
pub(crate) use gdsync_notify::collective::rounds::barrier;

use crate::connection::{Connection, Side};
use crate::error::{Class, Failure};
use crate::memory::Region;
use crate::persistent::{Persistent, PersistentGroup};
use crate::stream::{AnyStream, post, start, wait};
use compute::{Computation, CudaComputer, Operands, compute_on_cpu, gpu_for, select};
use gdsync::memop::{Condition, MemOpStream, Word32};
use gdsync::persistent::{PersistentRecv, PersistentSend};
use gdsync::{Batch, PinnedMemory, SoftStream, Stream};
use gdsync_notify::collective::rounds::{Receive, Schedule, Send, Target};
use std::ops::Range;
use std::time::Duration;

/// The sides of a schedule's messages, without repetition.
pub(crate) fn sides(schedule: &Schedule) -> Vec<Side> {
    let side = |rank, sends| Side { rank, sends, has_queue_pair: true };
    let mut all = Vec::new();
    for round in &schedule.rounds {
        let send = round.send.as_ref().map(|send| side(send.peer, true));
        let receive = round.receive.as_ref().map(|receive| side(receive.peer, false));
        for side in send.into_iter().chain(receive) {
            if !all.contains(&side) {
                all.push(side);
            }
        }
    }
    all
}

/// A round. Its ranges are indices of the collective's sends and receives.
#[derive(Debug)]
struct Round {
    /// The send; empty if the round has none.
    send: Range<usize>,
    /// The receive for which the round waits; empty if it has none.
    receive: Range<usize>,
    starts: Range<usize>,
    then: Option<Computation>,
}

/// The words by which the program's stream and the collective's wait for each other. Their values are numbers of starts.
#[derive(Debug)]
struct Handshake {
    /// Written by the program's stream when it reaches the start.
    begin: Word32,
    /// Written by the collective's stream at the end.
    end: Word32,
    starts: u32,
}

impl Handshake {
    fn new() -> Result<Self, Failure> {
        let memory = PinnedMemory::allocate(2 * size_of::<u32>());
        let memory = memory.map_err(|source| gdsync::Error::Memory { len: 2 * size_of::<u32>(), source })?;
        let word = |at: usize| Word32::new(&memory, at * size_of::<u32>()).map_err(gdsync::Error::from);
        Ok(Handshake { begin: word(0)?, end: word(1)?, starts: 0 })
    }
}

/// A matched collective. Its group has the sends of all rounds, and then their receives.
#[derive(Debug)]
pub(crate) struct Collective {
    group: PersistentGroup,
    sends: usize,
    rounds: Vec<Round>,
    /// The operands of the reduction; none for a barrier.
    operands: Option<Operands>,
    /// Keeps the memory that computations use by address.
    regions: Vec<Region>,
    handshake: Handshake,
    /// Made with the first start on a software stream.
    soft: Option<Stream<SoftStream>>,
    cuda: Option<CudaComputer>,
}

impl Collective {
    fn new(
        schedule: &Schedule,
        connections: &[(Side, &Connection)],
        (region, arrived): (Region, Region),
        operands: Option<Operands>,
        cuda: Option<CudaComputer>,
    ) -> Result<Self, Failure> {
        let connection = |peer: u32, sends: bool| {
            let is_it = |(side, _): &&(Side, &Connection)| side.rank == peer && side.sends == sends;
            let text = "a collective has no leg for a message of its schedule";
            connections.iter().find(is_it).map(|(_, one)| one).ok_or_else(|| Failure::new(Class::Other, text))
        };
        let (mut sends, mut receives, mut rounds) = (Vec::new(), Vec::new(), Vec::new());
        let mut started = 0;
        for (number, round) in schedule.rounds.iter().enumerate() {
            let (sent, received) = (sends.len(), receives.len());
            let mut then = None;
            if let Some(Send { peer, bytes }) = &round.send {
                let slices = region.slices(bytes.clone())?;
                sends.push(PersistentSend::send(&connection(*peer, true)?.queue_pair, &slices)?);
            }
            if let Some(Receive { peer, bytes, into }) = &round.receive {
                let (slices, computation) = match *into {
                    Target::Output => (region.slices(bytes.clone())?, None),
                    Target::Arrivals(from) => {
                        let computation = Computation::Reduce { bytes: bytes.clone(), from };
                        (
                            arrived.slices(from..from + bytes.len())?,
                            (!bytes.is_empty()).then_some(computation),
                        )
                    }
                };
                receives.push(PersistentRecv::new(&connection(*peer, false)?.queue_pair, &slices)?);
                then = computation;
            }
            let starts = started..schedule.started(number);
            started = starts.end;
            rounds.push(Round { send: sent..sends.len(), receive: received..receives.len(), starts, then });
        }
        let number = sends.len();
        let group =
            sends.into_iter().map(Persistent::Send).chain(receives.into_iter().map(Persistent::Receive));
        Ok(Collective {
            group: PersistentGroup::new(group.collect()),
            sends: number,
            rounds,
            operands,
            regions: vec![region, arrived],
            handshake: Handshake::new()?,
            soft: None,
            cuda,
        })
    }

    pub(crate) fn barrier(
        connections: &[(Side, &Connection)],
        (rank, size): (u32, u32),
    ) -> Result<Self, Failure> {
        let cuda = gpu_for(None)?.map(|gpu| CudaComputer::new(&gpu, None)).transpose()?;
        Collective::new(&barrier(rank, size), connections, (Region::Empty, Region::Empty), None, cuda)
    }

    /// Refuses a stream on which the collective cannot be started.
    pub(crate) fn check(&self, program: &AnyStream) -> Result<(), Failure> {
        select(self.cuda.as_ref(), program, self.operands.as_ref()).map(drop)
    }

    /// Starts the collective in the order of the program's stream.
    pub(crate) fn start(&mut self, program: &AnyStream, mut meanwhile: impl FnMut()) -> Result<(), Failure> {
        // The last start may be on another queue, whose stream has not reached it: its word would come after this one's.
        let begin = match self.is_idle() {
            Ok(false) => {
                Batch::new().wait_value32(&self.handshake.end, Condition::Geq, self.handshake.starts)
            }
            _ => Batch::new(),
        };
        let Collective { group, sends, rounds, operands, handshake, soft, cuda, .. } = self;
        let operands = operands.as_ref();
        let cuda = select(cuda.as_ref(), program, operands)?;
        let soft = match (cuda, &soft) {
            (None, None) => Some(&*soft.insert(Stream::new(SoftStream::new()?)?)),
            _ => soft.as_ref(),
        };
        let number = handshake.starts.wrapping_add(1);
        program.post(begin.write_value32(&handshake.begin, number), &mut meanwhile)?;
        handshake.starts = number;
        match (cuda, soft) {
            (Some(cuda), _) => {
                let compute = |computation: &Computation| match operands {
                    // SAFETY: the collective keeps the memory, and leaks it if it is dropped before the stream is idle. The
                    // caller of `Request::new` keeps the program's buffers until the work has ended.
                    Some(operands) => unsafe { cuda.compute(computation, operands) },
                    None => Ok(()),
                };
                run(&cuda.stream, group.all.split_at_mut(*sends), rounds, handshake, compute, meanwhile)
            }
            (None, Some(stream)) => {
                let compute = |computation: &Computation| match operands {
                    Some(operands) => compute_on_cpu(stream, computation, operands),
                    None => Ok(()),
                };
                run(stream, group.all.split_at_mut(*sends), rounds, handshake, compute, meanwhile)
            }
            (None, None) => Ok(()),
        }
    }

    /// Makes the program's stream wait for the end of the newest start.
    pub(crate) fn wait(&self, program: &AnyStream, meanwhile: impl FnMut()) -> Result<(), Failure> {
        let Handshake { end, starts, .. } = &self.handshake;
        program.post(Batch::new().wait_value32(end, Condition::Geq, *starts), meanwhile)
    }

    /// Once the newest start has ended, returns the first failure since the last outcome, if there is one.
    pub(crate) fn outcome(&mut self) -> Option<Result<u64, Failure>> {
        match self.is_idle() {
            Ok(true) => self.group.outcome(),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Returns whether the collective's streams are idle. Asking also ends their work for failed queue pairs.
    pub(crate) fn is_idle(&self) -> Result<bool, Failure> {
        let soft = self.soft.as_ref().map(|stream| stream.synchronize_timeout(Duration::ZERO)).transpose()?;
        let cuda =
            self.cuda.as_ref().map(|cuda| cuda.stream.synchronize_timeout(Duration::ZERO)).transpose()?;
        Ok(soft != Some(false) && cuda != Some(false))
    }
}

impl Drop for Collective {
    /// Leaks memory that kernels may still use.
    fn drop(&mut self) {
        if self.cuda.is_some() && !matches!(self.is_idle(), Ok(true)) {
            tracing::warn!("a collective is dropped that has not ended: its memory stays");
            std::mem::forget((std::mem::take(&mut self.regions), self.operands.take()));
        }
    }
}

/// Enqueues a start on the collective's own stream: its rounds, and its end, for which streams wait even if a round is refused.
fn run<B: MemOpStream>(
    stream: &Stream<B>,
    persistent: (&mut [Persistent], &mut [Persistent]),
    rounds: &[Round],
    handshake: &Handshake,
    compute: impl Fn(&Computation) -> Result<(), Failure>,
    mut meanwhile: impl FnMut(),
) -> Result<(), Failure> {
    let begin = Batch::new().wait_value32(&handshake.begin, Condition::Geq, handshake.starts);
    post(stream, begin, &mut meanwhile)?;
    let done = run_rounds(stream, persistent, rounds, compute, &mut meanwhile);
    done.and(post(stream, Batch::new().write_value32(&handshake.end, handshake.starts), meanwhile))
}

fn run_rounds<B: MemOpStream>(
    stream: &Stream<B>,
    (sends, receives): (&mut [Persistent], &mut [Persistent]),
    rounds: &[Round],
    compute: impl Fn(&Computation) -> Result<(), Failure>,
    mut meanwhile: impl FnMut(),
) -> Result<(), Failure> {
    compute(&Computation::Copy)?;
    for Round { send, receive, starts, then } in rounds {
        let started = receives[starts.clone()].iter_mut().chain(&mut sends[send.clone()]);
        start(stream, &mut started.map(Persistent::request).collect::<Vec<_>>(), &mut meanwhile)?;
        let awaited = sends[send.clone()].iter_mut().chain(&mut receives[receive.clone()]);
        wait(stream, &mut awaited.map(Persistent::request).collect::<Vec<_>>(), &mut meanwhile)?;
        then.iter().try_for_each(&compute)?;
    }
    Ok(())
}
