//! The device: protection domains, memory regions, UARs, completion queues, queue pairs, and the engine that serves them.
//!
//! No FFI types and no pointers to objects here: objects are numbers, as they are to hardware. The one thing taken on trust
//! is that the addresses in [`CqConfig`] and [`QpConfig`] are valid.
//!
//! What a queue pair learns of the death of its peer's process is what hardware would tell it. A reliable connection with
//! something to send, or with something that is not acknowledged, fails with *retry exceeded*: at once where nothing can be sent
//! to that LID any more, else when one time-out is over, without further retries (never, with time-out 0). One that only waits for messages is not told, as
//! nobody asks whether the other side lives: programs that must know send something now and then. Unreliable connections and
//! datagrams to the dead complete, and go nowhere.

mod atomics;
mod commands;
mod completion;
mod config;
mod context;
mod cq;
mod deliver;
mod dma;
mod engine;
mod error;
mod fetch;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod gather;
mod held;
mod link;
mod modify;
mod network;
mod packet;
mod qp;
mod receiver;
mod region;
mod responses;
mod sender;
mod uar;
mod uc;
mod ud;
mod wqe;

pub use config::{
    Access, Address, CqAttributes, CqConfig, LIMITS, Limits, QpAttributes, QpChange, QpConfig, QpState,
    Transport,
};
pub use dma::is_mapped;
pub use error::{CardError, Diagnostic, Event};
pub use link::{GidEntry, GidKind, LinkLayer};

use crate::fabric::{Fabric, Sleeper};
use crate::faults::{self, FaultPlan, Faults, RuleCount};
use commands::FIRST_NUMBER;
use engine::Engine;
use link::Port;
use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Who is told of asynchronous events. Called by the engine's thread, or by the one that caused the event, never under a lock.
pub type EventSink = Box<dyn Fn(Event) + Send + Sync>;

/// A UAR page of a card.
#[derive(Clone, Copy, Debug)]
pub struct UarHandle {
    /// Its number.
    pub id: u32,
    /// Its first byte; the page is the UAR's until that is freed.
    pub page: *mut u8,
}

/// A software card: one port on the host's fabric, and a thread that serves it.
pub struct Card {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    next_number: AtomicU32,
    port: Port,
    gids: Vec<GidEntry>,
    faults: Faults,
}

struct Shared {
    engine: Mutex<Engine>,
    sleeper: Arc<Sleeper>,
    sink: EventSink,
    stop: AtomicBool,
}

impl Card {
    /// Claims a LID and starts the card, its port on the given link layer. Between hosts
    /// ([`LISTEN_VARIABLE`](crate::fabric::LISTEN_VARIABLE)) it claims an address, and its port is Ethernet.
    ///
    /// # Errors
    /// [`CardError::Fabric`] or [`CardError::System`].
    pub fn start(link: LinkLayer, sink: EventSink) -> Result<Card, CardError> {
        let mut card = Card::stopped(link, sink)?;
        let shared = card.shared.clone();
        let thread =
            std::thread::Builder::new().name("gdsync-softhca".to_owned()).spawn(move || shared.run())?;
        card.thread = Some(thread);
        Ok(card)
    }

    /// A card without a thread: it does something only when it is stepped.
    fn stopped(link: LinkLayer, sink: EventSink) -> Result<Card, CardError> {
        Ok(Card::on(Fabric::bind()?, link, sink))
    }

    fn on(fabric: Fabric, link: LinkLayer, sink: EventSink) -> Card {
        let sleeper = fabric.sleeper();
        let ipv4 = fabric.ipv4();
        // Between hosts there are no LIDs.
        let link = if ipv4.is_some() { LinkLayer::Ethernet } else { link };
        let port = Port { link, lid: fabric.lid(), ipv4 };
        let faults = faults::join();
        let engine = Mutex::new(Engine::new(fabric, port, faults.clone()));
        let shared = Arc::new(Shared { engine, sleeper, sink, stop: AtomicBool::new(false) });
        let next_number = AtomicU32::new(FIRST_NUMBER);
        Card { shared, thread: None, next_number, port, gids: port.gids(), faults }
    }

    /// Its LID, unique on the host while the card lives. On Ethernet, too: there it only ends the GIDs, and fronts report 0. It is 0
    /// between hosts.
    pub fn lid(&self) -> u16 {
        self.port.lid
    }

    /// Link layer of its port.
    pub fn link_layer(&self) -> LinkLayer {
        self.port.link
    }

    /// Its GUID: an EUI-64 of the locally administered range that ends with the LID.
    pub fn guid(&self) -> u64 {
        self.port.guid()
    }

    /// Its table of GIDs. InfiniBand: the link-local prefix with the GUID. Ethernet: that as RoCE v1 and as RoCE v2, then the
    /// IPv4-mapped address `::ffff:10.83.x.y` as both, where x.y is the LID; between hosts it is the card's own address, which the
    /// GUID ends with, too.
    pub fn gids(&self) -> &[GidEntry] {
        &self.gids
    }

    /// What it can do.
    pub fn limits(&self) -> &'static Limits {
        &LIMITS
    }

    /// The strict checker's findings, oldest first; the last 256 are kept.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        self.shared.engine.lock().diagnostics.all()
    }

    /// Applies a plan to this card only, in place of the process's; `None` ends its faults. Counting starts again.
    pub fn set_faults(&self, plan: Option<&FaultPlan>) {
        self.faults.set(plan);
        self.shared.sleeper.wake();
    }

    /// The rules in force for this card, with what they have come to.
    pub fn fault_counts(&self) -> Vec<RuleCount> {
        self.faults.counts()
    }

    /// Runs a command. The engine notices what it changed.
    fn command<R>(&self, command: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = self.shared.engine.lock();
        let result = command(&mut engine);
        self.shared.deliver_events(engine);
        self.shared.sleeper.wake();
        result
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card").field("lid", &self.lid()).finish_non_exhaustive()
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.sleeper.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the software card's thread panicked");
        }
        self.shared.engine.lock().flush_held(Instant::now());
        faults::leave(&self.faults);
    }
}

impl Shared {
    /// Hands events to the sink, after the lock is released.
    fn deliver_events(&self, mut engine: MutexGuard<'_, Engine>) {
        let events = std::mem::take(&mut engine.events);
        drop(engine);
        for event in events {
            (self.sink)(event);
        }
    }

    fn run(&self) {
        use_fine_timers();
        let spin = spin_time();
        let mut idle_since: Option<Instant> = None;
        while !self.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            let mut engine = self.engine.lock();
            let worked = engine.step(now);
            let has_events = !engine.events.is_empty();
            if has_events {
                self.deliver_events(engine);
            } else {
                // Commands wait for the lock: they go first.
                MutexGuard::unlock_fair(engine);
            }
            if worked {
                idle_since = None;
                continue;
            }
            let idle = now.duration_since(*idle_since.get_or_insert(now));
            if idle < spin {
                std::hint::spin_loop();
                continue;
            }
            self.nap(engine::nap(idle), now);
        }
    }

    /// Sleeps until the fabric or a command wakes the card, or it is time to look at the doorbell registers again:
    /// stores to memory wake nobody.
    fn nap(&self, longest: Duration, now: Instant) {
        let mut engine = self.engine.lock();
        if !engine.prepare_sleep(now) {
            return;
        }
        let timer = engine.next_timer().map_or(longest, |at| at.saturating_duration_since(now));
        drop(engine);
        if !self.stop.load(Ordering::Acquire) {
            self.sleeper.sleep(timer.min(longest));
        }
        self.engine.lock().fabric.finish_sleep();
    }
}

/// How long the engine spins for work before it naps. With few cores, a spinning engine keeps one from the program that it
/// serves.
fn spin_time() -> Duration {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    Duration::from_micros(if cores <= 2 { 10 } else { 50 })
}

/// Lets the calling thread's naps end when they should: by default Linux rounds them up by 50 µs.
fn use_fine_timers() {
    // SAFETY: sets an attribute of the calling thread only; the argument is a number of nanoseconds.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong) };
}

#[cfg(test)]
mod tests;
