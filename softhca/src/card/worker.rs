//! The thread that serves a card, and other threads of the process that do its work: a thread that has rung a doorbell,
//! threads that wait for the card, and threads that poll for completions. An idle card's thread polls for a while and
//! then naps; a store of a GPU or libmlx5 to a register during a nap is noticed only at its end.

use super::engine::{Engine, RungPages};
use super::listeners::{self, Listener};
use super::memory::region::UsedPages;
use super::naps::{Spin, count_late_nap, nap_length, use_short_slices};
use super::pollers::{NAP, Pollers, Recent, has_few_cores};
use super::port::Port;
use super::reports::Event;
use crate::fabric::Sleeper;
use crate::os::{guard, socket};
use gdsync_sys::contain::contain;
use gdsync_sys::host::cores;
use gdsync_sys::pause::use_fine_timers;
use gdsync_sys::wake;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Receives asynchronous events. The engine's thread or the thread that caused the event calls it, without holding a
/// lock. A panic in it is logged, and the event is lost.
pub type EventSink = Box<dyn Fn(Event) + Send + Sync>;

/// Maximum number of steps by a thread that has rung, or that has polled and leaves.
const STEPS: usize = 4;

/// Maximum number of queue pairs of a card that other threads help. Beyond it, one thread that serves all is faster
/// than threads that each do a step for one.
const QUEUE_PAIRS: usize = 64;

/// Time for which the card's thread sleeps while another thread holds the lock, on few cores.
const LOCKED_NAP: Duration = Duration::from_micros(50);

/// Maximum number of steps by the card's thread before it releases the lock, on few cores: a thread that polls may take
/// the lock in between, and wait for the core.
const STEPS_AT_ONCE: usize = 8;

impl Engine {
    /// Returns whether other threads may do the card's work.
    pub(super) fn may_be_helped(&self) -> bool {
        !self.workers.own_thread_only && self.qps.len() <= QUEUE_PAIRS
    }
}

/// The part of a card that its thread shares.
pub(super) struct Shared {
    pub(super) port: Port,
    pub(super) engine: Mutex<Engine>,
    pub(super) sleeper: Arc<Sleeper>,
    pub(super) sink: EventSink,
    pub(super) stop: AtomicBool,
    pub(super) sleeps: AtomicBool,
    /// True if threads announce every doorbell, because the card has too many pages to poll.
    pub(super) wants_all_rings: AtomicBool,
    /// The engine's list of announced doorbell pages.
    pub(super) announced: Arc<RungPages>,
    pub(super) used: Arc<UsedPages>,
    pub(super) pollers: Pollers,
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
            engine.workers.own_thread_only = true;
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

    /// Does a step of the card's work on the calling thread, which has found no completion. Returns whether there was
    /// work.
    pub(super) fn assist(&self) -> bool {
        let Some(mut engine) = self.engine.try_lock() else {
            // The thread that works may wait for this core.
            std::thread::yield_now();
            return false;
        };
        if !engine.may_be_helped() {
            return false;
        }
        let now = engine.now();
        self.pollers.polls(now);
        if engine.workers.announced.take_if(|nap| *nap <= NAP).is_some() {
            engine.fabric.cancel_sleep();
        }
        let worked = self.step(&mut engine, now);
        self.deliver_events(engine);
        if socket::take_poked() | self.pollers.stepped(worked) {
            // The card's thread of a peer, which a packet has woken, may wait for this core.
            std::thread::yield_now();
        }
        worked
    }

    /// Ends the help of a thread that has found completions.
    pub(super) fn end_assist(&self) {
        // Most polls of a program that always finds something end here.
        if !self.pollers.may_be_at_work() || !self.pollers.finds(Instant::now()) {
            return;
        }
        // The thread that has the lock works for the card, or delays a packet by `NAP` at most.
        let Some(mut engine) = self.engine.try_lock() else { return };
        if !engine.may_be_helped() || engine.workers.announced.is_some() || engine.workers.helpers > 0 {
            return;
        }
        let now = engine.now();
        let announced = (0..STEPS).any(|_| {
            self.step(&mut engine, now);
            self.prepare_sleep(&mut engine, now)
        });
        engine.workers.announced = announced.then_some(NAP);
        self.deliver_events(engine);
        if !announced {
            // Without the lock, as the card's thread may run at once on this core.
            self.sleeper.raise();
        }
    }

    pub(super) fn run(self: &Arc<Self>) {
        guard::prepare();
        use_fine_timers();
        use_short_slices();
        let mut spin = Spin::on_this_machine();
        let mut idle_since: Option<Instant> = None;
        let mut nap: Option<Duration> = None;
        let (mut has_slept, mut recent) = (false, Recent::new());
        while !self.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            // Without the lock: this thread might have it and get no core, and those that poll would do nothing.
            if self.pollers.work_much(&mut recent, now) && self.nap_if_polled() {
                has_slept = true;
                continue;
            }
            let Some(mut engine) = self.lock() else { continue };
            if engine.workers.helpers > 0 {
                if has_slept {
                    // What has ended one sleep must not end the next ones, too.
                    engine.fabric.finish_sleep();
                }
                self.sleep(engine, NAP);
                has_slept = true;
                continue;
            }
            if has_slept {
                (engine.workers.asleep, engine.workers.announced) = (false, None);
                // Packets that have ended the sleep come first, the sockets later.
                engine.fabric.cancel_sleep();
            }
            let (worked, is_idle) = self.work(&mut engine, now);
            if std::mem::take(&mut has_slept) {
                engine.fabric.finish_sleep();
            }
            if let Some(nap) = nap.take().filter(|_| worked) {
                count_late_nap(nap);
                spin.was_too_short(idle_since.map_or(nap, |since| now.duration_since(since)));
            }
            if worked {
                idle_since = None;
            }
            if !engine.resources.events.is_empty() {
                self.deliver_events(engine);
                continue;
            }
            let idle = now.duration_since(*idle_since.get_or_insert(now));
            let spins = idle < spin.time() && !recent.is_steady;
            if !is_idle || spins {
                // A command that waits for the lock gets it first.
                MutexGuard::unlock_fair(engine);
                std::hint::spin_loop();
                continue;
            }
            nap = self.nap(engine, nap_length(idle, recent.is_steady), now);
            has_slept = true;
        }
    }

    /// Locks the engine. On few cores, it sleeps for [`LOCKED_NAP`] if another thread works: a thread that waits for the
    /// lock yields its core, and Linux lets it wait for a whole time slice of a thread that polls.
    fn lock(&self) -> Option<MutexGuard<'_, Engine>> {
        if !has_few_cores() {
            return Some(self.engine.lock());
        }
        let engine = self.engine.try_lock();
        if engine.is_none() {
            std::thread::sleep(LOCKED_NAP);
        }
        engine
    }

    /// Does a step, or on few cores, several. Returns whether there was work, and whether the last step found none.
    fn work(&self, engine: &mut Engine, now: Instant) -> (bool, bool) {
        let most = if has_few_cores() { STEPS_AT_ONCE } else { 1 };
        for done in 0..most {
            if !self.step(engine, now) {
                return (done > 0, true);
            }
            if !engine.resources.events.is_empty() {
                break;
            }
        }
        (true, false)
    }

    /// Sleeps until the fabric or a command wakes the card, or until the doorbell registers must be polled again: a
    /// store raises no wake-up unless the storing thread announces it. Returns the time slept, if it is the whole time.
    fn nap(
        self: &Arc<Self>,
        mut engine: MutexGuard<'_, Engine>,
        longest: Duration,
        now: Instant,
    ) -> Option<Duration> {
        let mut slept = None;
        if self.pollers.card_falls_asleep() {
            drop(engine);
            self.nap_if_polled();
            return slept;
        }
        // Set before the last poll of the registers.
        self.set_sleeps(true);
        if self.prepare_sleep(&mut engine, now) {
            self.register_awaited_words(&mut engine);
            let timer = engine.next_timer().map_or(longest, |at| at.saturating_duration_since(now));
            let start = Instant::now();
            engine.workers.announced = Some(longest);
            self.sleep(engine, timer.min(longest));
            // A wake-up or a timer ended shorter naps: their work was not there before.
            slept = Some(start.elapsed()).filter(|slept| timer > longest && *slept >= longest);
        }
        self.set_sleeps(false);
        self.pollers.card_wakes_up();
        slept
    }

    /// Sleeps without an announcement, if a thread polls.
    fn nap_if_polled(&self) -> bool {
        let polled = self.pollers.card_falls_asleep();
        if polled {
            self.sleeper.sleep(NAP);
        }
        self.pollers.card_wakes_up();
        polled
    }

    /// Sets whether the card's thread sleeps or is about to, with no wake-up pending. Threads look up the card of a
    /// rung doorbell only while it is set.
    pub(super) fn set_sleeps(&self, sleeps: bool) {
        if self.sleeps.swap(sleeps, Ordering::AcqRel) != sleeps {
            wake::report_card_sleep(sleeps);
        }
    }

    /// Sets whether threads announce doorbells even while the card's thread is awake.
    pub(super) fn set_wants_all_rings(&self, wants: bool) {
        if self.wants_all_rings.swap(wants, Ordering::AcqRel) != wants {
            wake::report_card_sleep(wants);
        }
    }

    /// Returns this card as a listener for announced stores.
    pub(super) fn as_listener(self: &Arc<Self>) -> Weak<dyn Listener> {
        let this: Weak<Self> = Arc::downgrade(self);
        this
    }

    /// Registers the words that WAITs have started to wait for, so that announced stores to them wake the card.
    pub(super) fn register_awaited_words(self: &Arc<Self>, engine: &mut Engine) {
        for word in engine.resources.awaited.take_new() {
            listeners::register(word, self.as_listener(), None);
        }
    }

    fn sleep(&self, mut engine: MutexGuard<'_, Engine>, longest: Duration) {
        engine.workers.asleep = true;
        drop(engine);
        if !self.stop.load(Ordering::Acquire) {
            self.sleeper.sleep(longest);
        }
    }

    fn wake(&self) {
        self.sleeper.wake();
        // Further doorbells need no wake-up.
        self.set_sleeps(false);
    }
}

impl Listener for Shared {
    fn doorbell(&self, page: Option<u32>, may_serve: bool) {
        page.into_iter().for_each(|page| self.announced.push(page));
        if !may_serve {
            return self.wake();
        }
        // The thread that holds the lock works, or is about to sleep.
        let Some(mut engine) = self.engine.try_lock() else { return self.wake() };
        if !engine.may_be_helped() {
            drop(engine);
            return self.wake();
        }
        let now = engine.now();
        let all = (0..STEPS).any(|_| !self.step(&mut engine, now));
        self.deliver_events(engine);
        if !all {
            self.wake();
        }
    }

    fn serve(&self, helps: bool) -> bool {
        // A helper that holds the lock finds all work. A joining thread waits for one step at most.
        let mut engine = match self.engine.try_lock() {
            Some(engine) => engine,
            None if helps => return true,
            None => self.engine.lock(),
        };
        if !engine.may_be_helped() {
            drop(engine);
            if helps {
                self.leave();
            }
            return false;
        }
        if !helps {
            // Each helper occupies a core.
            if engine.workers.helpers as usize >= cores() {
                return false;
            }
            engine.workers.helpers += 1;
            if engine.workers.helpers == 1 && engine.workers.asleep {
                // Peers need not wake the card's thread while a helper works.
                engine.workers.announced = None;
                engine.fabric.cancel_sleep();
            }
        }
        let now = engine.now();
        self.step(&mut engine, now);
        self.deliver_events(engine);
        true
    }

    /// The last helper announces again that the card's own thread sleeps, or wakes that thread.
    fn leave(&self) {
        let mut engine = self.engine.lock();
        engine.workers.helpers -= 1;
        if engine.workers.helpers == 0 && engine.workers.asleep {
            let now = engine.now();
            let sleeps_on = !engine.workers.own_thread_only && self.prepare_sleep(&mut engine, now);
            if sleeps_on {
                engine.workers.announced = Some(Duration::MAX);
            } else {
                self.sleeper.raise();
            }
        }
        self.deliver_events(engine);
    }
}
