//! Sending the packets of a queue pair.

use super::ahead::Made;
use super::depart::Departure;
use super::state::Engine;
use crate::card::transport::qp::{Outgoing, Qp};
use crate::packet::Header;
use std::time::Instant;

/// Maximum number of packets that one step sends for a queue pair, before it serves others and commands.
const SEND_BUDGET: usize = 16;

/// Maximum number of rounds of sending for a queue pair that is about to be destroyed.
const LAST_ROUNDS: usize = 64;

/// How serving a queue pair ended.
pub(crate) enum Served {
    /// Nothing more to send now.
    All,
    /// More to send.
    Part,
    /// The fabric is full.
    Blocked,
}

/// How reading a payload from peer memory ended.
enum Fetch {
    Done,
    Failed,
    /// The fabric has no room for it.
    Full,
}

impl Engine {
    /// Sends packets of a queue pair.
    pub(crate) fn serve(&mut self, qpn: u32, now: Instant) -> Served {
        let served = self.serve_up_to_budget(qpn, now);
        match (self.settle(now), served) {
            // A response may have failed: its refusal has not been sent yet.
            (false, Served::All) => Served::Part,
            (_, served) => served,
        }
    }

    fn serve_up_to_budget(&mut self, qpn: u32, now: Instant) -> Served {
        for _ in 0..SEND_BUDGET {
            self.resources.payload.clear();
            let made = self.with_qp(qpn, now, |qp, context| qp.next_packet(context));
            self.pass_on_enables(now);
            let Some(Some(packet)) = made else { return Served::All };
            if self.resources.payload.is_waiting() {
                match self.make_ahead(&packet, now) {
                    Made::Yes if !self.ahead.is_full() => continue,
                    Made::Yes => {
                        self.settle(now);
                        continue;
                    }
                    Made::No => {}
                    Made::Refused => continue,
                    Made::NoRoom => return Served::Blocked,
                }
            }
            if !self.settle(now) {
                // The queue pair has failed, or will when its turn comes: the packet is no longer valid.
                continue;
            }
            if self.resources.payload.is_waiting() {
                match self.fetch_payload(&packet, now) {
                    Fetch::Done => {}
                    Fetch::Failed => continue,
                    Fetch::Full => return Served::Blocked,
                }
            }
            if self.depart(&packet, now) == Departure::NoRoom {
                return Served::Blocked;
            }
        }
        Served::Part
    }

    /// Sends the posted requests of an unreliable queue pair, and the outstanding answers of any queue pair, before it
    /// is destroyed, within a limit. On hardware they have left by then: a command takes longer than a doorbell, and an
    /// acknowledgement precedes its completion. Programs rely on that (`mckey`, `ibv_srq_pingpong`).
    pub(crate) fn send_the_last(&mut self, qpn: u32) {
        self.take_doorbells_of(qpn, Instant::now());
        let goes_on = |qp: &Qp| !qp.endpoint.config.transport.is_reliable() || qp.owes_answers();
        for _ in 0..LAST_ROUNDS {
            if !self.qps.get(&qpn).is_some_and(goes_on)
                || !matches!(self.serve(qpn, Instant::now()), Served::Part)
            {
                break;
            }
        }
    }

    /// Passes executed SEND_ENs to the queue pairs that they release.
    fn pass_on_enables(&mut self, now: Instant) {
        for enable in std::mem::take(&mut self.resources.enables) {
            self.with_qp(enable.slave, now, |qp, context| qp.enable(enable, context));
            self.activate(enable.slave);
        }
    }

    /// Reads the pieces of a packet's payload that are in peer memory. On failure the request or response is refused.
    fn fetch_payload(&mut self, packet: &Outgoing, now: Instant) -> Fetch {
        let payload = &mut self.resources.payload;
        // Clients are slow: a packet without room must not make them read repeatedly.
        if packet.to != self.resources.port.node()
            && self.fabric.is_full(packet.to, size_of::<Header>(), payload.len())
        {
            payload.clear();
            return Fetch::Full;
        }
        let Err(failure) = payload.fetch() else { return Fetch::Done };
        self.with_qp(packet.qpn, now, |qp, context| qp.payload_failed(packet, &failure, context));
        Fetch::Failed
    }
}
