//! Lists of queue pairs with work, and their timers.

use crate::card::config::QpState;
use crate::card::transport::qp::Qp;
use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

#[derive(Default)]
pub(super) struct Schedule {
    /// Queue pairs with something to send.
    active: VecDeque<u32>,
    /// Number of queue pairs of `active` that the current round has not served yet.
    left_in_round: usize,
    pub(super) rounds: u64,
    /// Queue pairs that found the fabric full.
    blocked: Vec<u32>,
    /// Queue pairs in ERR: receives posted to them are flushed.
    failed: BTreeSet<u32>,
    /// Queue pairs whose next request is a WAIT that was not met at the last poll.
    waiting: BTreeSet<u32>,
    timers: BTreeSet<(Instant, u32)>,
}

impl Schedule {
    pub(super) fn activate(&mut self, qp: &mut Qp) {
        if !std::mem::replace(&mut qp.scheduled, true) {
            self.active.push_back(qp.endpoint.qpn);
        }
    }

    pub(super) fn active(&self) -> usize {
        self.active.len()
    }

    pub(super) fn next_active(&mut self) -> Option<u32> {
        self.left_in_round = self.left_in_round.saturating_sub(1);
        self.active.pop_front()
    }

    /// Returns whether a round has ended, in which every queue pair was served that had something to send at its start.
    /// If so, starts the next round.
    pub(super) fn ends_round(&mut self) -> bool {
        let ends = self.left_in_round == 0;
        if ends {
            self.left_in_round = self.active.len();
            self.rounds += 1;
        }
        ends
    }

    pub(super) fn block(&mut self, qpn: u32) {
        self.blocked.push(qpn);
    }

    pub(super) fn take_blocked(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.blocked)
    }

    pub(super) fn failed(&self) -> Vec<u32> {
        self.failed.iter().copied().collect()
    }

    /// Updates the failed, waiting and timer lists after a step of a queue pair.
    pub(super) fn update(&mut self, qp: &mut Qp) {
        let qpn = qp.endpoint.qpn;
        if qp.endpoint.state() == QpState::Err {
            self.failed.insert(qpn);
        }
        if qp.requester.has_unmet_wait() {
            self.waiting.insert(qpn);
        }
        // A timer that is set too early expires without effect and is set again. This costs less than moving it with
        // every packet.
        if let Some(wake) = qp.next_wake()
            && qp.timer.is_none_or(|timer| wake < timer)
        {
            if let Some(old) = qp.timer.replace(wake) {
                self.timers.remove(&(old, qpn));
            }
            self.timers.insert((wake, qpn));
        }
    }

    pub(super) fn waiting(&self) -> Vec<u32> {
        self.waiting.iter().copied().collect()
    }

    pub(super) fn stop_waiting(&mut self, qpn: u32) {
        self.waiting.remove(&qpn);
    }

    pub(super) fn next_expired(&mut self, now: Instant) -> Option<u32> {
        let (_, qpn) = *self.timers.first().filter(|(at, _)| *at <= now)?;
        self.timers.pop_first();
        Some(qpn)
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    pub(super) fn clear_failed(&mut self, qpn: u32) {
        self.failed.remove(&qpn);
    }

    pub(super) fn remove(&mut self, qp: &Qp) {
        let qpn = qp.endpoint.qpn;
        self.failed.remove(&qpn);
        self.waiting.remove(&qpn);
        if let Some(timer) = qp.timer {
            self.timers.remove(&(timer, qpn));
        }
    }
}
