//! The absence of answers: time-outs and retries.

use super::state::{PeerState, Requester};
use crate::card::config::QpState;
use crate::card::transport::endpoint::Step;
use gdsync_sys::prm::cqe::Syndrome;
use std::time::Duration;

/// A time-out under check is checked again after its duration divided by this.
const LOOKS: u32 = 16;
/// Less than the time to the next step, in which this card handles more packets of an ended peer.
const NEXT_STEP: Duration = Duration::from_nanos(1);
/// Maximum time that a queue pair whose peer has ended keeps unacknowledged requests, if its retries take as long. On
/// hardware the retries take half a second and more: a program that has its results ends before they are over, and
/// must be able to do so here, even on a busy machine.
const GRACE: Duration = Duration::from_millis(100);

impl Requester {
    /// Handles that the retransmission timer has expired, or that the peer's process has ended.
    ///
    /// Hardware acknowledges without its host's CPU. A software card stops with its process, so a time-out counts only
    /// if the peer's card has run since it took the packets. Until then nothing is lost, and nothing has to be sent
    /// again.
    pub(crate) fn retry(&mut self, peer: PeerState, step: &mut Step<'_, '_>) {
        if step.endpoint.state() != QpState::Rts {
            return self.set_timer(None);
        }
        match peer {
            PeerState::Behind => return self.wait_again(step),
            PeerState::Answering => return self.look_again(step),
            PeerState::Leaving => {
                self.deadline = Some(step.context.now + NEXT_STEP);
                return;
            }
            PeerState::Ended { since } if step.context.now < since + Self::grace(step) => {
                self.deadline = Some(since + Self::grace(step));
                return;
            }
            PeerState::Answered if self.retries_left > 0 => {}
            PeerState::Answered | PeerState::Ended { .. } if self.waits_for_program(step) => return,
            PeerState::Answered | PeerState::Ended { .. } => {
                self.set_timer(None);
                let position = self.requests.iter().position(|request| !request.done && request.packets > 0);
                if let Some(position) = position {
                    self.fail_at(position, Syndrome::RetryExceeded, step);
                }
                return;
            }
        }
        self.retries_left -= 1;
        tracing::debug!(
            qpn = step.endpoint.qpn,
            left = self.retries_left,
            "nothing was acknowledged in time"
        );
        self.rewind();
        self.wait_again(step);
    }

    /// Returns whether the failure waits for the program, which has not consumed all its completions yet. The program
    /// may end with them, and must not find a failure after the last one only because it did not run for a while: on
    /// hardware the retries take half a second and more, and the card does not compete with the program for a
    /// processor.
    ///
    /// The failure waits for as many checks of the program as take the time of all retries once more (the specification
    /// lets a time-out last four times its configured value). Counting checks instead of time also gives the program
    /// its turn after the whole process was stopped.
    fn waits_for_program(&mut self, step: &Step<'_, '_>) -> bool {
        let Some(timeout) = step.ack_timeout() else { return false };
        let looks = LOOKS * Self::transmissions(step);
        let waits = self.looks_at_program < looks && step.has_unconsumed();
        if waits {
            self.looks_at_program += 1;
            self.deadline = Some(step.context.now + timeout / LOOKS);
        }
        waits
    }

    fn transmissions(step: &Step<'_, '_>) -> u32 {
        u32::from(step.endpoint.attributes.retry_cnt) + 1
    }

    /// Returns zero without a time-out: hardware would wait forever, and only the peer's end fails the queue pair.
    fn grace(step: &Step<'_, '_>) -> Duration {
        step.ack_timeout().map_or(Duration::ZERO, |timeout| {
            step.context.speed.of(GRACE).min(timeout * Self::transmissions(step))
        })
    }

    fn wait_again(&mut self, step: &Step<'_, '_>) {
        self.set_timer(step.ack_timeout().map(|timeout| step.context.now + timeout));
    }

    /// Checks the peer again soon, and continues the check of the time-out.
    fn look_again(&mut self, step: &Step<'_, '_>) {
        self.deadline = step.ack_timeout().map(|timeout| step.context.now + timeout / LOOKS);
    }
}
