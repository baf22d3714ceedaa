//! Waiting for memory that another thread, a card or a process writes, without occupying a core.

use super::wake::{self, Helper};
use crate::host::cores;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Spins briefly, then sleeps in growing intervals up to a limit.
///
/// The awaited writer usually is another thread of this machine: a software card, a kernel, a peer process. On a
/// machine with few cores, a spinning thread occupies the core that the writer needs.
///
/// Each wake-up occupies a core for a moment. If more than eight threads of the process sleep at the same time, each
/// sleeps longer, up to 32 ms, so that all of them together wake as often as eight do. A sleep on a word of memory
/// ([`Pause::pause_at`]) still ends with the write.
///
/// ```
/// use gdsync_sys::pause::Pause;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// let done = AtomicBool::new(false);
/// std::thread::scope(|scope| {
///     scope.spawn(|| done.store(true, Ordering::Release));
///     let mut pause = Pause::new();
///     while !done.load(Ordering::Acquire) {
///         pause.pause();
///     }
/// });
/// ```
#[derive(Debug)]
pub struct Pause {
    started: Instant,
    spins: u32,
    interval: Duration,
}

const MIN_INTERVAL: Duration = Duration::from_micros(20);
const MAX_INTERVAL: Duration = Duration::from_micros(500);
/// Threads of a process that may sleep at the same time without prolonging each other's intervals.
const UNSCALED_SLEEPERS: u32 = 8;
/// Longest interval, however many threads sleep.
const MAX_SCALED_INTERVAL: Duration = Duration::from_millis(32);
/// Longest time for which a waiting thread does a card's work before it sleeps.
const CARD_WORK_TIME: Duration = Duration::from_micros(100);

impl Pause {
    /// Begins the wait.
    #[expect(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> Self {
        Pause { started: Instant::now(), spins: 0, interval: MIN_INTERVAL }
    }

    /// Returns the time since the wait began.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Spins once or sleeps; called between two checks of the memory.
    pub fn pause(&mut self) {
        if !self.should_spin() {
            let sleeper = Sleeper::begin();
            std::thread::sleep(sleeper.length(self.interval));
            self.slept();
        }
    }

    /// Like [`Self::pause`], for a word of memory: the sleep ends as soon as a software card of this process writes
    /// to the word. `is_there` checks the memory once more before the sleep; its result is returned.
    ///
    /// With `helper`, the thread works for the card that it waits for, instead of spinning.
    pub fn pause_at(
        &mut self,
        address: usize,
        helper: Option<&mut Helper>,
        is_there: impl FnOnce() -> bool,
    ) -> bool {
        if let Some(helper) = helper {
            let elapsed = self.started.elapsed();
            if elapsed < CARD_WORK_TIME && helper.serve() {
                if elapsed > spin_limit() {
                    // With few cores, the writer may wait for this one.
                    std::thread::yield_now();
                }
                return false;
            }
            helper.leave();
        }
        if self.should_spin() {
            return false;
        }
        let sleeper = Sleeper::begin();
        let found = wake::wait_for_write(address, sleeper.length(self.interval), is_there);
        self.slept();
        found
    }

    /// Returns true if it is too early to sleep.
    fn should_spin(&mut self) -> bool {
        self.spins = self.spins.wrapping_add(1);
        // Reading the clock costs more than a check of the memory, so only every 32nd call reads it.
        if !self.spins.is_multiple_of(32) {
            std::hint::spin_loop();
            return true;
        }
        self.started.elapsed() < spin_limit()
    }

    fn slept(&mut self) {
        self.spins = u32::MAX - (u32::MAX % 32) - 1;
        if self.started.elapsed() > self.interval * 20 {
            self.interval = (self.interval * 2).min(MAX_INTERVAL);
        }
    }
}

static SLEEPERS: AtomicU32 = AtomicU32::new(0);

/// A registration of a sleeping thread.
struct Sleeper {
    threads: u32,
}

impl Sleeper {
    fn begin() -> Self {
        // Relaxed: the number only affects a length of time.
        Sleeper { threads: SLEEPERS.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    fn length(&self, interval: Duration) -> Duration {
        if self.threads <= UNSCALED_SLEEPERS {
            interval
        } else {
            (interval * self.threads / UNSCALED_SLEEPERS).min(MAX_SCALED_INTERVAL)
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        SLEEPERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Queries the number of cores, so that no wait has to ([`cores`]).
pub fn prepare() {
    cores();
}

fn spin_limit() -> Duration {
    Duration::from_micros(if cores() <= 2 { 10 } else { 100 })
}

/// Makes the calling thread's sleeps end on time: by default Linux may prolong them by 50 µs.
pub fn use_fine_timers() {
    // SAFETY: sets an attribute of the calling thread only; the argument is a number of nanoseconds.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_grow_and_stay_bounded() {
        let mut pause = Pause::new();
        while pause.elapsed() < Duration::from_millis(40) {
            pause.pause();
        }
        assert!(pause.interval > MIN_INTERVAL && pause.interval <= MAX_INTERVAL);
    }

    #[test]
    fn many_threads_nap_longer_and_wake_no_more_often_together() {
        let length = |threads| {
            // No thread sleeps for this value: the count must not change.
            std::mem::ManuallyDrop::new(Sleeper { threads }).length(MAX_INTERVAL)
        };
        assert!((1..=UNSCALED_SLEEPERS).all(|threads| length(threads) == MAX_INTERVAL));
        let often = |threads: u32| f64::from(threads) / length(threads).as_secs_f64();
        assert!(
            (UNSCALED_SLEEPERS + 1..=512).all(|threads| often(threads) <= often(UNSCALED_SLEEPERS) * 1.001)
        );
        assert!((UNSCALED_SLEEPERS..5000).all(|threads| length(threads) <= length(threads + 1)));
        assert_eq!((length(512), length(5000)), (MAX_SCALED_INTERVAL, MAX_SCALED_INTERVAL));
    }

    #[test]
    fn a_nap_that_has_ended_is_not_counted() {
        let before = {
            let sleeper = Sleeper::begin();
            assert_ne!(SLEEPERS.load(Ordering::Relaxed), 0);
            sleeper.threads
        };
        // Other tests sleep concurrently, each on one thread.
        assert!((0..10_000).all(|_| Sleeper::begin().threads < before + 1000));
    }
}
