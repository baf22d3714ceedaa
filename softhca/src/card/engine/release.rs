//! Release of the packets that faults have delayed.

use super::arrivals::deliver;
use super::state::Engine;
use crate::card::delayed::{DelayedPacket, Flow};
use crate::fabric::SendOutcome;
use crate::faults::Direction;
use std::time::{Duration, Instant};

/// Time after which a delayed packet is tried again for which the fabric had no room.
const TRY_AGAIN: Duration = Duration::from_micros(100);
/// Maximum number of delayed packets of a flow that one step releases.
const RELEASE_BUDGET: usize = 32;

impl Engine {
    /// Releases the delayed packets that are ready. Returns whether there were any.
    pub(super) fn release_packets(&mut self, now: Instant) -> bool {
        if self.delayed.is_empty() {
            return false;
        }
        if !self.resources.faults.is_on() {
            self.delayed.expire(now);
        }
        let mut released = false;
        for flow in self.delayed.ready(now) {
            released |= self.release(flow, now);
        }
        released
    }

    /// Releases the packets of a flow that are due. Returns whether there were any.
    pub(super) fn release(&mut self, flow: Flow, now: Instant) -> bool {
        for count in 0..RELEASE_BUDGET {
            let Some(packet) = self.delayed.pop(flow, now) else { return count > 0 };
            let parts = [(packet.payload.as_ptr(), packet.payload.len())];
            let Flow { direction, qpn, node } = flow;
            let outcome = match direction {
                Direction::Out => self.transmit(&packet.header, node, &parts, now),
                Direction::In => {
                    let (mut context, mut touched) = (self.resources.context(now), Vec::new());
                    deliver(&mut self.qps, node, &packet.header, &parts, &mut context, &mut touched);
                    touched.into_iter().for_each(|qpn| self.reschedule(qpn));
                    SendOutcome::Sent
                }
            };
            if outcome == SendOutcome::Full {
                self.delayed
                    .push_front(flow, DelayedPacket { due: now + TRY_AGAIN, had_no_room: true, ..packet });
                return count > 0;
            }
            self.delayed.count_passed(flow);
            if direction == Direction::Out {
                let left_at = (outcome == SendOutcome::Sent).then(|| self.fabric.position());
                self.with_qp(qpn, now, |qp, _| qp.note_position(&packet.header, left_at));
                self.note_unreachable(qpn, node, &packet.header, outcome, now);
            }
        }
        true
    }

    /// Sends the delayed packets of a queue pair before it is destroyed: for programs they have left already. They may
    /// include the acknowledgement of a completed receive, which would be lost if the process ends soon.
    pub(crate) fn flush_delayed_packets_of(&mut self, qpn: u32, now: Instant) {
        for flow in self.delayed.expire_outgoing(qpn, now) {
            while self.release(flow, now) {}
        }
    }

    /// Sends all delayed packets before the card ends: for programs they have left already.
    pub(crate) fn flush_delayed_packets(&mut self, now: Instant) {
        self.delayed.expire(now);
        while self.release_packets(now) {}
    }
}
