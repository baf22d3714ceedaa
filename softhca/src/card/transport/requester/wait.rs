//! Work requests without packets: WAITs for a completion queue, a word or a time, SEND_ENs, changes of memory keys, and
//! reads of local memory.

use super::state::Requester;
use crate::card::config::{Access, QpState};
use crate::card::context::Enable;
use crate::card::memory::copy::{Location, load_word};
use crate::card::memory::translation::KeyRange;
use crate::card::queue::WqeError;
use crate::card::queue::cq::Progress;
use crate::card::queue::wait::{self, Wait};
use crate::card::queue::wqe::{Payload, each_piece};
use crate::card::transport::endpoint::Step;
use crate::os::clock;
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::wait::{CQ_INDEX, WaitDataSeg, has_entry, word};
use std::time::Duration;

/// Time between two polls of a word in peer memory: its clients are slow, and the card does nothing else while one
/// copies.
const PEER_PERIOD: Duration = Duration::from_micros(50);

enum WaitState {
    Met,
    NotYet,
    Refused(WqeError),
}

fn refused(syndrome: Syndrome, field: &'static str, message: String) -> WaitState {
    WaitState::Refused(WqeError { syndrome, field, message })
}

impl Requester {
    #[inline]
    pub(crate) fn has_unmet_wait(&self) -> bool {
        self.waits.unmet
    }

    /// Polls the WAIT under the cursor. Returns whether the requester may go on, possibly with an error.
    pub(crate) fn poll_wait(&mut self, step: &mut Step<'_, '_>) -> bool {
        let next = self.requests.get(self.cursor).and_then(|request| request.work.as_ref().ok()?.wait);
        let waits = match next {
            Some(next) if self.waits.unmet => matches!(self.poll(next, step), WaitState::NotYet),
            _ => false,
        };
        self.waits.unmet = waits;
        !waits
    }

    /// Executes the WAIT or SEND_EN under the cursor. Returns whether the next request may follow.
    pub(super) fn pass_wait(&mut self, step: &mut Step<'_, '_>) -> bool {
        let Some(request) = self.requests.get(self.cursor) else { return false };
        let Some(next) = request.work.as_ref().ok().and_then(|work| work.wait) else { return false };
        let index = request.first as u16;
        self.check_luck(next, step);
        match self.poll(next, step) {
            WaitState::NotYet => {
                self.waits.unmet = true;
                self.waits.since.get_or_insert(step.context.now);
                return false;
            }
            WaitState::Refused(error) => {
                step.report(Some(index), error.field, error.message);
                self.fail_current(error.syndrome, step);
                return false;
            }
            WaitState::Met => {}
        }
        (self.waits.next_poll, self.waits.since) = (None, None);
        if let Wait::Completions { cqn, index } = next {
            self.waits.entry = Some((cqn, index));
        }
        self.requests[self.cursor].done = true;
        self.cursor += 1;
        self.complete_done(step);
        step.endpoint.state() == QpState::Rts
    }

    fn poll(&mut self, next: Wait, step: &mut Step<'_, '_>) -> WaitState {
        match next {
            Wait::Completions { cqn, index } => self.poll_queue(cqn, index, step),
            Wait::Data(segment) => self.poll_word(&segment, step),
            Wait::Time(segment) => compare(&segment, clock::nanoseconds()),
            Wait::SendEnable { qpn, index } => self.enable(qpn, index, step),
        }
    }

    fn poll_queue(&mut self, cqn: u32, index: u32, step: &mut Step<'_, '_>) -> WaitState {
        let Some(Progress { produced, first_error, overrun }) = step.context.progress(cqn) else {
            let message = format!("waits for completion queue {cqn:#x}, which does not exist");
            return refused(Syndrome::LocalQpOperation, "cqn", message);
        };
        // From the first error entry on, none counts.
        let is_spoilt = !step.context.waits.errors_count
            && first_error.is_some_and(|error| has_entry(index.wrapping_add(1), error));
        if has_entry(produced, index) && !is_spoilt {
            return WaitState::Met;
        }
        if is_spoilt || overrun {
            let cause = if overrun { "has overrun" } else { "has an error entry, which does not count here" };
            self.report_hopeless(format!("entry {index} of completion queue {cqn:#x}, which {cause}"), step);
        }
        WaitState::NotYet
    }

    fn poll_word(&mut self, segment: &WaitDataSeg, step: &mut Step<'_, '_>) -> WaitState {
        let (key, addr) = (segment.lkey(), segment.addr());
        let range = KeyRange { key, addr, len: size_of::<u64>() as u64 };
        let location = match step.context.regions.resolve(range, step.endpoint.pdn, Access::empty()) {
            Ok(pieces) => pieces.single(),
            Err(refusal) => return refused(Syndrome::LocalProtection, "lkey", refusal.to_string()),
        };
        let Some(location) = location else {
            let message = format!("the word at {addr:#x} is in several pieces of memory");
            return refused(Syndrome::LocalProtection, "address", message);
        };
        if let Location::Peer(..) = location {
            let now = step.context.now;
            if self.waits.next_poll.is_some_and(|at| now < at) {
                return WaitState::NotYet;
            }
            self.waits.next_poll = Some(now + PEER_PERIOD);
        }
        // SAFETY: resolved just now, to registered memory of that many bytes, which stays registered while the engine
        // is locked.
        let number = match unsafe { load_word(location) } {
            Ok(Some(native)) => word(native),
            Ok(None) => {
                let message = format!("{addr:#x} is not aligned to 8 bytes in the program's memory");
                return refused(Syndrome::LocalProtection, "address", message);
            }
            Err(failure) => {
                let message = step.context.regions.describe(&failure);
                return refused(Syndrome::LocalProtection, failure.field(), message);
            }
        };
        self.check_word(segment, number, step);
        match compare(segment, number) {
            WaitState::NotYet if wait::fails_at_once(segment) => {
                let message = format!("{segment}: the word is {number:#x}, and action 1 asks for an error");
                refused(Syndrome::LocalQpOperation, "action", message)
            }
            WaitState::Met => {
                self.waits.next_poll = None;
                WaitState::Met
            }
            WaitState::NotYet => {
                if let Location::Host(word) = location {
                    step.context.awaited.add(word as usize);
                }
                WaitState::NotYet
            }
            other => other,
        }
    }

    fn enable(&mut self, slave: u32, until: u16, step: &mut Step<'_, '_>) -> WaitState {
        if !step.endpoint.config.master {
            let message = "SEND_EN on a queue pair that was not created with cd_master".to_owned();
            return refused(Syndrome::LocalQpOperation, "cd_master", message);
        }
        let index = self.requests.get(self.cursor).map_or(0, |request| request.first as u16);
        if step.context.enable(Enable { slave, until, master: step.endpoint.qpn, index }) {
            return WaitState::Met;
        }
        let message = format!("{slave:#x} is no queue pair that was created with cd_slave_send");
        refused(Syndrome::LocalQpOperation, "qpn", message)
    }

    /// Reports WAITs that work by luck only, before the first poll.
    fn check_luck(&mut self, next: Wait, step: &mut Step<'_, '_>) {
        match next {
            Wait::Data(segment) => {
                if let Some(reason) = wait::never_met(&segment).filter(|_| !wait::fails_at_once(&segment)) {
                    self.report_hopeless(format!("{segment}: {reason}"), step);
                }
            }
            Wait::Completions { cqn, index }
                if self.waits.entry.is_some_and(|last| is_stale(last, cqn, index)) =>
            {
                let message = format!("entry {index} of completion queue {cqn:#x} was awaited before");
                let message = message + ": this WAIT holds nothing back";
                step.advise(self.current_index(), "WAIT index", message);
            }
            _ => {}
        }
    }

    /// Reports a word that goes backwards while a WAIT expects it to grow.
    fn check_word(&mut self, segment: &WaitDataSeg, number: u64, step: &mut Step<'_, '_>) {
        let name = (segment.lkey(), segment.addr());
        let last = self.waits.word.replace((name, number)).filter(|(last, _)| *last == name);
        let Some((_, before)) = last.filter(|_| wait::is_ordered(segment)) else { return };
        let mask = segment.mask();
        let grown = (number & mask).wrapping_sub(before & mask) << mask.leading_zeros().min(63);
        if (grown as i64) < 0 {
            let message = format!("went back from {before:#x} to {number:#x}");
            step.advise(self.current_index(), "trigger word", message);
        }
    }

    fn report_hopeless(&mut self, message: String, step: &mut Step<'_, '_>) {
        let first = self.requests.get(self.cursor).map(|request| request.first);
        if self.waits.hopeless != first {
            self.waits.hopeless = first;
            step.report(self.current_index(), "WAIT", message + ": it is never met");
        }
    }

    fn current_index(&self) -> Option<u16> {
        self.requests.get(self.cursor).map(|request| request.first as u16)
    }

    /// Executes the request under the cursor, which has no packets, and moves past it. Returns false if it fails, or if
    /// the queue pair can send no more.
    pub(super) fn pass_local(&mut self, step: &mut Step<'_, '_>) -> bool {
        let request = &self.requests[self.cursor];
        let Ok(work) = &request.work else { return false };
        let (pdn, qpn) = (step.endpoint.pdn, step.endpoint.qpn);
        let failure = match (&work.change, &work.payload) {
            (Some(change), _) => match step.context.regions.change(change, (pdn, qpn)) {
                Ok(()) => None,
                Err(error) => Some((Syndrome::MwBind, "mkey", error.to_string())),
            },
            // DUMP reads its bytes and drops them.
            (None, Payload::Segments(segments) | Payload::Mixed(_, segments)) => {
                let regions = step.context.regions;
                let read = each_piece(segments, 0, work.length, |range| {
                    regions.resolve(range, pdn, Access::empty()).map(drop)
                });
                let refused = read.err();
                refused.map(|refusal| (Syndrome::LocalProtection, "lkey", refusal.to_string()))
            }
            (None, Payload::Inline(_)) => None,
        };
        if let Some((syndrome, field, message)) = failure {
            step.report(Some(request.first as u16), field, message);
            self.fail_current(syndrome, step);
            return false;
        }
        self.requests[self.cursor].done = true;
        self.cursor += 1;
        self.complete_done(step);
        step.endpoint.state() == QpState::Rts
    }
}

/// Returns whether an entry is not after the one that was last awaited in the same queue.
fn is_stale((queue, last): (u32, u32), cqn: u32, index: u32) -> bool {
    queue == cqn && last.wrapping_sub(index) & CQ_INDEX <= CQ_INDEX / 2
}

fn compare(segment: &WaitDataSeg, number: u64) -> WaitState {
    match segment.is_met(number) {
        Ok(true) => WaitState::Met,
        Ok(false) => WaitState::NotYet,
        Err(unknown) => refused(Syndrome::LocalQpOperation, "operation", unknown.to_string()),
    }
}
