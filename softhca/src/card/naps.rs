//! What naps of the cards of this process have cost: a card that has no work naps, and finds what a GPU, or
//! libmlx5, has stored to a register only after that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Naps of all cards of this process, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Naps {
    /// Those that lasted to their end, and after which there was work at once.
    pub late: u64,
    /// Their lengths together: the most that work has waited for a nap to end.
    pub late_time: Duration,
}

static LATE: AtomicU64 = AtomicU64::new(0);
static LATE_NS: AtomicU64 = AtomicU64::new(0);

/// The naps so far.
pub fn naps() -> Naps {
    Naps {
        late: LATE.load(Ordering::Relaxed),
        late_time: Duration::from_nanos(LATE_NS.load(Ordering::Relaxed)),
    }
}

/// A nap had come to its end, and there was work then.
pub(super) fn was_late(nap: Duration) {
    LATE.fetch_add(1, Ordering::Relaxed);
    LATE_NS.fetch_add(nap.as_nanos() as u64, Ordering::Relaxed);
}

/// How long a card's thread looks for work before it naps.
///
/// A GPU that rings a register wakes no thread, so what it rings during a nap waits for the nap's end. Where work keeps coming a
/// little later than the thread looks for it, each message pays for a nap, which makes the next one late, too. So the thread looks
/// longer after a nap that work has waited in, up to a limit, and as before once work comes later than the limit. On few cores it
/// does not: it would occupy one that its program needs.
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

    /// How long it looks now.
    pub(super) fn time(&self) -> Duration {
        self.now
    }

    /// Work that a nap has kept waiting came after there was none for so long.
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
