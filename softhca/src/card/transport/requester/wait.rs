//! WAITs for a completion queue, a word or a time, and SEND_ENs.

use crate::card::config::Access;
use crate::card::context::Enable;
use crate::card::memory::clock::Clock;
use crate::card::memory::copy::{Location, load_word};
use crate::card::memory::translation::KeyRange;
use crate::card::queue::WqeError;
use crate::card::queue::cq::Progress;
use crate::card::queue::wait::{self, Wait};
use crate::card::transport::endpoint::Step;
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::wait::{CQ_INDEX, WaitDataSeg, has_entry, word};
use std::time::{Duration, Instant};

/// Time between two polls of a word in peer memory: its clients are slow, and the card does nothing else while one
/// copies.
const PEER_PERIOD: Duration = Duration::from_micros(50);

/// Whether a WAIT is met, or why it cannot be executed.
type Polled = Result<bool, WqeError>;

fn refused(syndrome: Syndrome, field: &'static str, message: String) -> Polled {
    Err(WqeError { syndrome, field, message })
}

#[derive(Debug, Default)]
pub(super) struct Waits {
    /// True if the next request is a WAIT that was not met at the last poll.
    pub(super) unmet: bool,
    /// When the WAIT under the cursor was first found unmet.
    since: Option<Instant>,
    /// Time before which a word in peer memory is not polled again.
    next_poll: Option<Instant>,
    /// The word polled last, by key and address, and its value then.
    word: Option<((u32, u64), u64)>,
    /// The completion queue and index of the last met WAIT for one.
    entry: Option<(u32, u32)>,
    /// The block of a WAIT that was reported as hopeless.
    hopeless: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) what: String,
    /// Distinguishes it from a later one with the same text.
    pub(crate) mark: u64,
    /// Known for a WAIT only.
    pub(crate) time: Option<Duration>,
    /// The completion queue of a WAIT for one.
    pub(crate) cqn: Option<u32>,
}

impl Waits {
    /// Executes the WAIT or SEND_EN of a block. Returns whether the next request may follow.
    pub(super) fn execute(&mut self, next: Wait, block: u32, step: &mut Step<'_, '_>) -> Polled {
        self.check_luck(next, block, step);
        if !self.poll(next, block, step)? {
            self.unmet = true;
            self.since.get_or_insert(step.context.now);
            return Ok(false);
        }
        (self.next_poll, self.since) = (None, None);
        if let Wait::Completions { cqn, index } = next {
            self.entry = Some((cqn, index));
        }
        Ok(true)
    }

    /// Polls the WAIT of a block. Returns whether it is met.
    pub(super) fn poll(&mut self, next: Wait, block: u32, step: &mut Step<'_, '_>) -> Polled {
        match next {
            Wait::Completions { cqn, index } => self.poll_queue(cqn, index, block, step),
            Wait::Data(segment) => self.poll_word(&segment, block, step),
            Wait::Time(segment) => compare(&segment, step.context.clock.nanoseconds()),
            Wait::SendEnable { qpn, index } => enable(qpn, index, block, step),
        }
    }

    fn poll_queue(&mut self, cqn: u32, index: u32, block: u32, step: &mut Step<'_, '_>) -> Polled {
        let Some(Progress { produced, first_error, overrun }) = step.context.progress(cqn) else {
            let message = format!("waits for completion queue {cqn:#x}, which does not exist");
            return refused(Syndrome::LocalQpOperation, "cqn", message);
        };
        // From the first error entry on, none counts.
        let is_spoilt = !step.context.waits.errors_count
            && first_error.is_some_and(|error| has_entry(index.wrapping_add(1), error));
        if has_entry(produced, index) && !is_spoilt {
            return Ok(true);
        }
        if is_spoilt || overrun {
            let cause = if overrun { "has overrun" } else { "has an error entry, which does not count here" };
            let message = format!("entry {index} of completion queue {cqn:#x}, which {cause}");
            self.report_hopeless(message, block, step);
        }
        Ok(false)
    }

    fn poll_word(&mut self, segment: &WaitDataSeg, block: u32, step: &mut Step<'_, '_>) -> Polled {
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
            if self.next_poll.is_some_and(|at| now < at) {
                return Ok(false);
            }
            self.next_poll = Some(now + PEER_PERIOD);
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
        self.check_word(segment, number, block, step);
        let is_met = compare(segment, number)?;
        if is_met {
            self.next_poll = None;
        } else if wait::fails_at_once(segment) {
            let message = format!("{segment}: the word is {number:#x}, and action 1 asks for an error");
            return refused(Syndrome::LocalQpOperation, "action", message);
        } else if let Location::Host(word) = location {
            step.context.awaited.add(word as usize);
        }
        Ok(is_met)
    }

    /// Reports WAITs that work by luck only, before the first poll.
    fn check_luck(&mut self, next: Wait, block: u32, step: &mut Step<'_, '_>) {
        match next {
            Wait::Data(segment) => {
                if let Some(reason) = wait::never_met(&segment).filter(|_| !wait::fails_at_once(&segment)) {
                    self.report_hopeless(format!("{segment}: {reason}"), block, step);
                }
            }
            Wait::Completions { cqn, index } if self.entry.is_some_and(|last| is_stale(last, cqn, index)) => {
                let message = format!("entry {index} of completion queue {cqn:#x} was awaited before");
                let message = message + ": this WAIT holds nothing back";
                step.advise(Some(block as u16), "WAIT index", message);
            }
            _ => {}
        }
    }

    /// Reports a word that goes backwards while a WAIT expects it to grow.
    fn check_word(&mut self, segment: &WaitDataSeg, number: u64, block: u32, step: &mut Step<'_, '_>) {
        let name = (segment.lkey(), segment.addr());
        let last = self.word.replace((name, number)).filter(|(last, _)| *last == name);
        let Some((_, before)) = last.filter(|_| wait::is_ordered(segment)) else { return };
        let mask = segment.mask();
        let grown = (number & mask).wrapping_sub(before & mask) << mask.leading_zeros().min(63);
        if (grown as i64) < 0 {
            let message = format!("went back from {before:#x} to {number:#x}");
            step.advise(Some(block as u16), "trigger word", message);
        }
    }

    fn report_hopeless(&mut self, message: String, block: u32, step: &mut Step<'_, '_>) {
        if self.hopeless.replace(block) != Some(block) {
            step.report(Some(block as u16), "WAIT", message + ": it is never met");
        }
    }

    /// Returns what the unmet WAIT of a block waits for.
    pub(super) fn pending(&self, wait: Wait, block: u32, clock: &Clock) -> Option<Pending> {
        let (what, cqn) = match wait {
            Wait::Completions { cqn, index } => {
                (format!("WAIT for entry {index} of completion queue {cqn:#x}"), Some(cqn))
            }
            Wait::Data(segment) => (format!("WAIT for a word: {segment}"), None),
            Wait::Time(segment) => {
                let left = segment.value().saturating_sub(clock.nanoseconds());
                (format!("WAIT for a time, {} ms from now", left / 1_000_000), None)
            }
            // It is executed at once.
            Wait::SendEnable { .. } => return None,
        };
        let time = self.since.map(|since| clock.now().saturating_duration_since(since));
        Some(Pending { what, mark: block.into(), time, cqn })
    }
}

fn enable(slave: u32, until: u16, block: u32, step: &mut Step<'_, '_>) -> Polled {
    if !step.endpoint.config.master {
        let message = "SEND_EN on a queue pair that was not created with cd_master".to_owned();
        return refused(Syndrome::LocalQpOperation, "cd_master", message);
    }
    if step.context.enable(Enable { slave, until, master: step.endpoint.qpn, index: block as u16 }) {
        return Ok(true);
    }
    let message = format!("{slave:#x} is no queue pair that was created with cd_slave_send");
    refused(Syndrome::LocalQpOperation, "qpn", message)
}

/// Returns whether an entry is not after the one that was last awaited in the same queue.
fn is_stale((queue, last): (u32, u32), cqn: u32, index: u32) -> bool {
    queue == cqn && last.wrapping_sub(index) & CQ_INDEX <= CQ_INDEX / 2
}

fn compare(segment: &WaitDataSeg, number: u64) -> Polled {
    let refuse = |unknown| refused(Syndrome::LocalQpOperation, "operation", format!("{unknown}"));
    segment.is_met(number).or_else(refuse)
}
