//! A request: its plan, its legs, and, once it is matched, its work.

use crate::channel::Channel;
use crate::collective::{Chain, Side};
use crate::device::{Domain, domain};
use crate::error::{Class, Failure};
use crate::link::Link;
use crate::memory::{self, Region};
use crate::offer::{OFFER, Offer, read};
use crate::partitions::{Partitions, Route};
use crate::parts::{Parts, Readiness};
use crate::plan::Plan;
use crate::progress;
use crate::stream::PROBE_AFTER;
use gdsync::qp::CardWord;
use gdsync::{Access, MemoryRegion};
use gdsync_sys::pause::Pause;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ptr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Starts that a queue pair has room for, at least.
const DEPTH: u64 = 32;
/// How long a queue pair stays after its request was freed: a peer whose acknowledgement was lost sends again.
const GRACE: Duration = Duration::from_secs(2);

/// A message of a round, or, of a collective, a comparison. Of a transfer, C knows the peer.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) side: Side,
    channel: Option<Channel>,
    /// Of a transfer's sending side, where the card waits for words.
    word: Option<CardWord>,
    /// How often the transfer was started.
    starts: u64,
    theirs: Option<Offer>,
}

impl Leg {
    pub(crate) fn count_start(&mut self) {
        self.starts += 1;
    }

    /// Has the card ask whether the other side is there. A send that is held back goes; if its receive is not there, the
    /// card repeats it. (Where the card waits for the list, the receive may be there too early for that: another queue
    /// pair asks.)
    fn probe(&mut self) {
        if self.theirs.is_none() {
            return;
        }
        match (&self.word, &mut self.channel) {
            (_, Some(channel)) if channel.waits() => channel.probe(),
            (Some(word), _) => {
                if let Err(error) = word.raise(self.starts) {
                    tracing::warn!(%error, "a send that is held back stays so");
                }
            }
            (None, Some(channel)) if !self.side.sends => channel.probe(),
            _ => {}
        }
    }

    fn readiness(&self) -> Readiness {
        let theirs = self.theirs.as_ref().map(|theirs| theirs.memory).filter(|memory| memory.len > 0);
        match (&self.word, theirs) {
            (Some(word), _) => Readiness::Word(word.clone()),
            (None, Some(theirs)) => Readiness::Remote(theirs),
            (None, None) => Readiness::Unknown,
        }
    }
}

/// The work of a matched request.
#[derive(Debug)]
pub(crate) enum Work {
    Transfer(Parts),
    Collective(Box<Chain>),
    /// From the start on: a round may start before its sides have met.
    Partitioned(Partitions),
    /// The same of a link, and its messages.
    Link(Link),
}

impl Work {
    fn outcome(&mut self, channel: Option<&Channel>) -> Option<Result<u64, Failure>> {
        match self {
            Work::Transfer(parts) => parts.outcome(),
            Work::Collective(chain) => chain.outcome(),
            Work::Partitioned(partitions) => partitions.outcome(channel),
            Work::Link(link) => link.is_idle().then_some(Ok(0)),
        }
    }
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) legs: Vec<Leg>,
    region: Region,
    pub(crate) work: Option<Work>,
    /// The queue on which it was started, until that waits for it or the CPU has completed it.
    pub(crate) started_on: Option<usize>,
}

/// A request of the program.
#[derive(Debug)]
pub(crate) struct Request {
    plan: Plan,
    pub(crate) state: Mutex<State>,
}

impl Request {
    /// A request of which nothing is registered or made yet.
    ///
    /// # Safety
    /// The memory of the plan's buffers stays where it is until the request is freed and its work has ended. The
    /// program uses it between a start and the end of that only as MPI allows.
    pub(crate) unsafe fn new(plan: Plan) -> Self {
        let leg = |side| Leg { side, channel: None, word: None, starts: 0, theirs: None };
        let legs = plan.sides().into_iter().map(leg).collect();
        let work = match plan {
            Plan::Partitioned { sends, layout, .. } => {
                Some(Work::Partitioned(Partitions::new(sends, layout)))
            }
            Plan::Link { sends } => Some(Work::Link(Link::new(sends))),
            _ => None,
        };
        let state = State { legs, region: Region::Empty, work, started_on: None };
        Request { plan, state: Mutex::new(state) }
    }

    /// Makes this side of a leg, and says what the other side is sent.
    pub(crate) fn offer(&self, index: usize) -> Result<Offer, Failure> {
        let domain = domain()?;
        let state = &mut *self.state.lock();
        if index == 0 {
            self.register(domain, state)?;
        }
        let depth = DEPTH.max(2 * self.plan.work_requests(domain.part));
        let leg = leg(state, index)?;
        let (mut endpoint, mut life) = (None, None);
        if leg.side.carries {
            let waits = domain.starts_by_word && matches!(self.plan, Plan::Transfer { .. });
            let depth = u32::try_from(depth).unwrap_or(u32::MAX);
            let channel = Channel::new(domain, leg.side.sends, depth, waits)?;
            let most = channel.queue_pair.max_message();
            if domain.part > most {
                let text = format!(
                    "GDSYNC_MPI_PART_BYTES is {}, and the card's messages have at most {most}",
                    domain.part
                );
                return Err(Failure::new(Class::Argument, text));
            }
            let (own, probed) = channel.endpoints()?;
            (endpoint, life) = (Some(own), probed);
            leg.channel = Some(channel);
        }
        if matches!(self.plan, Plan::Transfer { sends: true, .. }) && domain.holds_sends {
            let region = MemoryRegion::allocate(
                &domain.pd,
                size_of::<u64>(),
                Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            )?;
            leg.word = Some(CardWord::in_region(&region, 0)?);
        }
        let word = leg.word.as_ref().map(CardWord::remote);
        let (shape, bytes) = (self.plan.shape(), self.plan.bytes());
        let memory = match self.plan {
            Plan::Partitioned { sends: false, .. } => state.region.remote(),
            _ => word.unwrap_or_else(|| Region::Empty.remote()),
        };
        let provider = domain.provider().to_owned();
        Ok(Offer { shape, bytes, part: domain.part, provider, endpoint, memory, life })
    }

    fn register(&self, domain: &Domain, state: &mut State) -> Result<(), Failure> {
        match self.plan {
            Plan::Transfer { sends, buffer } => {
                let access = if sends { Access::empty() } else { Access::LOCAL_WRITE };
                // SAFETY: the promise of `new`.
                state.region = unsafe { Region::register(&domain.pd, buffer, access) }?;
                Ok(())
            }
            Plan::Partitioned { sends, buffer, .. } => {
                let access = if sends { Access::empty() } else { Access::LOCAL_WRITE | Access::REMOTE_WRITE };
                // SAFETY: the promise of `new`.
                state.region = unsafe { Region::register(&domain.pd, buffer, access) }?;
                Ok(())
            }
            Plan::Link { .. } | Plan::Barrier { .. } => Ok(()),
            Plan::Allreduce { reduction, .. } => {
                let mut buffers = reduction.source.into_iter().chain([reduction.target]);
                buffers.try_for_each(|buffer| memory::gpu_of(buffer.address).map(drop))
            }
        }
    }

    /// Takes the other side's offer for a leg, and connects the leg.
    pub(crate) fn answer(&self, index: usize, line: &[u8; OFFER]) -> Result<(), Failure> {
        let (domain, theirs) = (domain()?, read(line)?);
        let state = &mut *self.state.lock();
        let leg = leg(state, index)?;
        let (shape, own) = (self.plan.shape(), self.plan.bytes());
        if theirs.shape != shape {
            let text = format!("this rank has {shape}, and the peer {}: all ranks do the same", theirs.shape);
            return Err(Failure::new(Class::Argument, text));
        }
        if theirs.part != domain.part {
            let text = format!(
                "GDSYNC_MPI_PART_BYTES is {}, and the peer's {}: set it alike for all ranks",
                domain.part, theirs.part
            );
            return Err(Failure::new(Class::Other, text));
        }
        let (message, capacity) = if leg.side.sends { (own, theirs.bytes) } else { (theirs.bytes, own) };
        if message > capacity {
            let text = format!("the message has {message} bytes, and the receive {capacity}");
            return Err(Failure::new(Class::Truncate, text));
        }
        if leg.side.carries {
            leg.channel.as_ref().ok_or_else(not_made)?.connect(domain, &theirs)?;
        }
        leg.theirs = Some(theirs);
        Ok(())
    }

    /// All legs are connected: makes the work. Returns the bytes of a transfer's message.
    pub(crate) fn matched(&self) -> Result<u64, Failure> {
        let domain = domain()?;
        let state = &mut *self.state.lock();
        if !state.legs.iter().all(|leg| leg.theirs.is_some()) {
            return Err(not_made());
        }
        let channels = state.legs.iter().filter_map(|leg| Some((leg.side, leg.channel.as_ref()?)));
        let channels: Vec<_> = channels.collect();
        let mut message = 0;
        state.work = Some(match self.plan {
            Plan::Transfer { sends, buffer } => {
                let theirs = state.legs.first().and_then(|leg| leg.theirs.as_ref());
                let readiness = state.legs.first().map_or(Readiness::Unknown, Leg::readiness);
                let (Some(theirs), Some((_, channel))) = (theirs, channels.first()) else {
                    return Err(not_made());
                };
                let own = buffer.bytes as u64;
                message = if sends { own } else { theirs.bytes };
                let how = (sends, &readiness);
                Work::Transfer(Parts::of_message(channel, how, &state.region, (message, own), domain.part)?)
            }
            Plan::Partitioned { buffer, .. } => {
                let route = route(&state.legs, &state.region, domain.part);
                let (Some(Work::Partitioned(partitions)), Some(route)) = (&mut state.work, route) else {
                    return Err(not_made());
                };
                partitions.open(route)?;
                return Ok(buffer.bytes as u64);
            }
            // Its messages find the other side.
            Plan::Link { .. } => return Ok(0),
            Plan::Barrier { rank, size } => {
                Work::Collective(Box::new(Chain::barrier(&channels, (rank, size))?))
            }
            Plan::Allreduce { reduction, rank, size } => {
                // SAFETY: the promise of `new`.
                let chain = unsafe { Chain::allreduce(&domain.pd, reduction, &channels, (rank, size)) };
                Work::Collective(Box::new(chain?))
            }
        });
        Ok(message)
    }

    /// Matching has failed: ends what is connected, and what waits for the match.
    pub(crate) fn abandon(&self) {
        let state = &mut *self.state.lock();
        abort(&state.legs);
        match &mut state.work {
            Some(Work::Partitioned(partitions)) => partitions.give_up(),
            Some(Work::Link(link)) => link.give_up(),
            _ => {}
        }
    }

    /// Does something with a link; with its channel, once its sides have met.
    pub(crate) fn with_link<R>(
        &self,
        act: impl FnOnce(&mut Link, Option<&mut Channel>) -> R,
    ) -> Result<R, Failure> {
        let State { legs, work, .. } = &mut *self.state.lock();
        let leg = legs.first_mut().filter(|leg| leg.theirs.is_some());
        let channel = leg.and_then(|leg| leg.channel.as_mut());
        match work {
            Some(Work::Link(link)) => Ok(act(link, channel)),
            _ => Err(Failure::new(Class::Request, "the request is not a link")),
        }
    }

    /// Ends all work of the card for it.
    pub(crate) fn abort(&self) {
        abort(&self.state.lock().legs);
    }

    /// Does something with the rounds of a partitioned request; with the other side, once that is known.
    pub(crate) fn with_partitions<R>(
        &self,
        act: impl FnOnce(&mut Partitions, Option<Route<'_>>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let domain = domain()?;
        let state = &mut *self.state.lock();
        let route = route(&state.legs, &state.region, domain.part);
        match &mut state.work {
            Some(Work::Partitioned(partitions)) => act(partitions, route),
            _ => Err(Failure::new(Class::Request, "the request is not partitioned")),
        }
    }

    /// The address of a partitioned request's marks, which the thread that calls MPI looks at from then on.
    ///
    /// # Errors
    /// [`Class::Unsupported`] where a kernel that sees a mark might not see the partition.
    pub(crate) fn marks(self: &Arc<Self>) -> Result<u64, Failure> {
        if let Plan::Partitioned { sends: false, buffer, .. } = self.plan {
            memory::check_order(buffer.address)?;
        }
        let address = self.with_partitions(|partitions, _| partitions.marks()?.address())?;
        let mut marked = MARKED.lock();
        marked.retain(|known| known.strong_count() > 0 && !ptr::eq(known.as_ptr(), Arc::as_ptr(self)));
        marked.push(Arc::downgrade(self));
        Ok(address)
    }

    /// Looks whether it has completed, and ends its channels where it has failed and the other ranks would not learn of it
    /// otherwise: those of a collective, and what asks for probes' sake alone.
    pub(crate) fn outcome(&self) -> Option<Result<u64, Failure>> {
        let state = &mut *self.state.lock();
        let channel = state.legs.first().and_then(|leg| leg.channel.as_ref());
        let outcome = state.work.as_mut().map_or(Some(Ok(0)), |work| work.outcome(channel));
        if matches!(outcome, Some(Err(_))) {
            match state.work {
                Some(Work::Collective(_)) => abort(&state.legs),
                _ => state.legs.iter().filter_map(|leg| leg.channel.as_ref()).for_each(Channel::end_together),
            }
        }
        outcome
    }

    /// Waits on the CPU until it has completed. Returns the bytes received.
    pub(crate) fn wait(&self) -> Result<u64, Failure> {
        let (mut pause, mut probe_at) = (Pause::new(), PROBE_AFTER);
        loop {
            if let Some(outcome) = self.outcome() {
                self.state.lock().started_on = None;
                return outcome;
            }
            progress::go_on();
            if pause.elapsed() >= probe_at {
                probe_at += PROBE_AFTER;
                self.probe();
            }
            pause.pause();
        }
    }

    /// Has the card ask whether the peers that it waits for are there.
    pub(crate) fn probe(&self) {
        if let Some(mut state) = self.state.try_lock() {
            probe(&mut state.legs);
            if let Some(Work::Collective(chain)) = &state.work
                && let Err(error) = chain.look()
            {
                tracing::debug!(%error, "the stream of a collective has failed");
            }
        }
    }
}

/// As [`Request::probe`].
pub(crate) fn probe(legs: &mut [Leg]) {
    legs.iter_mut().for_each(Leg::probe);
}

/// Ends all work of the legs: what a stream waits for ends with an error, here and, after their retries, at the peers.
pub(crate) fn abort(legs: &[Leg]) {
    legs.iter().filter_map(|leg| leg.channel.as_ref()).for_each(Channel::abort);
}

/// Partitioned requests that have marks.
static MARKED: Mutex<Vec<Weak<Request>>> = Mutex::new(Vec::new());

/// Looks at the marks of all requests. Returns how many rounds go on.
pub(crate) fn look_at_marks() -> usize {
    let marked: Vec<_> = MARKED.lock().iter().filter_map(Weak::upgrade).collect();
    let looked = |request: &&Arc<Request>| {
        request.with_partitions(|partitions, route| Ok(partitions.look(route))).unwrap_or(false)
    };
    marked.iter().filter(looked).count()
}

/// How the card gets to the other side of a partitioned request, once that is known.
fn route<'a>(legs: &'a [Leg], region: &'a Region, part: u64) -> Option<Route<'a>> {
    let leg = legs.first()?;
    let (channel, remote) = (leg.channel.as_ref()?, leg.theirs.as_ref()?.memory);
    Some(Route { channel, region, remote, part })
}

fn leg(state: &mut State, index: usize) -> Result<&mut Leg, Failure> {
    let legs = state.legs.len();
    let text = || format!("the request has {legs} legs, and none with the index {index}");
    state.legs.get_mut(index).ok_or_else(|| Failure::new(Class::Argument, text()))
}

fn not_made() -> Failure {
    Failure::new(Class::Request, "the request is not matched: match it first")
}

/// Requests that the program has freed.
static FREED: Mutex<VecDeque<(Instant, Arc<Request>)>> = Mutex::new(VecDeque::new());

/// Keeps a request until its work has ended, and its queue pairs a while longer. Its memory is the program's again as
/// soon as its work has ended.
pub(crate) fn retire(request: Arc<Request>) {
    let mut freed = FREED.lock();
    freed.push_back((Instant::now(), request));
    freed.retain(|(since, request)| {
        let is_done = request.outcome().is_some();
        if is_done {
            let state = &mut *request.state.lock();
            (state.work, state.region) = (None, Region::Empty);
        }
        !is_done || since.elapsed() < GRACE
    });
}
