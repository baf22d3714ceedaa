//! The device: protection domains, memory regions, UARs, completion queues, queue pairs, and the engine that serves them.
//!
//! No FFI types and no pointers to objects here: objects are numbers, as they are to hardware. The one thing taken on trust
//! is that the addresses in [`CqConfig`] and [`QpConfig`] are valid.

mod config;
mod context;
mod cq;
mod dma;
mod engine;
mod error;
mod fetch;
mod gather;
mod modify;
mod packet;
mod qp;
mod receiver;
mod region;
mod sender;
mod wqe;

pub use config::{Access, Address, CqConfig, LIMITS, Limits, QpAttributes, QpChange, QpConfig, QpState};
pub use error::{CardError, Diagnostic, Event};

use crate::fabric::{Fabric, Sleeper};
use cq::Cq;
use dma::{CqRing, Record, UarPage};
use engine::{Engine, Uar};
use gdsync_sys::prm::doorbell;
use parking_lot::{Mutex, MutexGuard};
use region::Memory;
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
    /// Its first byte; the page is mapped until the UAR is freed.
    pub page: *mut u8,
}

/// A software card: one port on the host's fabric, and a thread that serves it.
pub struct Card {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    next_number: AtomicU32,
}

struct Shared {
    engine: Mutex<Engine>,
    sleeper: Arc<Sleeper>,
    sink: EventSink,
    stop: AtomicBool,
}

/// Object numbers start here: small numbers are special to hardware.
const FIRST_NUMBER: u32 = 0x40;
/// Queue pair numbers have 24 bits.
const NUMBERS: u32 = 0xff_ffff;

impl Card {
    /// Claims a LID and starts the card.
    ///
    /// # Errors
    /// [`CardError::Fabric`] or [`CardError::System`].
    pub fn start(sink: EventSink) -> Result<Card, CardError> {
        let mut card = Card::stopped(sink)?;
        let shared = card.shared.clone();
        let thread =
            std::thread::Builder::new().name("gdsync-softhca".to_owned()).spawn(move || shared.run())?;
        card.thread = Some(thread);
        Ok(card)
    }

    /// A card without a thread: it does something only when it is stepped.
    fn stopped(sink: EventSink) -> Result<Card, CardError> {
        let fabric = Fabric::bind()?;
        let sleeper = fabric.sleeper();
        let engine = Mutex::new(Engine::new(fabric));
        let shared = Arc::new(Shared { engine, sleeper, sink, stop: AtomicBool::new(false) });
        Ok(Card { shared, thread: None, next_number: AtomicU32::new(FIRST_NUMBER) })
    }

    /// Its LID, unique on the host while the card lives.
    pub fn lid(&self) -> u16 {
        self.shared.engine.lock().lid
    }

    /// Its GUID: an EUI-64 of the locally administered range that ends with the LID.
    pub fn guid(&self) -> u64 {
        0x0200_00ff_fe00_0000 | u64::from(self.lid())
    }

    /// Its GID at index 0: the link-local prefix and the GUID.
    pub fn gid(&self) -> [u8; 16] {
        let prefix = 0xfe80_0000_0000_0000_u64;
        (u128::from(prefix) << 64 | u128::from(self.guid())).to_be_bytes()
    }

    /// What it can do.
    pub fn limits(&self) -> &'static Limits {
        &LIMITS
    }

    /// The strict checker's findings, oldest first; the last 256 are kept.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        self.shared.engine.lock().diagnostics.all()
    }

    /// Runs a command. The engine notices what it changed.
    fn command<R>(&self, command: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = self.shared.engine.lock();
        let result = command(&mut engine);
        self.shared.deliver_events(engine);
        self.shared.sleeper.wake();
        result
    }

    /// A number that has not been used for a long time: a late packet or entry must not meet a new object.
    fn number(&self, taken: impl Fn(u32) -> bool) -> u32 {
        loop {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed) & NUMBERS;
            if number >= FIRST_NUMBER && !taken(number) {
                return number;
            }
        }
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`CardError::TooMany`].
    pub fn alloc_pd(&self) -> Result<u32, CardError> {
        self.command(|engine| {
            within("protection domains", engine.pds.len(), LIMITS.max_pd)?;
            let pdn = self.number(|number| engine.pds.contains_key(&number));
            engine.pds.insert(pdn, 0);
            Ok(pdn)
        })
    }

    /// Frees a protection domain.
    ///
    /// # Errors
    /// [`CardError::NotFound`], or [`CardError::Busy`] while regions or queue pairs are in it.
    pub fn dealloc_pd(&self, pdn: u32) -> Result<(), CardError> {
        self.command(|engine| match engine.pds.get(&pdn) {
            None => Err(CardError::NotFound { what: "protection domain", number: pdn }),
            Some(0) => {
                engine.pds.remove(&pdn);
                Ok(())
            }
            Some(&users) => Err(CardError::Busy { what: "protection domain", number: pdn, users }),
        })
    }

    /// Registers memory, of this process or of a peer-memory client. Returns its key, local and remote.
    ///
    /// # Errors
    /// [`CardError::Unmapped`], [`CardError::PeerMemory`], [`CardError::Invalid`], [`CardError::NotFound`],
    /// [`CardError::TooMany`].
    ///
    /// # Safety
    /// Until it is deregistered, the range stays mapped (a client's: allocated), and is accessed otherwise only in ways that
    /// tolerate a device's concurrent reads (and writes, where the access rights allow them).
    pub unsafe fn register_memory(
        &self,
        pdn: u32,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<u32, CardError> {
        // Not under the lock: pinning takes time.
        let memory = Memory::acquire(addr, len, access)?;
        self.command(|engine| {
            let users = engine
                .pds
                .get_mut(&pdn)
                .ok_or(CardError::NotFound { what: "protection domain", number: pdn })?;
            let key = engine.regions.register(pdn, memory)?;
            *users += 1;
            Ok(key)
        })
    }

    /// Deregisters memory: after this returns, the card does not touch it.
    ///
    /// # Errors
    /// [`CardError::NotFound`].
    pub fn deregister_memory(&self, key: u32) -> Result<(), CardError> {
        let memory = self.command(|engine| {
            let (pdn, memory) = engine.regions.deregister(key)?;
            leave(engine, pdn);
            Ok::<_, CardError>(memory)
        })?;
        // Nor is this: a client gets it back.
        drop(memory);
        Ok(())
    }

    /// Allocates a page of doorbell registers, of which those at the offsets `registers` can be rung.
    ///
    /// # Errors
    /// [`CardError::System`].
    pub fn alloc_uar(&self, registers: &'static [usize]) -> Result<UarHandle, CardError> {
        let page = UarPage::new()?;
        let base = page.base();
        self.command(|engine| {
            let id = self.number(|number| engine.uars.contains_key(&number));
            engine.uars.insert(id, Uar { page, registers, qps: Vec::new() });
            Ok(UarHandle { id, page: base })
        })
    }

    /// Frees a page of doorbell registers.
    ///
    /// # Errors
    /// [`CardError::NotFound`], or [`CardError::Busy`] while queue pairs use it.
    pub fn free_uar(&self, id: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let uar = engine.uars.get(&id).ok_or(CardError::NotFound { what: "UAR", number: id })?;
            if !uar.qps.is_empty() {
                return Err(CardError::Busy { what: "UAR", number: id, users: uar.qps.len() as u32 });
            }
            engine.uars.remove(&id);
            Ok(())
        })
    }

    /// Creates a completion queue. Returns its number.
    ///
    /// # Errors
    /// [`CardError::Invalid`], [`CardError::TooMany`].
    ///
    /// # Safety
    /// The addresses stay valid, aligned as [`CqConfig`] says, until the queue is destroyed.
    pub unsafe fn create_cq(&self, config: &CqConfig) -> Result<u32, CardError> {
        let CqConfig { ring, entries, dbrec } = *config;
        if !entries.is_power_of_two() || entries > LIMITS.max_cqe {
            let limit = "a power of two, at most 2^22";
            return Err(CardError::Invalid {
                what: "completion queue entries",
                value: entries.into(),
                limit,
            });
        }
        // SAFETY: the caller's.
        let cq = unsafe { Cq::new(CqRing::new(ring, entries), Record::new(dbrec.add(doorbell::DBR_CQ_CI))) };
        self.command(|engine| {
            within("completion queues", engine.cqs.len(), LIMITS.max_cq)?;
            let cqn = self.number(|number| engine.cqs.contains_key(&number));
            engine.cqs.insert(cqn, cq);
            Ok(cqn)
        })
    }

    /// Destroys a completion queue: after this returns, the card does not touch its memory.
    ///
    /// # Errors
    /// [`CardError::NotFound`], or [`CardError::Busy`] while queue pairs complete there.
    pub fn destroy_cq(&self, cqn: u32) -> Result<(), CardError> {
        self.command(|engine| match engine.cqs.get(&cqn).map(|cq| cq.users) {
            None => Err(CardError::NotFound { what: "completion queue", number: cqn }),
            Some(0) => {
                engine.cqs.remove(&cqn);
                Ok(())
            }
            Some(users) => Err(CardError::Busy { what: "completion queue", number: cqn, users }),
        })
    }

    /// Creates a reliable-connected queue pair, in RESET. Returns its number.
    ///
    /// # Errors
    /// [`CardError::Invalid`], [`CardError::NotFound`], [`CardError::TooMany`].
    ///
    /// # Safety
    /// The addresses stay valid until the queue pair is destroyed.
    pub unsafe fn create_qp(&self, config: &QpConfig) -> Result<u32, CardError> {
        let power = |what, value: u32| {
            let fits = value.is_power_of_two() && value <= 1 << 16;
            let limit = "a power of two, at most 2^16";
            if fits { Ok(()) } else { Err(CardError::Invalid { what, value: value.into(), limit }) }
        };
        power("send queue blocks", config.sq_blocks)?;
        power("receive queue entries", config.rq_entries)?;
        if config.rq_stride == 0 || !config.rq_stride.is_multiple_of(16) {
            let limit = "a multiple of 16";
            return Err(CardError::Invalid {
                what: "receive queue stride",
                value: config.rq_stride.into(),
                limit,
            });
        }
        self.command(|engine| {
            within("queue pairs", engine.qps.len(), LIMITS.max_qp)?;
            let missing = |what, number| CardError::NotFound { what, number };
            for cqn in [config.send_cq, config.recv_cq] {
                engine.cqs.get(&cqn).ok_or(missing("completion queue", cqn))?;
            }
            engine.pds.get(&config.pdn).ok_or(missing("protection domain", config.pdn))?;
            let qpn = self.number(|number| engine.qps.contains_key(&number));
            engine.uars.get_mut(&config.uar).ok_or(missing("UAR", config.uar))?.qps.push(qpn);
            for cqn in [config.send_cq, config.recv_cq] {
                engine.cqs.entry(cqn).and_modify(|cq| cq.users += 1);
            }
            engine.pds.entry(config.pdn).and_modify(|users| *users += 1);
            // SAFETY: the caller's.
            engine.qps.insert(qpn, unsafe { qp::Qp::new(qpn, config) });
            Ok(qpn)
        })
    }

    /// Changes a queue pair.
    ///
    /// # Errors
    /// [`CardError`]: a transition that is not there, a missing or superfluous attribute, a value out of range. Nothing has
    /// changed then.
    pub fn modify_qp(&self, qpn: u32, change: &QpChange) -> Result<(), CardError> {
        self.command(|engine| {
            let qp = engine.qps.get(&qpn).ok_or(CardError::NotFound { what: "queue pair", number: qpn })?;
            let to = modify::check(qp.attributes.state, change)?;
            engine.with_qp(qpn, Instant::now(), |qp, context| match to {
                QpState::Reset => qp.reset(),
                QpState::Err => {
                    qp.ring(context);
                    qp.go_to_error(context);
                }
                to => qp.apply(change, to),
            });
            if to != QpState::Err {
                engine.recovered(qpn);
            }
            engine.schedule(qpn);
            Ok(())
        })
    }

    /// Attributes of a queue pair.
    ///
    /// # Errors
    /// [`CardError::NotFound`].
    pub fn query_qp(&self, qpn: u32) -> Result<QpAttributes, CardError> {
        self.command(|engine| {
            let qp = engine.qps.get(&qpn).ok_or(CardError::NotFound { what: "queue pair", number: qpn })?;
            let (sq_psn, rq_psn) = (qp.sender.next_psn, qp.receiver.expected_psn);
            Ok(QpAttributes { sq_psn, rq_psn, ..qp.attributes })
        })
    }

    /// Destroys a queue pair: after this returns, the card touches neither its memory nor what its work requests name.
    ///
    /// # Errors
    /// [`CardError::NotFound`].
    pub fn destroy_qp(&self, qpn: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let qp = engine.remove_qp(qpn).ok_or(CardError::NotFound { what: "queue pair", number: qpn })?;
            for cqn in [qp.send_cq, qp.recv_cq] {
                engine.cqs.entry(cqn).and_modify(|cq| cq.users -= 1);
            }
            leave(engine, qp.pdn);
            Ok(())
        })
    }
}

fn within(what: &'static str, count: usize, limit: u32) -> Result<(), CardError> {
    if count < limit as usize { Ok(()) } else { Err(CardError::TooMany { what, limit }) }
}

/// An object has left a protection domain.
fn leave(engine: &mut Engine, pdn: u32) {
    engine.pds.entry(pdn).and_modify(|users| *users -= 1);
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
