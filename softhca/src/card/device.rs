//! A running card: its port, its objects and its thread.

use super::bell::{self, Served};
use super::config::{LIMITS, Limits};
use super::counters::Counters;
use super::diagnostic::Diagnostic;
use super::engine::{self, Engine};
use super::error::CardError;
use super::event::Event;
use super::naps::{self, Spin};
use super::port::{GidEntry, LinkLayer, Port};
use super::told::Told;
use super::waits::WaitRules;
use crate::fabric::{Fabric, Sleeper};
use crate::faults::{self, FaultPlan, Faults, RuleCount};
use crate::liberties::{self, Dice, Liberties};
use crate::os::clock;
use crate::peer_memory;
use crate::setting;
use crate::speed::Speed;
use gdsync_status::Published;
use gdsync_sys::contain::contain;
use gdsync_sys::{thread, wake};
use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// The first object number: hardware gives small numbers special meanings.
pub(super) const FIRST_NUMBER: u32 = 0x40;

/// Time for which the card's thread sleeps while another thread does its work.
const HELPED_NAP: Duration = Duration::from_micros(100);

/// Receives asynchronous events. The engine's thread or the thread that caused the event calls it, without holding a
/// lock. A panic in it is logged, and the event is lost.
pub type EventSink = Box<dyn Fn(Event) + Send + Sync>;

/// A UAR page of a card.
#[derive(Clone, Copy, Debug)]
pub struct UarHandle {
    /// Its number.
    pub id: u32,
    /// Its first byte. The page is valid until the UAR is freed.
    pub page: *mut u8,
    /// Its offset in the file of all pages ([`Card::uar_file`]).
    pub offset: u64,
}

/// A software card: one port on the fabric, and the thread that serves it.
pub struct Card {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    pub(super) next_number: AtomicU32,
    pub(super) port: Port,
    /// Registration with the status server of this process, until the card ends.
    published: Option<Published>,
    gids: Vec<GidEntry>,
    faults: Faults,
    limits: Limits,
}

/// The part of a card that its thread shares.
pub(super) struct Shared {
    pub(super) port: Port,
    pub(super) engine: Mutex<Engine>,
    pub(super) sleeper: Arc<Sleeper>,
    sink: EventSink,
    pub(super) stop: AtomicBool,
    rests: AtomicBool,
    /// True if threads announce every doorbell, because the card has too many pages to poll.
    is_always_told: AtomicBool,
    /// The engine's list of announced doorbell pages.
    pub(super) told: Arc<Told>,
}

impl Card {
    /// Claims a LID and starts a card whose port has the given link layer. On the fabric of several hosts
    /// ([`LISTEN_VARIABLE`](crate::fabric::LISTEN_VARIABLE)) it claims an IPv4 address instead, and the port is
    /// Ethernet.
    ///
    /// # Errors
    /// [`CardError::Setting`] for a malformed setting in the environment, [`CardError::Fabric`], [`CardError::System`].
    pub fn start(link: LinkLayer, sink: EventSink) -> Result<Card, CardError> {
        let mut card = Card::stopped(link, sink)?;
        let shared = card.shared.clone();
        let thread = thread::start(Builder::new().name("gdsync-softhca".to_owned()), move || shared.run())?;
        card.thread = Some(thread);
        card.published = Some(gdsync_status::publish(card.shared.clone()));
        Ok(card)
    }

    /// Creates a card without a thread. The caller steps its engine.
    pub(super) fn stopped(link: LinkLayer, sink: EventSink) -> Result<Card, CardError> {
        setting::check_names()?;
        faults::plan_from_environment()?;
        let (waits, dice) = (WaitRules::from_environment()?, liberties::of_next_card()?);
        let limits = Limits::from_environment()?;
        let fabric = Fabric::bind(Speed::from_environment()?)?;
        let mut card = Card::on(fabric, link, sink, waits, dice);
        card.limits = limits;
        Ok(card)
    }

    pub(super) fn on(fabric: Fabric, link: LinkLayer, sink: EventSink, waits: WaitRules, dice: Dice) -> Card {
        let sleeper = fabric.sleeper();
        let ipv4 = fabric.ipv4();
        // The fabric of several hosts has no LIDs.
        let link = if ipv4.is_some() { LinkLayer::Ethernet } else { link };
        let port = Port { link, lid: fabric.lid(), ipv4 };
        let faults = faults::join();
        let engine = Engine::new(fabric, port, faults.clone(), dice, waits);
        let shared = Arc::new(Shared {
            port,
            told: engine.told.clone(),
            is_always_told: AtomicBool::new(false),
            engine: Mutex::new(engine),
            sleeper,
            sink,
            stop: AtomicBool::new(false),
            rests: AtomicBool::new(false),
        });
        let next_number = AtomicU32::new(FIRST_NUMBER);
        Card {
            shared,
            thread: None,
            next_number,
            port,
            published: None,
            gids: port.gids(),
            faults,
            limits: LIMITS,
        }
    }

    /// Returns its LID, unique on the host while the card lives. A card with an Ethernet port has one, too: its GIDs
    /// end with it, and fronts report LID 0. 0 on the fabric of several hosts.
    pub fn lid(&self) -> u16 {
        self.port.lid
    }

    /// Returns the link layer of its port.
    pub fn link_layer(&self) -> LinkLayer {
        self.port.link
    }

    /// Returns its GUID: an EUI-64 of the locally administered range that ends with the LID.
    pub fn guid(&self) -> u64 {
        self.port.guid()
    }

    /// Returns its GID table. InfiniBand: the link-local prefix with the GUID. Ethernet: the same GID as RoCE v1 and as
    /// RoCE v2, then the IPv4-mapped address `::ffff:10.83.x.y` as both, where x.y is the LID. On the fabric of several
    /// hosts the IPv4 address is the card's own, and the GUID ends with it, too.
    pub fn gids(&self) -> &[GidEntry] {
        &self.gids
    }

    /// Returns its limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the speed of its timers.
    pub fn speed(&self) -> Speed {
        self.shared.engine.lock().resources.speed
    }

    /// Returns its rules for work requests that wait.
    pub fn wait_rules(&self) -> WaitRules {
        self.shared.engine.lock().resources.waits
    }

    /// Registers another mapping of the page of doorbell registers `id` ([`Self::uar_file`]): stores of this process
    /// there wake the card, if the storing thread announces them ([`gdsync_sys::wake::rung`]).
    pub fn also_mapped_at(&self, id: u32, page: *mut u8) {
        bell::hang(page as usize, self.shared.as_served(), Some(id));
    }

    /// Changes its rules for work requests that wait, including those that wait already.
    pub fn set_wait_rules(&self, rules: WaitRules) {
        self.command(|engine| engine.resources.waits = rules);
    }

    /// Returns the current time of the clock that WAIT for a time compares: nanoseconds of `CLOCK_MONOTONIC`. The card
    /// polls it like doorbells, so an idle card is up to 1 ms late.
    pub fn ticks(&self) -> u64 {
        clock::nanoseconds()
    }

    /// Counts the packets from now on in `counters`, too.
    pub fn count_in(&self, counters: Arc<Counters>) {
        self.command(|engine| engine.counters.file = Some(counters));
    }

    /// Returns the last 256 findings of the strict checker, oldest first.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        self.shared.engine.lock().resources.diagnostics.all()
    }

    /// Applies a plan to this card only, instead of the process's plan, and restarts its counts. `None` ends the card's
    /// faults.
    pub fn set_faults(&self, plan: Option<&FaultPlan>) {
        self.faults.set(plan);
        self.shared.sleeper.wake();
    }

    /// Takes these liberties, or none, instead of the process's.
    pub fn set_liberties(&self, liberties: Option<Liberties>) {
        self.command(|engine| engine.resources.dice = liberties::of_one_card(liberties));
    }

    /// Returns the fault rules of this card, with their counts.
    pub fn fault_counts(&self) -> Vec<RuleCount> {
        self.faults.counts()
    }

    /// Runs a command, and wakes the engine for the resulting work.
    pub(super) fn command<R>(&self, command: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = self.shared.engine.lock();
        let result = command(&mut engine);
        engine.rest.own_thread_only |= peer_memory::take_claimed();
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
        // From here on only `shared` keeps the engine alive.
        self.published = None;
        self.shared.stop.store(true, Ordering::Release);
        self.shared.sleeper.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the software card's thread panicked");
        }
        let mut engine = self.shared.engine.lock();
        engine.rest.own_thread_only = true;
        engine.flush_delayed_packets(Instant::now());
        engine.write_parked();
        drop(engine);
        self.shared.set_always_told(false);
        faults::leave(&self.faults);
    }
}

impl Shared {
    /// Runs one step of the engine under [`Self::contain`].
    pub(super) fn step(&self, engine: &mut Engine, now: Instant) -> bool {
        self.contain(engine, |engine| engine.step(now))
    }

    /// Runs [`Engine::prepare_sleep`] under [`Self::contain`].
    pub(super) fn prepare_sleep(&self, engine: &mut Engine, now: Instant) -> bool {
        self.contain(engine, |engine| engine.prepare_sleep(now))
    }

    /// Runs `work`; returns false if it panics. The card then stops serving and leaves the fabric: otherwise peers
    /// would wait for it, as for a stopped process, as long as the process lives.
    pub(super) fn contain(&self, engine: &mut Engine, work: impl FnOnce(&mut Engine) -> bool) -> bool {
        contain(|| work(engine)).unwrap_or_else(|panic| {
            tracing::error!(panic, "the software card panicked: it serves nothing any more");
            engine.rest.own_thread_only = true;
            engine.end_copies();
            engine.fabric.close();
            self.stop.store(true, Ordering::Release);
            false
        })
    }

    /// Releases the lock, and passes the pending events to the sink.
    pub(super) fn deliver_events(&self, mut engine: MutexGuard<'_, Engine>) {
        let events = std::mem::take(&mut engine.resources.events);
        drop(engine);
        for event in events {
            // A panic of the program's sink must not end the card's thread.
            if let Err(panic) = contain(|| (self.sink)(event)) {
                // Nor may a panic of its log subscriber, which could not be logged anyway.
                let _ = contain(|| tracing::error!(panic, "what receives a card's events panicked"));
            }
        }
    }

    fn run(self: &Arc<Self>) {
        use_fine_timers();
        let mut spin = Spin::on_this_machine();
        let mut idle_since: Option<Instant> = None;
        let mut nap: Option<Duration> = None;
        while !self.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            let mut engine = self.engine.lock();
            if engine.rest.helpers > 0 {
                self.sleep(engine, HELPED_NAP);
                continue;
            }
            let worked = self.step(&mut engine, now);
            let has_events = !engine.resources.events.is_empty();
            if has_events {
                self.deliver_events(engine);
            } else {
                // A command that waits for the lock gets it first.
                MutexGuard::unlock_fair(engine);
            }
            if let Some(nap) = nap.take().filter(|_| worked) {
                naps::was_late(nap);
                spin.was_too_short(idle_since.map_or(nap, |since| now.duration_since(since)));
            }
            if worked {
                idle_since = None;
                continue;
            }
            let idle = now.duration_since(*idle_since.get_or_insert(now));
            if idle < spin.time() {
                std::hint::spin_loop();
                continue;
            }
            nap = self.nap(engine::nap(idle), now);
        }
    }

    /// Sleeps until the fabric or a command wakes the card, or until the doorbell registers must be polled again: a
    /// store raises no wake-up unless the storing thread announces it. Returns the time slept, if it is the whole time.
    fn nap(self: &Arc<Self>, longest: Duration, now: Instant) -> Option<Duration> {
        let mut slept = None;
        let mut engine = self.engine.lock();
        // Set before the last poll of the registers.
        self.set_rests(true);
        if engine.rest.helpers == 0 && self.prepare_sleep(&mut engine, now) {
            self.hang_words(&mut engine);
            let timer = engine.next_timer().map_or(longest, |at| at.saturating_duration_since(now));
            let start = Instant::now();
            self.sleep(engine, timer.min(longest));
            // A wake-up or a timer ended shorter naps: their work was not there before.
            slept = Some(start.elapsed()).filter(|slept| timer > longest && *slept >= longest);
        }
        self.set_rests(false);
        slept
    }

    /// Sets whether the card's thread sleeps or is about to, with no wake-up pending. Threads look up the card of a
    /// rung doorbell only while it is set.
    pub(super) fn set_rests(&self, rests: bool) {
        if self.rests.swap(rests, Ordering::AcqRel) != rests {
            wake::card_rests(rests);
        }
    }

    /// Sets whether threads announce doorbells even while the card's thread is awake.
    pub(super) fn set_always_told(&self, told: bool) {
        if self.is_always_told.swap(told, Ordering::AcqRel) != told {
            wake::card_rests(told);
        }
    }

    /// This card as a listener for announced stores.
    pub(super) fn as_served(self: &Arc<Self>) -> Weak<dyn Served> {
        let this: Weak<Self> = Arc::downgrade(self);
        this
    }

    /// Registers the words that WAITs have started to wait for, so that announced stores to them wake the card.
    pub(super) fn hang_words(self: &Arc<Self>, engine: &mut Engine) {
        for word in engine.resources.awaited.take_new() {
            bell::hang(word, self.as_served(), None);
        }
    }

    fn sleep(&self, mut engine: MutexGuard<'_, Engine>, longest: Duration) {
        engine.rest.asleep = true;
        drop(engine);
        if !self.stop.load(Ordering::Acquire) {
            self.sleeper.sleep(longest);
        }
        let mut engine = self.engine.lock();
        engine.rest.asleep = false;
        if engine.rest.helpers == 0 {
            engine.fabric.finish_sleep();
        }
    }
}

/// Makes the calling thread's sleeps end on time: by default Linux extends them by up to 50 µs.
fn use_fine_timers() {
    // SAFETY: sets an attribute of the calling thread only; the argument is a number of nanoseconds.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong) };
}
