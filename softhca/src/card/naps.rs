//! How long an idle card's thread polls and sleeps, and the cost of its naps: a store of a GPU or libmlx5 to a register
//! during a nap is noticed only at its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Statistics of the naps of all cards of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Naps {
    /// Naps that lasted to their end and after which work was found at once.
    pub late: u64,
    /// Total length of these naps: an upper bound of the time that work has waited for them.
    pub late_time: Duration,
}

static LATE: AtomicU64 = AtomicU64::new(0);
static LATE_NS: AtomicU64 = AtomicU64::new(0);

/// Returns the statistics up to now.
pub fn naps() -> Naps {
    Naps {
        late: LATE.load(Ordering::Relaxed),
        late_time: Duration::from_nanos(LATE_NS.load(Ordering::Relaxed)),
    }
}

/// Counts a nap at whose end work was found.
pub(super) fn was_late(nap: Duration) {
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

    /// Returns the current polling time.
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
