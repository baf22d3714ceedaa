//! Times of exchanges or messages and their statistics, and the CPU time used meanwhile.

use crate::plot::{self, Axis, Content, Scale, Series};
use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};
use std::io;
use std::time::{Duration, Instant};

pub(crate) struct Timing {
    warmup: u64,
    seen: u64,
    epoch: Instant,
    /// Nanoseconds since the epoch, or on the caller's clock.
    last: u64,
    started: Option<u64>,
    /// The divisor of each time: 2 for a round trip of two messages.
    divisor: u64,
    times: Histogram<u64>,
    pub(crate) shortest: u64,
    pub(crate) longest: u64,
}

impl Timing {
    /// Exchanges after the first `warmup` are measured, and their times divided by `divisor`, which is not 0.
    pub(crate) fn new(warmup: u64, divisor: u64) -> Self {
        // Three digits from 1 ns to an hour; these bounds are valid, as is the smaller default range.
        let times = Histogram::new_with_bounds(1, 3_600_000_000_000, 3)
            .or_else(|_| Histogram::new(3))
            .expect("3 digits are between 0 and 5");
        Timing {
            warmup,
            seen: 0,
            epoch: Instant::now(),
            last: 0,
            started: None,
            divisor: divisor.max(1),
            times,
            shortest: u64::MAX,
            longest: 0,
        }
    }

    /// Ends the warm-up after fewer exchanges, of which no later one has been seen.
    pub(crate) fn warm_up_ends_at(&mut self, exchanges: u64) {
        self.warmup = exchanges;
        if self.seen == exchanges {
            self.started = Some(self.last);
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn begin(&mut self) {
        self.begin_at(self.now());
    }

    /// The first exchange began at `ns` on the caller's clock, which then provides all times.
    pub(crate) fn begin_at(&mut self, ns: u64) {
        self.last = ns;
        self.started = (self.warmup == 0).then_some(ns);
    }

    pub(crate) fn exchanged(&mut self) {
        self.exchanged_at(self.now());
    }

    /// An exchange ended at `ns` on the clock of [`Self::begin_at`], and the next began.
    pub(crate) fn exchanged_at(&mut self, ns: u64) {
        self.seen += 1;
        if self.seen == self.warmup {
            self.started = Some(ns);
        } else if self.seen > self.warmup {
            let time = ns.saturating_sub(self.last) / self.divisor;
            self.times.saturating_record(time.max(1));
            self.shortest = self.shortest.min(time);
            self.longest = self.longest.max(time);
        }
        self.last = ns;
    }

    /// Returns the time not exceeded by this part of all exchanges. The histogram returns the upper bound of a range,
    /// which may exceed every measured time.
    pub(crate) fn quantile(&self, part: f64) -> u64 {
        self.times.value_at_quantile(part).min(self.longest)
    }

    /// Returns each measured time in ns, to three digits, and its frequency.
    pub(crate) fn recorded(&self) -> impl Iterator<Item = (u64, u64)> {
        let recorded = self.times.iter_recorded();
        recorded.map(|value| {
            (value.value_iterated_to().min(self.longest.max(1)), value.count_since_last_iteration())
        })
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.started.map_or(0, |started| self.last.saturating_sub(started)))
    }
}

/// A reading of the clock and of the CPU time, user and system, of all threads of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    at: Instant,
    cpu: Duration,
}

impl Usage {
    pub(crate) fn now() -> io::Result<Self> {
        // SAFETY: `rusage` is plain numbers, for which zeroes are valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is writable during the call, which keeps no pointer to it.
        if unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let time =
            |t: libc::timeval| Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64);
        Ok(Usage { at: Instant::now(), cpu: time(usage.ru_utime) + time(usage.ru_stime) })
    }

    pub(crate) fn since(&self, earlier: &Usage) -> (Duration, Duration) {
        (self.at.duration_since(earlier.at), self.cpu.saturating_sub(earlier.cpu))
    }
}

/// Bars of a histogram.
const BINS: usize = 80;

/// Column titles and JSON names of the values of [`Times`], in their order.
pub(crate) const TITLES: [&str; 6] = ["MIN µs", "P50 µs", "P90 µs", "P99 µs", "P99.9 µs", "MAX µs"];
pub(crate) const NAMES: [&str; 6] = ["min_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us"];
/// Lines of a picture, and the indices of their values. The percentiles are the marks of a histogram.
const LINES: [(&str, usize); 6] = [("P50", 1), ("P90", 2), ("P99", 3), ("P99.9", 4), ("MIN", 0), ("MAX", 5)];

/// Minimum, maximum and percentiles, in µs.
#[derive(Debug)]
pub(crate) struct Times {
    values: [f64; 6],
    /// Each time in µs, and its frequency.
    recorded: Vec<(f64, u64)>,
}

impl Serialize for Times {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(NAMES.iter().zip(self.values))
    }
}

impl Times {
    pub(crate) fn new(timing: &Timing) -> Self {
        let us = |ns: u64| ns as f64 / 1000.0;
        let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(|part| timing.quantile(part));
        Times {
            values: [timing.shortest, p50, p90, p99, p999, timing.longest].map(us),
            recorded: timing.recorded().map(|(ns, count)| (us(ns), count)).collect(),
        }
    }
}

/// Returns lines of times by size. `title` is the time axis's.
pub(crate) fn lines<'a>(title: &str, runs: impl Iterator<Item = (u64, &'a Times)> + Clone) -> Content {
    let line =
        |(name, at)| Series::new(name, runs.clone().map(|(size, times)| (size as f64, times.values[at])));
    let (x, y) = (Axis::new("Message", Scale::Sizes), Axis::new(title, Scale::Log));
    Content::Lines { x, y, series: LINES.map(line).to_vec() }
}

/// Returns a histogram of one run's times. `title` is the time axis's.
pub(crate) fn histogram(title: &str, times: &Times) -> Content {
    Content::Histogram {
        x: Axis::new(title, Scale::Log),
        bins: plot::bins(&times.recorded, BINS),
        marks: LINES[..4].iter().map(|(name, at)| ((*name).to_owned(), times.values[*at])).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_comes_after_the_warm_up_counts() {
        let mut timing = Timing::new(2, 2);
        timing.begin();
        (0..5).for_each(|_| timing.exchanged());
        assert_eq!(timing.times.len(), 3);
        assert!(timing.shortest <= timing.longest && timing.elapsed() > Duration::ZERO);
    }

    #[test]
    fn a_warm_up_that_ends_early_does_so_before_later_exchanges() {
        for (seen, ends) in [(2, 3), (3, 3)] {
            let mut timing = Timing::new(100, 1);
            timing.begin_at(0);
            (1..=seen).for_each(|number| timing.exchanged_at(number * 10));
            timing.warm_up_ends_at(ends);
            (seen + 1..=5).for_each(|number| timing.exchanged_at(number * 10));
            assert_eq!((timing.times.len(), timing.elapsed()), (2, Duration::from_nanos(20)), "{seen}");
        }
    }

    #[test]
    fn no_quantile_is_more_than_the_longest_time() {
        let mut timing = Timing::new(1, 2);
        timing.begin_at(0);
        [2, 4_000_002].iter().for_each(|ns| timing.exchanged_at(*ns));
        assert!(timing.times.value_at_quantile(0.999) > timing.longest);
        assert_eq!(timing.quantile(0.999), timing.longest);
    }

    #[test]
    fn times_of_another_clock_are_taken_as_they_are() {
        let mut timing = Timing::new(1, 2);
        timing.begin_at(1 << 60);
        [100, 300, 340].iter().for_each(|ns| timing.exchanged_at((1 << 60) + ns));
        assert_eq!((timing.shortest, timing.longest), (20, 100));
        assert_eq!(timing.recorded().collect::<Vec<_>>(), [(20, 1), (100, 1)]);
        assert_eq!((timing.times.len(), timing.elapsed()), (2, Duration::from_nanos(240)));
    }

    #[test]
    fn one_part_is_the_whole_time() {
        let mut timing = Timing::new(0, 1);
        timing.begin_at(100);
        [130, 230].iter().for_each(|ns| timing.exchanged_at(*ns));
        assert_eq!((timing.shortest, timing.longest), (30, 100));
    }

    #[test]
    fn work_uses_cpu_time() {
        let before = Usage::now().unwrap();
        let mut looks = 0u64;
        let (wall, cpu) = loop {
            looks += 1;
            let (wall, cpu) = Usage::now().unwrap().since(&before);
            if cpu > Duration::ZERO || looks == 1 << 30 {
                break (wall, cpu);
            }
        };
        assert!(cpu > Duration::ZERO && wall > Duration::ZERO);
    }
}
