//! A collective among the ranks of a team, made once, and posted once for each round.

use crate::collective::error::CollectiveError;
use crate::collective::kernel::{Blocks, Kernel};
use crate::collective::reduce::{CollectiveStream, Reducer, Reduction};
use crate::collective::schedule::{Area, Copy, Program, Step};
use crate::collective::shape::{Collective, Layout};
use crate::error::NotifyError;
use crate::handshake::share_outcome;
use crate::liveness::RankState;
use crate::notifications::PHASES;
use crate::queue::Operation;
use crate::queue::Queue;
use crate::segment::Segment;
use crate::word::NotificationWord;
use gdsync::cudarc::driver::CudaContext;
use gdsync::memop::Condition;
use gdsync::{Batch, Stream};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Requests that a round gives to a stream at a time. Queues take more: 128 by default.
const REQUESTS: usize = 64;
/// In a long message, one request in this many is completed by itself, so that the queue's room comes back.
const COMPLETE_EVERY: usize = 32;

/// A [`Collective`] that the members of a team have agreed on. A cheap handle.
///
/// [`Self::post`] posts a round on a stream; the ranks post the same plans in the same order. Rounds use two halves of the
/// plan's memory in turn, so that no rank needs to ask another whether it has read what it got. For that, what the program
/// does with them stands between two rounds, in the order of the stream:
///
/// - [`Self::output`] of round `r` is used behind round `r`, and in front of round `r + 1`, which lets the others overwrite it;
/// - [`Self::input`] of round `r` is written behind round `r - 1`, and in front of round `r`. It keeps its content until round
///   `r + 1` has been passed.
#[derive(Clone, Debug)]
pub struct Plan {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    collective: Collective,
    queue: Queue,
    segment: Segment,
    /// The ranks that take part.
    members: Vec<u32>,
    /// The place of this rank among them.
    own: u32,
    program: Program,
    /// Of the members, where the plan lies in their part of the segment, and its first notification there.
    locations: Vec<Location>,
    /// This rank's own words.
    words: Vec<NotificationWord>,
    reducer: Option<Arc<Reducer>>,
    round: AtomicU64,
    /// A round was posted in part. Held while a round is posted.
    is_broken: Mutex<bool>,
}

impl Plan {
    /// All members call this together. The plan lies behind so many bytes of the own part of the segment, and notifications.
    /// Reductions on streams of a GPU in host memory need that GPU.
    pub(crate) fn new(
        queue: &Queue,
        segment: &Segment,
        at: (usize, u32),
        collective: Collective,
        gpu: Option<&Arc<CudaContext>>,
    ) -> Result<Self, CollectiveError> {
        let reduced = match collective {
            Collective::ReduceScatter { block, element, operation } => Some((block, element, operation)),
            _ => None,
        };
        let kernel = || match (reduced, segment.context().as_ref().or(gpu)) {
            (Some((_, element, operation)), Some(context)) => {
                Ok(Some(Kernel::new(context, segment, element, operation)?))
            }
            _ => Ok(None),
        };
        let (Agreed { members, own, locations }, kernel) = agree(queue, segment, at, &collective, kernel)?;
        let ranks = members.len() as u32;
        let ids = at.1..at.1 + collective.notifications(ranks);
        segment.expect_from_all(ids.clone())?;
        let words = ids.map(|id| Ok(segment.notification(id)?.named(collective.to_string())));
        let reducer = reduced.map(|(block, element, operation)| {
            let segment = segment.clone();
            Arc::new(Reducer::new(segment, (element, operation), block, (ranks, own), kernel))
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

    /// What it does.
    pub fn collective(&self) -> Collective {
        self.inner.collective
    }

    /// The ranks that take part, in the order of blocks.
    pub fn members(&self) -> &[u32] {
        &self.inner.members
    }

    /// The segment in which input and output lie.
    pub fn segment(&self) -> &Segment {
        &self.inner.segment
    }

    /// The round that is posted next, from 0 on.
    pub fn round(&self) -> u64 {
        self.inner.round.load(Ordering::Acquire)
    }

    /// The bytes of the segment that are this rank's input of a round: of an all-gather its block, of an all-to-all and a
    /// reduce-scatter a block for each member, of a broadcast the bytes of the root, empty on others.
    pub fn input(&self, round: u64) -> Range<usize> {
        let Inner { collective, members, own, .. } = &*self.inner;
        let (ranks, block) = (members.len(), collective.block());
        let (area, first, blocks) = match *collective {
            Collective::Barrier => (Area::Input, 0, 0),
            Collective::AllGather { .. } => (Area::Output, *own, 1),
            Collective::AllToAll { .. } | Collective::ReduceScatter { .. } => (Area::Input, 0, ranks),
            Collective::Broadcast { root, .. } => {
                (Area::Output, 0, usize::from(members[*own as usize] == root))
            }
        };
        let start = self.inner.layout().at(area, round, first);
        start..start + blocks * block
    }

    /// The bytes of the segment that are this rank's output of a round: a block of each member, the block that
    /// was made of those of all, or the bytes of the root.
    pub fn output(&self, round: u64) -> Range<usize> {
        let Inner { collective, members, .. } = &*self.inner;
        let blocks = match collective {
            Collective::Barrier => 0,
            Collective::AllGather { .. } | Collective::AllToAll { .. } => members.len(),
            Collective::ReduceScatter { .. } | Collective::Broadcast { .. } => 1,
        };
        let start = self.inner.layout().at(Area::Output, round, 0);
        start..start + blocks * collective.block()
    }

    /// Posts the next round on a stream, and returns how many memory operations that took. Waits for room in the queue and
    /// in the stream, for up to [`TeamConfig::timeout`](crate::TeamConfig::timeout) each.
    ///
    /// The stream waits for the other ranks. When one of them is dead, it goes on: [`Self::check`] says so.
    ///
    /// # Errors
    /// [`NotifyError::PeerDead`], while a member is dead and not dropped; [`CollectiveError::Ended`]
    /// afterwards; [`CollectiveError::NoKernel`], [`CollectiveError::RawStream`], [`CollectiveError::OtherGpu`],
    /// [`CollectiveError::Enqueue`], of a reduction; [`CollectiveError::Post`]; as [`Queue::prepare`]. After an error the same round may be posted again,
    /// unless it was posted in part: then that is [`CollectiveError::Broken`].
    pub fn post<B: CollectiveStream>(&self, stream: &Stream<B>) -> Result<usize, CollectiveError> {
        let inner = &*self.inner;
        let mut is_broken = inner.is_broken.lock();
        inner.check_usable(*is_broken)?;
        let round = self.round();
        let reduction = inner.reduction(round);
        reduction.iter().try_for_each(|one| stream.check_reduction(one))?;
        let mut posted = PostedRound { round, operations: 0, has_begun: false };
        let given = inner.post_steps(round, |batch| posted.post(stream, batch, inner.queue.team.timeout));
        let done = given.and_then(|()| match reduction {
            Some(reduction) => posted.reduce(stream, inner, &reduction),
            None => Ok(()),
        });
        *is_broken = done.is_err() && posted.has_begun;
        done?;
        inner.round.store(round + 1, Ordering::Release);
        Ok(posted.operations)
    }

    /// Whether the rounds that streams have passed were whole: after a stream was synchronized, this says whether the
    /// outputs of its rounds are what the collective says.
    ///
    /// # Errors
    /// [`NotifyError::PeerDead`] if a member is dead, and the streams' waits were released;
    /// [`CollectiveError::Ended`] after the team has gone on without it; [`CollectiveError::Reduction`].
    pub fn check(&self) -> Result<(), CollectiveError> {
        self.inner.check_usable(*self.inner.is_broken.lock())
    }
}

/// What a stream was given of a round.
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
        // A word of the segment is set once more to what the stream has waited for. No rank sets it before this rank's next round.
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

    /// This rank's notifications.
    fn ids(&self) -> Range<u32> {
        let first = self.locations[self.own as usize].first_word;
        first..first + self.words.len() as u32
    }

    /// NotificationWords of a rank for one round.
    fn words_of_round(&self) -> u32 {
        self.words.len() as u32 / 2
    }

    fn check_usable(&self, is_broken: bool) -> Result<(), CollectiveError> {
        if let Some(rank) = self.segment.released_for(self.ids()) {
            return Err(match self.queue.team.liveness.state(rank) {
                RankState::Dead(cause) => NotifyError::PeerDead { rank, cause }.into(),
                RankState::Alive | RankState::Dropped(_) => CollectiveError::Ended { rank },
            });
        }
        self.queue.team.liveness.check_none_dead()?;
        if self.reducer.as_ref().is_some_and(|one| one.has_failed()) {
            return Err(CollectiveError::Reduction);
        }
        if is_broken { Err(CollectiveError::Broken) } else { Ok(()) }
    }

    /// The reduction of a round, if there is one.
    fn reduction(&self, round: u64) -> Option<Reduction> {
        let (layout, own) = (self.layout(), self.own);
        let blocks = Blocks {
            own: layout.at(Area::Input, round, own),
            others: layout.at(Area::Arrived, round, 0),
            result: layout.at(Area::Output, round, 0),
        };
        self.reducer.clone().map(|reducer| Reduction { reducer, blocks })
    }

    /// Prepares the steps of a round, and hands them on in pieces.
    fn post_steps(
        &self,
        round: u64,
        mut post: impl FnMut(Batch) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let (mut batch, mut requests) = (Batch::new(), 0);
        for step in &self.program {
            match step {
                Step::Send { to, copies, word } => {
                    for (count, copy) in (1..).zip(copies) {
                        batch = self.write(batch, round, *to, copy, count % COMPLETE_EVERY == 0)?;
                        requests += 1;
                        if requests >= REQUESTS {
                            post(std::mem::take(&mut batch))?;
                            requests = 0;
                        }
                    }
                    batch = self.set(batch, round, *to, *word)?;
                    requests += 1;
                }
                Step::Wait { word } => batch = self.wait(batch, round, *word),
                Step::WaitForLast { word } => {
                    if let Some(before) = round.checked_sub(1) {
                        batch = self.wait(batch, before, *word);
                    }
                }
            }
            if requests >= REQUESTS {
                post(std::mem::take(&mut batch))?;
                requests = 0;
            }
        }
        if batch.is_empty() { Ok(()) } else { post(batch) }
    }

    fn write(
        &self,
        batch: Batch,
        round: u64,
        to: u32,
        copy: &Copy,
        completes: bool,
    ) -> Result<Batch, CollectiveError> {
        let len = copy.blocks as usize * self.collective.block();
        if len == 0 {
            return Ok(batch);
        }
        let start = self.layout().at(copy.from.0, round, copy.from.1);
        let offset = self.locations[to as usize].layout.at(copy.to.0, round, copy.to.1) as u64;
        let from = self.segment.slice(start..start + len)?;
        let rank = self.members[to as usize];
        let write = Operation::Write { from: &from, rank, to: &self.segment, offset };
        Ok(batch.send(self.queue.prepare_one(write, completes)?))
    }

    fn set(&self, batch: Batch, round: u64, to: u32, word: u32) -> Result<Batch, CollectiveError> {
        let id = self.locations[to as usize].first_word + self.word(round, word);
        let rank = self.members[to as usize];
        let notify = Operation::Notify { rank, to: &self.segment, id, value: phase(round) };
        Ok(batch.send(self.queue.prepare_one(notify, true)?))
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

/// The value of words in a round: of the rounds that set the same word, each has another than the one before, so that no word
/// needs to be cleared.
fn phase(round: u64) -> u32 {
    PHASES[(round / 2 % 2) as usize]
}

/// Where a plan lies in a rank's part of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) layout: Layout,
    pub(crate) first_word: u32,
}

/// What all ranks know of a plan.
#[derive(Debug)]
pub(crate) struct Agreed {
    /// The ranks that take part.
    pub(crate) members: Vec<u32>,
    /// The place of this rank among them.
    pub(crate) own: u32,
    /// Of the members.
    pub(crate) locations: Vec<Location>,
}

/// All members of the team call this together. The plan lies behind `at` bytes and notifications of this rank's part of the
/// segment. `prepare` is what else this rank needs for it. What fails on one rank is an error on all.
pub(crate) fn agree<T>(
    queue: &Queue,
    segment: &Segment,
    at: (usize, u32),
    collective: &Collective,
    prepare: impl FnOnce() -> Result<T, CollectiveError>,
) -> Result<(Agreed, T), CollectiveError> {
    let team = &queue.team;
    let members = team.liveness.members();
    let whole = team.liveness.check_none_dead().map_err(CollectiveError::from);
    let prepared =
        whole.and_then(|()| check_local(segment, &members, at, collective)).and_then(|()| prepare());
    let described = prepared.map(|done| (done, format!("{} {} {collective}", at.0, at.1)));
    let (done, lines) = share_outcome(described, |line| team.exchange(line))?;
    let ranks = members.len() as u32;
    let place = |rank: u32| {
        let line = lines.get(rank as usize).and_then(Option::as_deref).unwrap_or_default();
        parse_location(line, collective, ranks).ok_or_else(|| NotifyError::Mismatch {
            rank,
            what: "as the next collective",
            theirs: line.splitn(3, ' ').last().unwrap_or_default().to_owned(),
            ours: collective.to_string(),
        })
    };
    let locations = members.iter().map(|rank| place(*rank)).collect::<Result<Vec<_>, _>>()?;
    let own = members.iter().position(|rank| *rank == team.rank).unwrap_or(0) as u32;
    Ok((Agreed { members, own, locations }, done))
}

/// What this rank alone can say.
fn check_local(
    segment: &Segment,
    members: &[u32],
    (from, first): (usize, u32),
    collective: &Collective,
) -> Result<(), CollectiveError> {
    collective.check(members)?;
    if let Collective::ReduceScatter { element, .. } = *collective {
        let address = segment.remote(segment.rank())?.data.addr;
        if !address.is_multiple_of(element.bytes() as u64) {
            return Err(CollectiveError::Unaligned { address, element });
        }
    }
    let ranks = members.len() as u32;
    let (needed, size) = (collective.bytes(ranks), segment.len());
    if from.checked_add(needed).is_none_or(|end| end > size) {
        return Err(CollectiveError::Bytes { needed, from, size });
    }
    let (needed, count) = (collective.notifications(ranks), segment.notifications());
    if first.checked_add(needed).is_none_or(|end| end > count) {
        return Err(CollectiveError::Notifications { needed, from: first, count });
    }
    match (first..first + needed).find(|id| segment.is_expected_from_all(*id)) {
        Some(id) => Err(CollectiveError::Taken { id }),
        None => Ok(()),
    }
}

/// Reads where another rank has the same plan; `None` where it is not the same.
fn parse_location(line: &str, collective: &Collective, ranks: u32) -> Option<Location> {
    let mut fields = line.splitn(3, ' ');
    let (bytes, words) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let layout = Layout::new(collective, ranks, bytes);
    (fields.next()? == collective.to_string()).then_some(Location { layout, first_word: words })
}
