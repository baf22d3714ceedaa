//! The state that the handles and queues of a team share.

use crate::bootstrap::BootstrapError;
use crate::connect::Unconnected;
use crate::control::Control;
use crate::control::agreement::Outcome;
use crate::error::NotifyError;
use crate::initiator::Initiator;
use crate::life::{Life, State};
use crate::parts::Parts;
use crate::word::Taker;
use gdsync::cudarc::driver::CudaContext;
use gdsync::verbs::RegistrationCache;
use gdsync::{ConnectOptions, Error, ProtectionDomain};
use gdsync_sys::pause::Pause;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const NAME: &str = "gdsync-ranks";
/// Longest time between two looks for messages of other ranks.
const LOOK: Duration = Duration::from_millis(50);
/// Time between two looks while notifications are held released: a stream may wait for one that it
/// has just cleared.
const HOLD: Duration = Duration::from_millis(1);

/// What a team keeps for its segments: registrations of the program's memory, and the kernels of GPUs.
#[derive(Debug)]
pub(crate) struct Stock {
    /// Memory of the program that segments were made of.
    pub(crate) registrations: RegistrationCache,
    /// Of each context in whose memory a segment was, one.
    takers: Mutex<Vec<Arc<Taker>>>,
}

impl Stock {
    /// With nothing, for segments of a protection domain.
    pub(crate) fn new(pd: &ProtectionDomain) -> Self {
        Stock { registrations: RegistrationCache::new(pd), takers: Mutex::default() }
    }

    /// What takes notifications in memory of a context. The first call for a context loads its kernels.
    pub(crate) fn taker(&self, context: &Arc<CudaContext>) -> Result<Arc<Taker>, NotifyError> {
        let mut takers = self.takers.lock();
        if let Some(known) = takers.iter().find(|one| one.context().cu_ctx() == context.cu_ctx()) {
            return Ok(known.clone());
        }
        let made = Arc::new(Taker::new(context)?);
        takers.push(made.clone());
        Ok(made)
    }
}

#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// What leads each queue to the ranks: a connection to each in the order of the ranks, or some DC queue pairs.
    pub(crate) queues: Vec<Vec<Initiator>>,
    /// How long a post waits for room in a queue.
    pub(crate) timeout: Duration,
    /// How queue pairs are connected.
    pub(crate) options: ConnectOptions,
    /// How long a call that all ranks make together waits for the others.
    pub(crate) patience: Duration,
    pub(crate) pd: ProtectionDomain,
    pub(crate) stock: Stock,
    pub(crate) life: Arc<Life>,
    pub(crate) control: Mutex<Control>,
    /// Held through a call that all ranks make together. Locked before `control`.
    pub(crate) turn: Mutex<()>,
    /// The segments of the team, in the order in which they were made.
    segments: Mutex<Vec<Weak<Parts>>>,
}

impl Connections {
    /// Of a rank that is connected.
    pub(crate) fn new(stock: Stock, made: Unconnected, timeout: Duration, patience: Duration) -> Arc<Self> {
        let Unconnected { rank, size, options, .. } = made;
        let life = Arc::new(Life::new(size));
        let (queues, control) = made.into_queues(&life);
        Arc::new(Connections {
            rank,
            size,
            queues,
            timeout,
            options,
            patience,
            pd: stock.registrations.domain().clone(),
            stock,
            life: life.clone(),
            control: Mutex::new(control),
            turn: Mutex::default(),
            segments: Mutex::default(),
        })
    }

    /// What leads a queue to a rank. Of DC queue pairs, that is the one at the rank modulo their number, so that what goes
    /// to one rank stays in order.
    pub(crate) fn initiator(&self, queue: usize, rank: u32) -> &Initiator {
        let all = &self.queues[queue];
        &all[rank as usize % all.len()]
    }

    /// What leads each queue to a rank.
    pub(crate) fn initiators(&self, rank: u32) -> impl Iterator<Item = &Initiator> {
        (0..self.queues.len()).map(move |queue| self.initiator(queue, rank))
    }

    /// Exchanges short texts among all ranks, `None` of those that were dropped. All ranks call
    /// this in the same order.
    pub(crate) fn exchange(&self, bytes: &[u8]) -> Result<Vec<Option<Vec<u8>>>, NotifyError> {
        let _turn = self.turn.lock();
        self.control.lock().begin_exchange(bytes, &self.life)?;
        let missing = |control: &Control| control.missing(&self.life);
        let all = self.wait_for_all(|control| control.try_exchange(&self.life), missing);
        if all.is_err() {
            self.control.lock().give_up_exchanges();
        }
        all
    }

    /// Waits until all ranks have taken a step; `missing` says which have not.
    fn wait_for_all<T>(
        &self,
        mut look: impl FnMut(&mut Control) -> Result<Option<T>, NotifyError>,
        missing: impl Fn(&Control) -> Vec<u32>,
    ) -> Result<T, NotifyError> {
        let (mut pause, timeout) = (Pause::new(), self.patience);
        loop {
            // Not held through the pause: the monitor needs it, too.
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

    /// Agrees with the other survivors on the dead ranks, and drops them.
    pub(crate) fn shrink(&self) -> Result<Vec<u32>, NotifyError> {
        let _turn = self.turn.lock();
        let agree = |control: &mut Control| Ok(control.try_agree(&self.life));
        let outcome = self.wait_for_all(agree, |control| control.silent(&self.life))?;
        let dead = match outcome {
            Outcome::Drop(dead) => dead,
            Outcome::Expelled { by } => return Err(NotifyError::Expelled { by }),
        };
        // The others hear of the decision even if this process ends now. What is decided stays: a
        // rank that stands still hears of it later.
        let unflushed = |control: &Control| control.unflushed(&self.life);
        let flush = |control: &mut Control| {
            control.poll(&self.life);
            Ok(unflushed(control).is_empty().then_some(()))
        };
        let told = self.wait_for_all(flush, unflushed);
        if let Err(error) = told {
            tracing::warn!(%error, "a rank has not taken the message that the team has dropped ranks");
        }
        // Another rank may have found some of them dead; then they are known here, too.
        self.settle();
        let dropped = self.life.drop_ranks(&dead);
        self.settle();
        Ok(dropped)
    }

    /// What follows from deaths: connections with dead ranks are ended, and what waits for them is
    /// released. Returns whether notifications are held released, so that waits to come pass, too.
    pub(crate) fn settle(&self) -> bool {
        // Connections with dropped ranks were ended before; new processes may be taking them over.
        for rank in self.life.set_of(|state| matches!(state, State::Dead(_))) {
            self.initiators(rank).for_each(Initiator::cut);
        }
        self.segments().iter().fold(false, |any, one| one.releases.update(&self.life) | any)
    }

    /// The segments that live, in the order in which they were made.
    pub(crate) fn segments(&self) -> Vec<Arc<Parts>> {
        let mut segments = self.segments.lock();
        segments.retain(|one| one.strong_count() > 0);
        segments.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn add_segment(&self, parts: &Arc<Parts>) {
        self.segments.lock().push(Arc::downgrade(parts));
    }

    /// Flushes a queue: everything given to living ranks has arrived there.
    pub(crate) fn flush(&self, queue: usize, timeout: Duration) -> Result<(), NotifyError> {
        let started = Instant::now();
        let mut kept = (0..self.size).filter(|rank| !matches!(self.life.state(*rank), State::Dropped(_)));
        let left = || timeout.saturating_sub(started.elapsed());
        kept.try_for_each(|rank| self.initiator(queue, rank).flush(rank, left()))
    }

    /// Brings back what the failure of a request has stopped, whether a caller looks or not.
    pub(crate) fn bring_back(&self) {
        let all = || self.queues.iter().flatten();
        all().for_each(Initiator::look);
        // Another rank, or a stream of this one, may wait for what is lost, and would for ever.
        if self.life.first_dead().is_some() && all().fold(false, |any, one| one.take_lost() | any) {
            self.control.lock().withdraw(&self.life);
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.life.close();
    }
}

/// Starts the thread of a team that finds dead ranks, and releases what waits for them. It ends with the connections,
/// which it keeps alive during a look only.
pub(crate) fn start_monitor(connections: &Arc<Connections>) -> Result<JoinHandle<()>, NotifyError> {
    let watched = Arc::downgrade(connections);
    let started = std::thread::Builder::new().name(NAME.to_owned()).spawn(move || run(&watched));
    started.map_err(|source| NotifyError::Device(Error::Thread { name: NAME, source }))
}

fn run(watched: &Weak<Connections>) {
    let Some(life) = watched.upgrade().map(|connections| connections.life.clone()) else { return };
    let mut period = Duration::ZERO;
    while life.wait(period) {
        // The connections are kept for this look only.
        let Some(connections) = watched.upgrade() else { return };
        connections.bring_back();
        let mut control = connections.control.lock();
        control.poll(&life);
        period = control.look_period().min(LOOK);
        drop(control);
        if !life.lost().is_empty() && connections.settle() {
            period = period.min(HOLD);
        }
    }
}
