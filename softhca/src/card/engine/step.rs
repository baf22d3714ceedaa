//! One step of the engine: a bounded amount of work of every kind.

use super::doorbells::{PAGES, PAGES_BEFORE_SLEEP};
use super::send::Served;
use super::state::Engine;
use crate::card::transport::qp::Qp;
use std::time::{Duration, Instant};

/// Maximum number of queue pairs that one step serves.
const QP_BUDGET: usize = 16;

impl Engine {
    /// Does a bounded amount of work. Returns whether there was any.
    pub(crate) fn step(&mut self, now: Instant) -> bool {
        self.step_with(PAGES, now)
    }

    /// Returns a step that polls the doorbells of `pages` pages in turn.
    fn step_with(&mut self, pages: usize, now: Instant) -> bool {
        self.resources.clock.tick();
        let mut worked = self.look_at_doorbells(pages, now);
        worked |= self.take_packets(now);
        worked |= self.flush_failed(now);
        worked |= self.fire_timers(now);
        worked |= self.release_packets(now);
        worked |= self.release_completions(now);
        worked |= self.raise_held_events(now);
        worked |= self.look_for_waits(now);
        for qpn in self.schedule.take_blocked() {
            self.activate(qpn);
        }
        for _ in 0..QP_BUDGET.min(self.schedule.active()) {
            let Some(qpn) = self.schedule.next_active() else { break };
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.scheduled = false;
            }
            match self.serve(qpn, now) {
                Served::All => worked = true,
                Served::Part => {
                    worked = true;
                    self.activate(qpn);
                }
                Served::Blocked => self.schedule.block(qpn),
            }
        }
        if self.schedule.ends_round() {
            self.fabric.end_round();
        }
        worked
    }

    /// Returns when the engine next has work without a packet or a doorbell.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        let delayed = [self.delayed.next_due(), self.resources.delayed.next_due()];
        let held = self.resources.held.first().map(|(due, _)| *due);
        delayed.into_iter().chain([self.schedule.next_timer(), held]).flatten().min()
    }

    fn flush_failed(&mut self, now: Instant) -> bool {
        let mut flushed = false;
        for qpn in self.schedule.failed() {
            flushed |= self.with_qp(qpn, now, Qp::flush_new_receives).unwrap_or(false);
        }
        flushed
    }

    /// Polls the WAITs of all queue pairs with an unmet one. Returns whether one is met. A store to a word raises no
    /// event. Without such queue pairs this costs nothing: an empty list takes no memory.
    fn look_for_waits(&mut self, now: Instant) -> bool {
        let mut goes_on = false;
        for qpn in self.schedule.waiting() {
            if self.with_qp(qpn, now, Qp::look).unwrap_or(true) {
                self.schedule.released(qpn);
                self.activate(qpn);
                goes_on = true;
            }
        }
        goes_on
    }

    /// Announces sleep to the fabric. False if there is work after all.
    pub(crate) fn prepare_sleep(&mut self, now: Instant) -> bool {
        if !self.fabric.prepare_sleep() {
            return false;
        }
        // Work that arrived before the announcement raised no wake-up: look for it once more.
        if self.step_with(PAGES_BEFORE_SLEEP, now) {
            self.fabric.finish_sleep();
            return false;
        }
        true
    }
}

/// Returns the length of the next nap of an engine that has found no work for the time `idle`.
pub(crate) fn nap(idle: Duration) -> Duration {
    match idle {
        idle if idle < Duration::from_millis(2) => Duration::from_micros(30),
        idle if idle < Duration::from_millis(100) => Duration::from_micros(100),
        _ => Duration::from_millis(1),
    }
}
