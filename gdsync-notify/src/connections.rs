//! The state that a team's handles and queues share, and the monitor thread.

use crate::bootstrap::{Bootstrap, BootstrapError};
use crate::cause::Uncompleted;
use crate::connect::Unconnected;
use crate::control::Control;
use crate::control::agreement::Outcome;
use crate::error::{NotifyError, Result};
use crate::handshake::{
    Endpoints, Introduction, Introductions, QueueEndpoints, describe_segments, segment_description,
};
use crate::initiator::Initiator;
use crate::liveness::{Liveness, RankSet, RankState};
use crate::memory::{SegmentResources, SharedSegment};
use gdsync::queue::FailureCause;
use gdsync::{ConnectOptions, Error, QueuePair};
use gdsync_sys::pause::Pause;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const NAME: &str = "gdsync-ranks";
/// Longest time between two polls of the control connections.
const LOOK: Duration = Duration::from_millis(50);
/// Time between two polls while notifications are released, since a stream may wait for one that it has just cleared, or
/// wait for other ranks to be told of a death.
const HOLD: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// For each queue, an RC connection to each rank in rank order, or some DC queue pairs.
    pub(crate) queues: Vec<Vec<Initiator>>,
    pub(crate) timeout: Duration,
    pub(crate) options: ConnectOptions,
    /// How long a collective call waits for the other ranks.
    pub(crate) exchange_timeout: Duration,
    pub(crate) resources: SegmentResources,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) control: Mutex<Control>,
    /// Held during a call that all ranks make together. Lock order: before `control`.
    pub(crate) collective_call: Mutex<()>,
    segments: Arc<Segments>,
    /// Dropped last: then nothing arrives any more.
    _end: End,
}

/// The team's segments in the order of their creation.
#[derive(Debug, Default)]
pub(crate) struct Segments(Mutex<Vec<Weak<SharedSegment>>>);

impl Segments {
    /// Returns those that exist.
    fn all(&self) -> Vec<Arc<SharedSegment>> {
        let mut segments = self.0.lock();
        segments.retain(|one| one.strong_count() > 0);
        segments.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Ends the team when it is dropped: what still waits for notifications is released.
#[derive(Debug)]
struct End {
    rank: u32,
    liveness: Arc<Liveness>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.liveness.end(self.rank);
    }
}

impl Connections {
    pub(crate) fn new(
        resources: SegmentResources,
        made: Unconnected,
        timeout: Duration,
        exchange_timeout: Duration,
    ) -> Arc<Self> {
        let Unconnected { rank, size, options, .. } = made;
        let liveness = Arc::new(Liveness::new(size));
        let (queues, control) = made.into_queues(&liveness);
        let to = |rank: u32| {
            let initiators = queues.iter().filter_map(|all: &Vec<Initiator>| all.get(rank as usize));
            initiators.filter_map(|one| one.queue_pair(rank).ok()).map(QueuePair::number).collect()
        };
        liveness.set_queue_pairs((0..size).map(to).collect());
        Arc::new(Connections {
            rank,
            size,
            queues,
            timeout,
            options,
            exchange_timeout,
            resources,
            liveness: liveness.clone(),
            control: Mutex::new(control),
            collective_call: Mutex::default(),
            segments: Arc::default(),
            _end: End { rank, liveness },
        })
    }

    /// Returns the initiator for a rank: with DC always the same of a few, so that one rank's requests stay in order.
    pub(crate) fn initiator(&self, queue: usize, rank: u32) -> &Initiator {
        let all = &self.queues[queue];
        &all[rank as usize % all.len()]
    }

    /// Returns whether a queue pair places messages out of order.
    pub(crate) fn places_out_of_order(&self) -> bool {
        self.queues.iter().flatten().any(|initiator| initiator.is_out_of_order)
    }

    pub(crate) fn initiators(&self, rank: u32) -> impl Iterator<Item = &Initiator> {
        (0..self.queues.len()).map(move |queue| self.initiator(queue, rank))
    }

    /// Exchanges short texts among all ranks; the entries of dropped ranks are `None`. All ranks call this in the same
    /// order.
    pub(crate) fn exchange(&self, bytes: &[u8]) -> Result<Vec<Option<Vec<u8>>>> {
        let _call = self.collective_call.lock();
        self.control.lock().begin_exchange(bytes, &self.liveness)?;
        let missing = |control: &Control| control.missing(&self.liveness);
        let all = self.wait_for_all(|control| control.try_exchange(&self.liveness), missing);
        if all.is_err() {
            self.control.lock().give_up_exchanges();
        }
        all
    }

    /// Waits until all ranks have taken a step; `missing` returns those that have not.
    fn wait_for_all<T>(
        &self,
        mut look: impl FnMut(&mut Control) -> Result<Option<T>>,
        missing: impl Fn(&Control) -> Vec<u32>,
    ) -> Result<T> {
        let (mut pause, timeout) = (Pause::new(), self.exchange_timeout);
        loop {
            // Not held during the pause, because the monitor needs it.
            let mut control = self.control.lock();
            match look(&mut control)? {
                Some(done) => return Ok(done),
                None if pause.elapsed() >= timeout => {
                    return Err(BootstrapError::Late { ranks: missing(&control), timeout }.into());
                }
                None => {}
            }
            drop(control);
            pause.pause();
        }
    }

    pub(crate) fn shrink(&self) -> Result<Vec<u32>> {
        let _call = self.collective_call.lock();
        let agree = |control: &mut Control| Ok(control.try_agree(&self.liveness));
        let outcome = self.wait_for_all(agree, |control| control.silent(&self.liveness))?;
        let dead = match outcome {
            Outcome::Drop(dead) => dead,
            Outcome::Expelled { by } => return Err(NotifyError::Expelled { by }),
        };
        // Deliver the decision to the others even if this process ends now. It is final: a stopped rank receives it later.
        let unflushed = |control: &Control| control.unflushed(&self.liveness);
        let flush = |control: &mut Control| {
            control.poll(&self.liveness);
            Ok(unflushed(control).is_empty().then(|| self.liveness.set_told()))
        };
        let told = self.wait_for_all(flush, unflushed);
        if let Err(error) = told {
            tracing::warn!(%error, "a rank has not taken the message that the team has dropped ranks");
            self.liveness.set_told();
        }
        // Another rank may have found some of them dead, which `poll` has recorded here.
        self.apply_deaths();
        let dropped = self.liveness.drop_ranks(&dead);
        self.apply_deaths();
        Ok(dropped)
    }

    /// Returns the ranks to which all connections have failed.
    fn cut(&self) -> BTreeMap<u32, FailureCause> {
        let cause = |rank: u32| {
            let causes: Option<Vec<_>> = self.initiators(rank).map(Initiator::failure).collect();
            Some((rank, *causes?.first()?))
        };
        (0..self.size).filter_map(cause).collect()
    }

    /// Aborts connections to dead ranks and releases waits that cannot end. Returns true if notifications stay released,
    /// so that later waits must be released, too.
    pub(crate) fn apply_deaths(&self) -> bool {
        // Dropped ranks' connections were aborted before; new processes may be taking them over.
        for rank in self.liveness.ranks_in(|state| matches!(state, RankState::Dead(_))) {
            self.initiators(rank).for_each(Initiator::abort);
        }
        self.segments.all().iter().fold(false, |any, one| one.notifications.update(&self.liveness) | any)
    }

    pub(crate) fn add_segment(&self, segment: &Arc<SharedSegment>) {
        self.segments.0.lock().push(Arc::downgrade(segment));
    }

    /// Flushes a queue: all requests to living ranks have completed.
    pub(crate) fn flush(&self, queue: usize, timeout: Duration) -> Result<()> {
        let started = Instant::now();
        let mut kept =
            (0..self.size).filter(|rank| !matches!(self.liveness.state(*rank), RankState::Dropped(_)));
        let left = || timeout.saturating_sub(started.elapsed());
        kept.try_for_each(|rank| self.initiator(queue, rank).flush(rank, left()))
    }

    /// Returns the ranks with requests that a flush of the queue would wait for.
    pub(crate) fn uncompleted(&self, queue: usize) -> Uncompleted {
        let all = (0..self.size).map(|rank| (rank, self.initiator(queue, rank)));
        let all = all.filter(|(rank, initiator)| initiator.has_uncompleted(*rank));
        Uncompleted::of(all.map(|(rank, initiator)| (rank, initiator.number())))
    }

    /// Recovers failed DC queue pairs, even if no caller polls them.
    pub(crate) fn recover_queues(&self) {
        let all = || self.queues.iter().flatten();
        all().for_each(Initiator::recover_if_failed);
        // Otherwise another rank or a stream would wait forever for lost requests.
        if self.liveness.first_dead().is_some() && all().fold(false, |any, one| one.take_lost() | any) {
            self.control.lock().withdraw(&self.liveness);
        }
    }

    /// Prepares the connections to dropped ranks for new processes. Returns a line for each rank.
    fn prepare_replacement(&self) -> Result<Vec<String>> {
        self.liveness.check_none_dead()?;
        let dropped = self.liveness.dropped();
        let mut all_endpoints = Vec::with_capacity(self.size as usize);
        for rank in 0..self.size {
            let mut endpoints = Endpoints { queues: self.queue_endpoints()?, control: None };
            if dropped.contains(&rank) {
                for (queue, initiator) in self.initiators(rank).enumerate() {
                    if let Some(endpoint) = initiator.release_for_replacement(rank, self.timeout)? {
                        endpoints.set_queue(queue, endpoint);
                    }
                }
                endpoints.control = self.control.lock().renew(self.resources.registrations.domain(), rank)?;
            }
            all_endpoints.push(endpoints.to_string());
        }
        let (epoch, segments) = (self.control.lock().epoch(), self.segments.all().len());
        Ok(Introduction::texts(Some(epoch), segments, all_endpoints.into_iter()))
    }

    /// Returns what all ranks get, before endpoints for new processes are filled in.
    fn queue_endpoints(&self) -> Result<QueueEndpoints> {
        QueueEndpoints::of(self.queues.len(), &self.control.lock())
    }

    /// Accepts new processes, which call [`join`](crate::connect::join), in the places of all dropped ranks.
    pub(crate) fn replace(&self, bootstrap: &mut Bootstrap) -> Result<Vec<u32>> {
        let _call = self.collective_call.lock();
        let introduced = self.prepare_replacement().map(|lines| ((), lines));
        let ((), lines) = bootstrap.share_outcome_with_each(introduced)?;
        let all = bootstrap.share_step(self.connect_new(&lines))?;
        let segments = self.segments.all();
        let ((), lines) = bootstrap.share_outcome(Ok(((), describe_segments(&segments))))?;
        let renewed = all.new.iter().try_for_each(|&rank| {
            let mut segments = segments.iter().enumerate();
            segments.try_for_each(|(at, one)| {
                one.renew(rank, &segment_description(&lines[rank as usize], at).unwrap_or_default())
            })
        });
        bootstrap.share_step(renewed)?;
        let mut control = self.control.lock();
        control.begin_epoch(all.epoch + 1);
        self.liveness.revive(&all.new);
        drop(control);
        self.apply_deaths();
        Ok(all.new.into_iter().collect())
    }

    fn connect_new(&self, lines: &[String]) -> Result<Introductions> {
        let all = Introduction::parse_all(lines, self.rank, &self.queue_endpoints()?)?;
        let dropped = self.liveness.dropped();
        if all.new != dropped {
            let list = |set: &RankSet| format!("{:?}", Vec::from_iter(set));
            let (theirs, ours) = (list(&all.new), list(&dropped));
            let rank = all.new.iter().chain(&dropped).next().copied().unwrap_or(self.rank);
            return Err(NotifyError::Mismatch {
                rank,
                what: "new processes, not those dropped:",
                theirs,
                ours,
            });
        }
        for &rank in &all.new {
            let endpoints = &all.all_endpoints[rank as usize];
            let address = match endpoints.target() {
                Some(target) => self.control.lock().connect_to_target(rank, target)?,
                None => None,
            };
            for (queue, initiator) in self.initiators(rank).enumerate() {
                match (&address, endpoints.queue(queue)) {
                    (Some(address), _) => initiator.redirect(rank, address.clone())?,
                    (None, Some(remote)) => initiator.connect(remote, self.options)?,
                    (None, None) => {}
                }
            }
            if let Some(remote) = &endpoints.control {
                self.control.lock().connect(rank, remote)?;
            }
        }
        Ok(all)
    }
}

/// Starts the monitor thread, which finds dead ranks and releases waits that cannot end. It holds the connections only
/// while it polls, and ends when they are dropped and no waits are left.
pub(crate) fn start_monitor(connections: &Arc<Connections>) -> Result<JoinHandle<()>> {
    let watched = Arc::downgrade(connections);
    let (liveness, segments) = (connections.liveness.clone(), connections.segments.clone());
    let monitor = move || {
        run(&watched, &liveness);
        release(&segments, &liveness);
    };
    let started = std::thread::Builder::new().name(NAME.to_owned()).spawn(monitor);
    started.map_err(|source| NotifyError::Device(Error::Thread { name: NAME, source }))
}

fn run(watched: &Weak<Connections>, liveness: &Liveness) {
    let mut period = Duration::ZERO;
    while liveness.wait_for_work(period) {
        // Otherwise the team is about to end.
        let Some(connections) = watched.upgrade() else { continue };
        connections.recover_queues();
        let (newly_cut, is_cut) = liveness.set_cut(connections.cut());
        let mut control = connections.control.lock();
        control.poll(liveness);
        let cut_by = control.exchange_cut(newly_cut, liveness);
        let is_told = control.release(liveness);
        period = control.poll_period().min(LOOK);
        drop(control);
        // A connection is of no use that has failed on the other side.
        cut_by.into_iter().flat_map(|rank| connections.initiators(rank)).for_each(Initiator::abort);
        if (is_cut || !liveness.not_alive().is_empty()) && connections.apply_deaths() || !is_told {
            period = period.min(HOLD);
        }
    }
}

/// Releases waits that outlive the team, until none is left.
fn release(segments: &Segments, liveness: &Liveness) {
    loop {
        let mut awaited = segments.all();
        awaited.retain(|one| one.has_waiters());
        if awaited.is_empty() {
            return;
        }
        awaited.iter().for_each(|one| _ = one.notifications.update(liveness));
        drop(awaited);
        liveness.set_released();
        std::thread::sleep(HOLD);
    }
}
