//! What a pingpong measured.

use crate::cli::PingpongOptions;
use crate::text;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Times of exchanges, taken by the stream itself.
pub(super) struct Timing {
    warmup: u64,
    seen: u64,
    last: Instant,
    started: Option<Instant>,
    halves: Histogram<u64>,
    shortest: u64,
    longest: u64,
}

impl Timing {
    pub(super) fn new(warmup: u64) -> Self {
        // Three digits from 1 ns to an hour: the bounds are valid, and a smaller range would be, too.
        let halves = Histogram::new_with_bounds(1, 3_600_000_000_000, 3)
            .or_else(|_| Histogram::new(3))
            .expect("3 digits are between 0 and 5");
        Timing {
            warmup,
            seen: 0,
            last: Instant::now(),
            started: None,
            halves,
            shortest: u64::MAX,
            longest: 0,
        }
    }

    /// The first exchange begins.
    pub(super) fn begin(&mut self) {
        self.last = Instant::now();
        self.started = (self.warmup == 0).then_some(self.last);
    }

    /// An exchange has ended, and the next begins.
    pub(super) fn exchanged(&mut self) {
        let now = Instant::now();
        self.seen += 1;
        if self.seen == self.warmup {
            self.started = Some(now);
        } else if self.seen > self.warmup {
            let half = u64::try_from(now.duration_since(self.last).as_nanos() / 2).unwrap_or(u64::MAX);
            self.halves.saturating_record(half.max(1));
            self.shortest = self.shortest.min(half);
            self.longest = self.longest.max(half);
        }
        self.last = now;
    }

    fn elapsed(&self) -> Duration {
        self.started.map_or(Duration::ZERO, |started| self.last.duration_since(started))
    }
}

/// The result, in the words of the JSON form.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    card: String,
    op: crate::cli::Operation,
    procs: u64,
    trigger: crate::cli::Trigger,
    batch: u64,
    /// Bytes of a message.
    size: u64,
    /// Exchanges measured; each is two messages.
    iterations: u64,
    /// Half round trips in µs.
    min_us: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    /// Messages of both directions.
    messages_per_s: f64,
    bytes_per_s: f64,
    /// Memory operations of this side's stream for one exchange.
    memory_operations_per_iteration: f64,
    /// Every byte of every message was checked.
    verified: bool,
}

impl Report {
    pub(super) fn new(options: &PingpongOptions, card: String, timing: &Timing, operations: u64) -> Self {
        let us = |ns: u64| ns as f64 / 1000.0;
        let seconds = timing.elapsed().as_secs_f64();
        let messages = 2.0 * options.iters as f64 / seconds.max(1e-9);
        Report {
            card,
            op: options.op,
            procs: options.procs,
            trigger: options.trigger,
            batch: options.batch,
            size: options.size,
            iterations: options.iters,
            min_us: us(timing.shortest),
            p50_us: us(timing.halves.value_at_quantile(0.5)),
            p99_us: us(timing.halves.value_at_quantile(0.99)),
            max_us: us(timing.longest),
            messages_per_s: messages,
            bytes_per_s: messages * options.size as f64,
            memory_operations_per_iteration: operations as f64 / (options.iters + options.warmup) as f64,
            verified: options.check,
        }
    }

    pub(super) fn table(&self) -> String {
        let checked = if self.verified { "every byte verified" } else { "NOT verified" };
        let heading = format!(
            "{} between {} on {}, triggered by the {}, {} exchanges enqueued at a time, {checked}\n",
            self.op,
            if self.procs == 2 { "two processes" } else { "two sides of one process" },
            self.card,
            self.trigger,
            self.batch,
        );
        let header =
            ["SIZE", "ITERS", "MIN µs", "P50 µs", "P99 µs", "MAX µs", "MESSAGES", "BYTES", "MEMOPS/ITER"];
        let row = vec![
            text::bytes(self.size),
            self.iterations.to_string(),
            format!("{:.2}", self.min_us),
            format!("{:.2}", self.p50_us),
            format!("{:.2}", self.p99_us),
            format!("{:.2}", self.max_us),
            text::rate(self.messages_per_s, "msg"),
            text::rate(self.bytes_per_s, "B"),
            format!("{:.2}", self.memory_operations_per_iteration),
        ];
        heading + &text::table(&header, &[row])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_comes_after_the_warm_up_counts() {
        let mut timing = Timing::new(2);
        timing.begin();
        (0..5).for_each(|_| timing.exchanged());
        assert_eq!(timing.halves.len(), 3);
        assert!(timing.shortest <= timing.longest && timing.elapsed() > Duration::ZERO);
    }
}
