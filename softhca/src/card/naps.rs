//! How long a card's thread polls for work before it naps, and how long it naps; which naps work has waited for.

use super::pollers::{FEW_CORES, NAP};
use gdsync_sys::host::cores;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The shortest time slice of a thread (`sched_setattr(2)`).
const SLICE: Duration = Duration::from_micros(100);

/// Asks for the shortest time slice, so that the calling thread, once awake, soon preempts a thread that polls. Linux
/// grants it from 6.12 on; before, the slice stays as it was.
pub(super) fn use_short_slices() {
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

/// Returns the length of the next nap of an engine that has found no work for the time `idle`. Short naps would take the
/// core from threads that poll.
pub(super) fn nap_length(idle: Duration, pollers_are_steady: bool) -> Duration {
    match idle {
        idle if idle < Duration::from_millis(2) && !pollers_are_steady => Duration::from_micros(30),
        idle if idle < Duration::from_millis(100) => NAP,
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
pub(super) fn count_late_nap(nap: Duration) {
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
pub(super) struct Spin {
    least: Duration,
    most: Duration,
    now: Duration,
}

impl Spin {
    pub(super) fn on_this_machine() -> Self {
        Self::on(cores())
    }

    fn on(cores: usize) -> Self {
        let (least, most) = match cores {
            ..=FEW_CORES => (10, 10),
            3..=4 => (50, 50),
            _ => (50, 200),
        };
        let [least, most] = [least, most].map(Duration::from_micros);
        Spin { least, most, now: least }
    }

    pub(super) fn time(&self) -> Duration {
        self.now
    }

    /// Adapts the time after a nap has delayed work that came after `idle` without work.
    pub(super) fn was_too_short(&mut self, idle: Duration) {
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
