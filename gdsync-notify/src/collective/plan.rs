//! Plans: collectives that the ranks of a team agree on once and post once per round.

use crate::collective::agreement::{Agreed, Location, agree};
use crate::collective::error::CollectiveError;
use crate::collective::kernel::{Blocks, Kernel};
use crate::collective::reduce::{CollectiveStream, Reducer, Reduction};
use crate::collective::shape::{Collective, Layout};
use crate::collective::step::{Area, Copy, Program, Step};
use crate::error::NotifyError;
use crate::initiator::Posting;
use crate::liveness::RankState;
use crate::notifications::PHASES;
use crate::queue::{Operation, Queue};
use crate::segment::Segment;
use crate::word::NotificationWord;
use gdsync::cudarc::driver::CudaContext;
use gdsync::memop::Condition;
use gdsync::{Batch, Stream};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Requests that a round posts at a time. Queues hold more: 128 by default.
const REQUESTS: usize = 64;
/// In a long message, one request in this many is signaled, so that room in the queue returns.
const COMPLETE_EVERY: usize = 32;

/// A [`Collective`] that the members of a team have agreed on. It is a cheap handle. The [module](crate::collective)
/// has an example.
///
/// [`Self::post`] posts a round on a stream; the ranks post the same plans in the same order. Rounds alternate between
/// two halves of the plan's memory, so that no rank asks another whether it has read its data. Therefore the program
/// uses them between two rounds, in the order of the stream:
///
/// - [`Self::output`] of round `r` is used behind round `r` and before round `r + 1`, which lets the others overwrite it;
/// - [`Self::input`] of round `r` is written behind round `r - 1` and before round `r`. It keeps its content until
///   round `r + 1` has been passed.
#[derive(Clone, Debug)]
pub struct Plan {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    collective: Collective,
    queue: Queue,
    segment: Segment,
    members: Vec<u32>,
    own: u32,
    program: Program,
    /// For each member, the plan's location in its part of the segment.
    locations: Vec<Location>,
    words: Vec<NotificationWord>,
    reducer: Option<Arc<Reducer>>,
    round: AtomicU64,
    /// True if a round was posted in part. Locked while a round is posted.
    is_broken: Mutex<bool>,
}

impl Plan {
    /// Creates the plan together with all members, behind so many bytes and notifications of this rank's part of the
    /// segment. `gpu` is the GPU of reductions in host memory.
    pub(crate) fn new(
        queue: &Queue,
        segment: &Segment,
        at: (usize, u32),
        collective: Collective,
        gpu: Option<&Arc<CudaContext>>,
    ) -> Result<Self, CollectiveError> {
        let reduced = collective.reduction();
        let kernel = || match (reduced, segment.context().as_ref().or(gpu)) {
            (Some((element, operation)), Some(context)) => {
                Ok(Some(Kernel::new(context, segment, element, operation)?))
            }
            _ => Ok(None),
        };
        let (Agreed { members, own, locations }, kernel) = agree(queue, segment, at, &collective, kernel)?;
        let ranks = members.len() as u32;
        let ids = at.1..at.1 + collective.notifications(ranks);
        segment.expect_from_all(ids.clone())?;
        let words = ids.map(|id| Ok(segment.notification(id)?.named(collective.to_string())));
        let reducer = reduced.map(|(element, operation)| {
            let (segment, has_failed) = (segment.clone(), AtomicBool::default());
            Arc::new(Reducer { segment, element, operation, kernel, has_failed })
        });
        let inner = Inner {
            collective,
            queue: queue.clone(),
            segment: segment.clone(),
            own,
            program: collective.program(&members, own),
            members,
            locations,
            words: words.collect::<Result<_, NotifyError>>()?,
            reducer,
            round: AtomicU64::new(0),
            is_broken: Mutex::default(),
        };
        Ok(Plan { inner: Arc::new(inner) })
    }

    /// Returns the collective.
    pub fn collective(&self) -> Collective {
        self.inner.collective
    }

    /// Returns the participating ranks, in the order of blocks.
    pub fn members(&self) -> &[u32] {
        &self.inner.members
    }

    /// Returns the segment of input and output.
    pub fn segment(&self) -> &Segment {
        &self.inner.segment
    }

    /// Returns the number of the next round, from 0 on.
    pub fn round(&self) -> u64 {
        self.inner.round.load(Ordering::Acquire)
    }

    /// Returns the segment's bytes of this rank's input of a round: for an all-gather its block, for an all-to-all and
    /// a reduce-scatter a block for each member, for an all-reduce the numbers, which the output replaces, for a broadcast the root's bytes, empty on
    /// other ranks.
    pub fn input(&self, round: u64) -> Range<usize> {
        let Inner { collective, members, own, .. } = &*self.inner;
        let (ranks, block) = (members.len(), collective.block());
        let (area, first, blocks) = match *collective {
            Collective::Barrier => (Area::Input, 0, 0),
            Collective::AllGather { .. } => (Area::Output, *own, 1),
            Collective::AllReduce { len, .. } => (Area::Output, 0, len / block),
            Collective::AllToAll { .. } | Collective::ReduceScatter { .. } => (Area::Input, 0, ranks),
            Collective::Broadcast { root, .. } => {
                (Area::Output, 0, usize::from(members[*own as usize] == root))
            }
        };
        let start = self.inner.layout().at(area, round, first);
        start..start + blocks * block
    }

    /// Returns the segment's bytes of this rank's output of a round: each member's block, the reduced block or numbers, or
    /// the root's bytes.
    pub fn output(&self, round: u64) -> Range<usize> {
        let Inner { collective, members, .. } = &*self.inner;
        let blocks = match collective {
            Collective::Barrier => 0,
            Collective::AllGather { .. } | Collective::AllToAll { .. } => members.len(),
            Collective::ReduceScatter { .. } | Collective::Broadcast { .. } => 1,
            Collective::AllReduce { len, .. } => len / collective.block(),
        };
        let start = self.inner.layout().at(Area::Output, round, 0);
        start..start + blocks * collective.block()
    }

    /// Posts the next round on a stream, and returns the number of its memory operations. Waits for room in the queue
    /// and in the stream, for up to [`TeamConfig::timeout`](crate::TeamConfig::timeout) each.
    ///
    /// The stream waits for the other ranks. If one of them dies, the stream goes on, and [`Self::check`] reports it.
    ///
    /// # Errors
    /// [`NotifyError::PeerDead`] while a member is dead and not dropped, and [`CollectiveError::Ended`] afterwards;
    /// [`CollectiveError::NoKernel`], [`CollectiveError::RawStream`], [`CollectiveError::OtherGpu`] and
    /// [`CollectiveError::Enqueue`] of a reduction; [`CollectiveError::Post`]; as [`Queue::prepare`]. After an error
    /// the same round may be posted again, unless it was posted in part: then that is [`CollectiveError::Broken`].
    pub fn post<B: CollectiveStream>(&self, stream: &Stream<B>) -> Result<usize, CollectiveError> {
        let inner = &*self.inner;
        let mut is_broken = inner.is_broken.lock();
        inner.check_usable(*is_broken)?;
        let round = self.round();
        let reduction = inner.reduction(inner.arrived(round));
        reduction.iter().try_for_each(|one| stream.check_reduction(one))?;
        let mut posted = PostedRound { round, operations: 0, has_begun: false };
        let done = inner.post_steps(&mut posted, stream);
        *is_broken = done.is_err() && posted.has_begun;
        done?;
        inner.round.store(round + 1, Ordering::Release);
        Ok(posted.operations)
    }

    /// Checks the rounds that streams have passed: `Ok`, once a stream is synchronized, means that its outputs are
    /// complete. It also finds deaths, and connections between other ranks that have failed, which only other ranks have found
    /// and whose released streams may forward incomplete data. A cause of which the message could not arrive, because this
    /// process was stopped and its card had no receives left, stays unknown here.
    ///
    /// # Errors
    /// [`NotifyError::PeerDead`] if a member is dead, or [`NotifyError::Failed`] if all connections with it have failed,
    /// and the streams' waits were released; [`CollectiveError::Cut`] if all connections between two other members have
    /// failed; [`CollectiveError::Ended`] after the team has gone on without it; [`CollectiveError::Reduction`] if a reduction has failed.
    pub fn check(&self) -> Result<(), CollectiveError> {
        let team = &self.inner.queue.team;
        // A message of a death is here before incomplete data is: see `Control::release`.
        let mut control = team.control.lock();
        control.poll(&team.liveness);
        let cut = control.cut_among(&self.inner.members);
        drop(control);
        self.inner.check_usable(*self.inner.is_broken.lock())?;
        cut.map_or(Ok(()), |ranks| Err(CollectiveError::Cut { ranks }))
    }
}

struct PostedRound {
    round: u64,
    operations: usize,
    has_begun: bool,
}

impl PostedRound {
    fn post<B: CollectiveStream>(
        &mut self,
        stream: &Stream<B>,
        batch: Batch,
        timeout: Duration,
    ) -> Result<(), CollectiveError> {
        let done = stream.post_timeout(batch, timeout).map_err(|error| {
            self.has_begun |= error.posted > 0;
            CollectiveError::Post { round: self.round, source: error.source }
        })?;
        self.operations += done.operations;
        self.has_begun = true;
        Ok(())
    }

    fn reduce<B: CollectiveStream>(
        &mut self,
        stream: &Stream<B>,
        plan: &Inner,
        reduction: &Reduction,
    ) -> Result<(), CollectiveError> {
        if !stream.reduce(reduction)? {
            return Ok(());
        }
        self.has_begun = true;
        // Store the awaited value again: this batch keeps the segment. No rank sets the word before this rank's next round.
        let word = Batch::new();
        let named = match plan.words.get(plan.word(self.round, 0) as usize) {
            Some(NotificationWord::Host(one)) => word.write_value32(one, phase(self.round)),
            Some(NotificationWord::Gpu(one)) => word.write_value32(one, phase(self.round)),
            None => word,
        };
        let kept = self.post(stream, named, plan.queue.team.timeout);
        if kept.is_err() {
            // The kernel may still run, and nothing else keeps its memory.
            std::mem::forget(plan.segment.clone());
        }
        kept
    }
}

impl Inner {
    fn layout(&self) -> &Layout {
        &self.locations[self.own as usize].layout
    }

    fn ids(&self) -> Range<u32> {
        let first = self.locations[self.own as usize].first_word;
        first..first + self.words.len() as u32
    }

    fn words_of_round(&self) -> u32 {
        self.words.len() as u32 / 2
    }

    fn check_usable(&self, is_broken: bool) -> Result<(), CollectiveError> {
        if let Some(rank) = self.segment.released_for(self.ids()) {
            return Err(match self.queue.team.liveness.state(rank) {
                RankState::Dropped(_) => CollectiveError::Ended { rank },
                _ => match self.queue.team.liveness.check_released(rank) {
                    Err(error) => error.into(),
                    Ok(()) => CollectiveError::Ended { rank },
                },
            });
        }
        self.queue.team.liveness.check_none_dead()?;
        if self.reducer.as_ref().is_some_and(|one| one.has_failed()) {
            return Err(CollectiveError::Reduction);
        }
        if is_broken { Err(CollectiveError::Broken) } else { Ok(()) }
    }

    fn reduction(&self, blocks: Blocks) -> Option<Reduction> {
        self.reducer.clone().map(|reducer| Reduction { reducer, blocks })
    }

    /// This rank's block of the input, and those of the others, which have arrived.
    fn arrived(&self, round: u64) -> Blocks {
        let (layout, own) = (self.layout(), self.own);
        Blocks {
            own: layout.at(Area::Input, round, own),
            others: layout.at(Area::Arrived, round, 0),
            result: layout.at(Area::Output, round, 0),
            len: self.collective.block(),
            ranks: self.members.len() as u32,
            place: own,
        }
    }

    /// Blocks of the output, and those that have arrived for them.
    fn arrived_for(&self, round: u64, into: u32, from: u32, count: u32) -> Blocks {
        let (len, output) =
            (count as usize * self.collective.block(), self.layout().at(Area::Output, round, into));
        let other = self.layout().at(Area::Arrived, round, from);
        // This rank is the first of two, so the other is the second of `others`.
        Blocks { own: output, others: other.wrapping_sub(len), result: output, len, ranks: 2, place: 0 }
    }

    /// Prepares the steps of a round and posts them in batches, with reductions behind or between them.
    fn post_steps<B: CollectiveStream>(
        &self,
        posted: &mut PostedRound,
        stream: &Stream<B>,
    ) -> Result<(), CollectiveError> {
        let (round, timeout) = (posted.round, self.queue.team.timeout);
        let (mut batch, mut requests) = (Batch::new(), 0);
        for step in &self.program {
            match step {
                Step::Send { to, copies, word } => {
                    for (count, copy) in (1..).zip(copies) {
                        let sends;
                        (batch, sends) = self.write(batch, round, *to, copy, count % COMPLETE_EVERY == 0)?;
                        requests += sends;
                        if requests >= REQUESTS {
                            posted.post(stream, std::mem::take(&mut batch), timeout)?;
                            requests = 0;
                        }
                    }
                    let sends;
                    (batch, sends) = self.set(batch, round, *to, *word)?;
                    requests += sends;
                }
                Step::Wait { word } => batch = self.wait(batch, round, *word),
                Step::WaitForLast { word } => {
                    if let Some(before) = round.checked_sub(1) {
                        batch = self.wait(batch, before, *word);
                    }
                }
                Step::WaitSent { to } => {
                    let waits = self.queue.prepare_waits(self.members[*to as usize])?;
                    batch = waits.into_iter().fold(batch, Batch::wait);
                }
                Step::Reduce { into, from, count } => {
                    posted.post(stream, std::mem::take(&mut batch), timeout)?;
                    requests = 0;
                    let reduction = self.reduction(self.arrived_for(round, *into, *from, *count));
                    reduction.iter().try_for_each(|one| posted.reduce(stream, self, one))?;
                }
            }
            if requests >= REQUESTS {
                posted.post(stream, std::mem::take(&mut batch), timeout)?;
                requests = 0;
            }
        }
        if !batch.is_empty() {
            posted.post(stream, batch, timeout)?;
        }
        match self.collective {
            Collective::ReduceScatter { .. } => {
                let reduction = self.reduction(self.arrived(round));
                reduction.iter().try_for_each(|one| posted.reduce(stream, self, one))
            }
            _ => Ok(()),
        }
    }

    fn write(
        &self,
        batch: Batch,
        round: u64,
        to: u32,
        copy: &Copy,
        completes: bool,
    ) -> Result<(Batch, usize), CollectiveError> {
        let len = copy.blocks as usize * self.collective.block();
        if len == 0 {
            return Ok((batch, 0));
        }
        let start = self.layout().at(copy.from.0, round, copy.from.1);
        let offset = self.locations[to as usize].layout.at(copy.to.0, round, copy.to.1) as u64;
        let from = self.segment.slice(start..start + len)?;
        let rank = self.members[to as usize];
        let write = Operation::Write { from: &from, rank, to: &self.segment, offset };
        self.add(batch, write, completes)
    }

    fn set(&self, batch: Batch, round: u64, to: u32, word: u32) -> Result<(Batch, usize), CollectiveError> {
        let id = self.locations[to as usize].first_word + self.word(round, word);
        let rank = self.members[to as usize];
        let notify = Operation::Notify { rank, to: &self.segment, id, value: phase(round) };
        self.add(batch, notify, true)
    }

    /// Adds the sends of an operation to a batch. Returns their number.
    fn add(
        &self,
        batch: Batch,
        operation: Operation<'_>,
        signaled: bool,
    ) -> Result<(Batch, usize), CollectiveError> {
        let sends = self.queue.submit(operation, signaled, Posting::prepare)?;
        Ok(sends.fold((batch, 0), |(batch, count), send| (batch.send(send), count + 1)))
    }

    fn wait(&self, batch: Batch, round: u64, word: u32) -> Batch {
        match &self.words[self.word(round, word) as usize] {
            NotificationWord::Host(word) => batch.wait_value32(word, Condition::And, phase(round)),
            NotificationWord::Gpu(word) => batch.wait_value32(word, Condition::And, phase(round)),
        }
    }

    fn word(&self, round: u64, word: u32) -> u32 {
        (round % 2) as u32 * self.words_of_round() + word
    }
}

/// Returns a round's value of words. Successive uses of a word have different values, so no word needs clearing.
fn phase(round: u64) -> u32 {
    PHASES[(round / 2 % 2) as usize]
}
