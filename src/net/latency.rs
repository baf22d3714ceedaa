//! Messages one after the other: the stream posts each, waits for its completion, and takes the time.
//!
//! The CPU enqueues a chunk of them ahead, and looks at completions once the stream has passed them.

use super::flow::{Direction, Moved};
use super::side::Net;
use crate::failure::Failure;
use crate::interrupt;
use crate::progress::Progress;
use crate::sides::{Arrival, CHUNKS, Channel};
use gdsync::Batch;
use std::collections::VecDeque;
use std::time::Instant;

impl Net {
    /// Moves the messages of the warm-up and of the measurement.
    pub(super) fn one_by_one(&mut self, channel: &mut Channel) -> Result<Moved, Failure> {
        let (warmup, duration) = (self.options.sides.warmup, self.options.sides.duration);
        let iters = if duration.is_some() { u64::MAX / 2 } else { self.options.sides.iters };
        let mut end = warmup + iters;
        let mut progress = Progress::new(self.options.sides.json || duration.is_some(), end, "messages");
        let (start, mut ends) = (Instant::now(), None);
        let (mut next, mut passed, mut chunks) = (0, 0, VecDeque::new());
        self.side.driver.begin()?;
        while next < end || !chunks.is_empty() {
            if interrupt::requested() || ends.is_some_and(|at| Instant::now() >= at) {
                // One at least, so that what is compared has been sent.
                end = next.max(1);
            }
            if next < end && (chunks.len() as u64) < CHUNKS {
                if next == warmup {
                    ends = duration.map(|duration| Instant::now() + duration);
                }
                let whole = if next < warmup { warmup } else { end };
                let count = self.options.batch().min(whole - next);
                (next..next + count).try_for_each(|sequence| self.enqueue(sequence))?;
                next += count;
                self.side.driver.mark(count)?;
                chunks.push_back(count);
            } else if let Some(count) = chunks.pop_front() {
                self.side.driver.pass()?;
                passed += count;
                self.collect()?;
                self.side.findings.error.check()?;
                if self.lanes[0].done < passed {
                    return Err("the stream has passed a completion that is not there".into());
                }
                progress.advance(count);
            }
        }
        self.side.driver.synchronize()?;
        self.lanes[0].phase = 0..next;
        let sent = self.report_sent(channel, start)?.without(warmup);
        let own = Direction { took: self.side.findings.timing().elapsed(), ..sent };
        Ok(Moved { own, other: Direction::default() })
    }

    fn enqueue(&mut self, sequence: u64) -> Result<(), Failure> {
        self.side.findings.error.check()?;
        let send = self.prepare(0, 0, true)?;
        self.lanes[0].note_posted(1);
        let wait = self.side.connection.queue_pair().send_cq().prepare_wait()?;
        self.side.post(Batch::new().send(send).wait(wait))?;
        self.side.driver.arrived(sequence, Arrival { is_checked: false, is_timed: true })
    }
}
