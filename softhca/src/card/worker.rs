//! The thread that serves a card, and other threads of the process that do its work: a thread that has rung a doorbell,
//! threads that wait for the card, and threads that poll for completions. An idle card's thread polls for a while and
//! then naps; a store of a GPU or libmlx5 to a register during a nap is noticed only at its end.

use super::engine::{Engine, RungPages};
use super::listeners::{self, Listener};
use super::memory::region::UsedPages;
use super::port::Port;
use super::reports::Event;
use crate::fabric::Sleeper;
use crate::os::guard;
use gdsync_sys::contain::contain;
use gdsync_sys::wake;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Receives asynchronous events. The engine's thread or the thread that caused the event calls it, without holding a
/// lock. A panic in it is logged, and the event is lost.
pub type EventSink = Box<dyn Fn(Event) + Send + Sync>;

/// Time for which the card's thread sleeps while another thread does its work.
const HELPED_NAP: Duration = Duration::from_micros(100);

/// Least steps of polling threads between two looks of the card's thread for which it leaves the work to them: a
/// program that polls now and then does fewer.
const MANY_ASSISTS: u32 = 16;

/// The shortest time slice of a thread (`sched_setattr(2)`).
const SLICE: Duration = Duration::from_micros(100);

/// Maximum number of steps by a thread that has rung.
const STEPS: usize = 4;

/// Maximum number of queue pairs of a card that other threads help. Beyond it, one thread that serves all is faster
/// than threads that each do a step for one.
const QUEUE_PAIRS: usize = 64;

fn may_help(engine: &Engine) -> bool {
    !engine.workers.own_thread_only && engine.qps.len() <= QUEUE_PAIRS
}

/// Returns the maximum number of helpers: the number of cores, as each helper occupies one.
fn most_helpers() -> u32 {
    static MOST: OnceLock<u32> = OnceLock::new();
    *MOST.get_or_init(|| std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32))
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
    /// Steps of threads that poll for completions since the card's own thread looked last.
    pub(super) assists: AtomicU32,
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

    /// Does a step of the card's work on the calling thread, which polls for completions. Returns whether there was work.
    pub(super) fn assist(&self) -> bool {
        let Some(mut engine) = self.engine.try_lock() else {
            // The thread that works may wait for this core.
            std::thread::yield_now();
            return false;
        };
        if !may_help(&engine) {
            return false;
        }
        self.assists.fetch_add(1, Ordering::Relaxed);
        let now = engine.now();
        let worked = self.step(&mut engine, now);
        self.deliver_events(engine);
        worked
    }

    pub(super) fn run(self: &Arc<Self>) {
        guard::prepare();
        use_fine_timers();
        use_short_slices();
        let mut spin = Spin::on_this_machine();
        let mut idle_since: Option<Instant> = None;
        let mut nap: Option<Duration> = None;
        while !self.stop.load(Ordering::Acquire) {
            // Without the lock: this thread might have it and get no core, and those that poll would do nothing.
            if self.assists.swap(0, Ordering::Relaxed) >= MANY_ASSISTS {
                self.sleeper.sleep(HELPED_NAP);
                continue;
            }
            let now = Instant::now();
            let mut engine = self.engine.lock();
            if engine.workers.helpers > 0 {
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
                count_late_nap(nap);
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
            nap = self.nap(nap_length(idle), now);
        }
    }

    /// Sleeps until the fabric or a command wakes the card, or until the doorbell registers must be polled again: a
    /// store raises no wake-up unless the storing thread announces it. Returns the time slept, if it is the whole time.
    fn nap(self: &Arc<Self>, longest: Duration, now: Instant) -> Option<Duration> {
        let mut slept = None;
        let mut engine = self.engine.lock();
        // Set before the last poll of the registers.
        self.set_sleeps(true);
        if engine.workers.helpers == 0 && self.prepare_sleep(&mut engine, now) {
            self.register_awaited_words(&mut engine);
            let timer = engine.next_timer().map_or(longest, |at| at.saturating_duration_since(now));
            let start = Instant::now();
            self.sleep(engine, timer.min(longest));
            // A wake-up or a timer ended shorter naps: their work was not there before.
            slept = Some(start.elapsed()).filter(|slept| timer > longest && *slept >= longest);
        }
        self.set_sleeps(false);
        slept
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
        let mut engine = self.engine.lock();
        engine.workers.asleep = false;
        if engine.workers.helpers == 0 {
            engine.fabric.finish_sleep();
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
        if !may_help(&engine) {
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
        if !may_help(&engine) {
            engine.workers.helpers -= u32::from(helps);
            return false;
        }
        if !helps {
            if engine.workers.helpers >= most_helpers() {
                return false;
            }
            engine.workers.helpers += 1;
            if engine.workers.helpers == 1 && engine.workers.asleep {
                // Peers need not wake the card's thread while a helper works.
                engine.fabric.finish_sleep();
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
            if !sleeps_on {
                self.sleeper.raise();
            }
        }
        self.deliver_events(engine);
    }
}

/// Makes the calling thread's sleeps end on time: by default Linux extends them by up to 50 µs.
fn use_fine_timers() {
    // SAFETY: sets an attribute of the calling thread only; the argument is a number of nanoseconds.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong) };
}

/// Asks for the shortest time slice, so that the calling thread, once awake, soon preempts a thread that polls. Linux
/// grants it from 6.12 on; before, the slice stays as it was.
fn use_short_slices() {
    // SAFETY: plain numbers, for which zeros are valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attributes) as u32;
    // SAFETY: reads and sets attributes of the calling thread only, in a structure of the given size.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) == 0
            && attributes.sched_policy == libc::SCHED_OTHER as u32
        {
            attributes.sched_runtime = SLICE.as_nanos() as u64;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
        }
    }
}

/// Returns the length of the next nap of an engine that has found no work for the time `idle`.
fn nap_length(idle: Duration) -> Duration {
    match idle {
        idle if idle < Duration::from_millis(2) => Duration::from_micros(30),
        idle if idle < Duration::from_millis(100) => Duration::from_micros(100),
        _ => Duration::from_millis(1),
    }
}

/// Sleeps of the threads of all cards of this process that work has waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LateWakeups {
    /// Number of sleeps that lasted to their end and after which work was found at once.
    pub count: u64,
    /// Total length of these sleeps: an upper bound of the time that work has waited for them.
    pub time: Duration,
}

static LATE: AtomicU64 = AtomicU64::new(0);
static LATE_NS: AtomicU64 = AtomicU64::new(0);

/// Returns the statistics up to now.
pub fn late_wakeups() -> LateWakeups {
    let (count, nanoseconds) = (LATE.load(Ordering::Relaxed), LATE_NS.load(Ordering::Relaxed));
    LateWakeups { count, time: Duration::from_nanos(nanoseconds) }
}

/// Counts a nap at whose end work was found.
fn count_late_nap(nap: Duration) {
    LATE.fetch_add(1, Ordering::Relaxed);
    LATE_NS.fetch_add(nap.as_nanos() as u64, Ordering::Relaxed);
}

/// Time for which a card's thread polls for work before it naps.
///
/// A GPU that rings a register wakes no thread, so its work waits for the end of a nap. If work keeps arriving a little
/// after the polling has ended, every message costs a nap, which delays the next one, too. So a nap that delayed work
/// doubles the polling time up to a limit; work that comes later than the limit resets it. With few cores the time is
/// constant: polling would occupy a core that the program needs.
#[derive(Debug)]
struct Spin {
    least: Duration,
    most: Duration,
    now: Duration,
}

impl Spin {
    fn on_this_machine() -> Self {
        Self::on(std::thread::available_parallelism().map_or(1, |cores| cores.get()))
    }

    fn on(cores: usize) -> Self {
        let (least, most) = match cores {
            ..=2 => (10, 10),
            3..=4 => (50, 50),
            _ => (50, 200),
        };
        let [least, most] = [least, most].map(Duration::from_micros);
        Spin { least, most, now: least }
    }

    fn time(&self) -> Duration {
        self.now
    }

    /// Adapts the time after a nap has delayed work that came after `idle` without work.
    fn was_too_short(&mut self, idle: Duration) {
        self.now = if idle <= self.most { (2 * self.now).min(self.most) } else { self.least };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_looks_longer_where_work_keeps_coming_and_as_before_where_it_does_not() {
        let mut spin = Spin::on(16);
        let micros = Duration::from_micros;
        let mut after = |idle| {
            spin.was_too_short(micros(idle));
            spin.time()
        };
        assert_eq!([after(80), after(130), after(190), after(200)], [100, 200, 200, 200].map(micros));
        assert_eq!([after(201), after(60)], [50, 100].map(micros));
    }

    #[test]
    fn on_few_cores_it_does_not() {
        for (cores, time) in [(1, 10), (2, 10), (4, 50)] {
            let mut spin = Spin::on(cores);
            spin.was_too_short(Duration::from_micros(1));
            assert_eq!(spin.time(), Duration::from_micros(time));
        }
    }
}
