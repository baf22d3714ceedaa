//! Datagrams.

use super::receive::{completion, scatter, send_opcode};
use super::state::{Failure, Responder, Stop};
use crate::card::config::LIMITS;
use crate::card::transport::route::GRH_BYTES;
use crate::card::transport::step::Step;
use crate::packet::{GLOBAL, Packet};
use gdsync_sys::prm::cqe::{PathFields, Syndrome};

impl Responder {
    /// Handles a datagram. It is dropped if its Q_Key is not the queue pair's, or if no receive is
    /// posted.
    pub(crate) fn datagram(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) {
        let Packet { source, header, payload, .. } = packet;
        let (qkey, own) = (header.rkey.get(), step.endpoint.attributes.qkey);
        if qkey != own {
            let message = format!(
                "a datagram from queue pair {:#x} of node {source:#x} has {qkey:#x}, not {own:#x}: dropped",
                header.source_qpn.get(),
            );
            return step.report(None, "Q_Key", message);
        }
        let has_grh = header.has(GLOBAL);
        let length = header.length.get();
        let sent = packet.payload_len();
        let expected = if has_grh { length.saturating_add(GRH_BYTES) } else { length };
        if length > LIMITS.max_datagram || sent != expected as usize {
            tracing::debug!(source, length, sent, "the length of a datagram differs from its header");
            return;
        }
        let mut receive = match self.take_receive(step) {
            Ok(Some(receive)) => receive,
            Ok(None) => {
                tracing::debug!(
                    qpn = step.endpoint.qpn,
                    source,
                    "a datagram finds no receive and is dropped"
                );
                return;
            }
            Err(stop) => {
                if let Stop::Fatal(_, Failure::Event(event)) = stop {
                    step.context.emit(event);
                }
                return step.endpoint.fail();
            }
        };
        let (slot, total) = (receive.slot, length + GRH_BYTES);
        if u64::from(total) > receive.room() {
            let message =
                format!("{length} bytes and {GRH_BYTES} of header come into a receive of {}", receive.room());
            step.report(Some(slot.index), "receive length", message);
            step.receive_error(slot, Syndrome::LocalLength);
            return step.endpoint.fail();
        }
        if !has_grh {
            // Without a network header, the bytes in its place stay as they are.
            receive.offset = GRH_BYTES;
        }
        if scatter(&mut receive, payload, step).is_err() {
            step.receive_error(slot, Syndrome::LocalProtection);
            return step.endpoint.fail();
        }
        let remote = header.source_qpn.get();
        let cqe = completion(send_opcode(header), slot.index, remote, total, header, step);
        let slid = step.context.port.source_lid(source);
        let cqe = cqe.with_path(PathFields { slid, level_or_l3_type: header.timer_or_level, has_grh });
        step.complete_receive(slot.home, cqe);
    }
}
