//! Datagrams.

use super::receive::{completion, scatter, send_opcode};
use super::state::Responder;
use crate::card::config::LIMITS;
use crate::card::context::Context;
use crate::card::port::LinkLayer;
use crate::card::transport::endpoint::Endpoint;
use crate::card::transport::route::GRH_BYTES;
use crate::fabric::{Node, Part};
use crate::packet::{GLOBAL, Header};
use gdsync_sys::prm::cqe::{PathFields, Syndrome};

impl Responder {
    /// Handles a datagram. It is dropped if its Q_Key is not the queue pair's, or if no receive is
    /// posted.
    pub(crate) fn datagram(
        &mut self,
        source: Node,
        header: &Header,
        payload: &[Part],
        endpoint: &mut Endpoint,
        context: &mut Context<'_>,
    ) {
        let (qkey, own) = (header.rkey.get(), endpoint.attributes.qkey);
        if qkey != own {
            let message = format!(
                "a datagram from queue pair {:#x} of node {source:#x} has {qkey:#x}, not {own:#x}: dropped",
                header.source_qpn.get(),
            );
            return context.report(endpoint.qpn, None, "Q_Key", message);
        }
        let has_grh = header.has(GLOBAL);
        let length = header.length.get();
        let sent: usize = payload.iter().map(|part| part.1).sum();
        let expected = if has_grh { length.saturating_add(GRH_BYTES) } else { length };
        if length > LIMITS.max_datagram || sent != expected as usize {
            tracing::debug!(source, length, sent, "the length of a datagram differs from its header");
            return;
        }
        let Some(mut receive) = self.queue.take() else {
            tracing::debug!(qpn = endpoint.qpn, source, "a datagram finds no receive and is dropped");
            return;
        };
        let (index, total) = (receive.index, length + GRH_BYTES);
        if u64::from(total) > receive.room() {
            let message =
                format!("{length} bytes and {GRH_BYTES} of header come into a receive of {}", receive.room());
            context.report(endpoint.qpn, Some(index), "receive length", message);
            endpoint.receive_error(index, Syndrome::LocalLength, context);
            return endpoint.fail();
        }
        if !has_grh {
            // Without a network header, the bytes in its place stay as they are.
            receive.offset = GRH_BYTES;
        }
        if scatter(&mut receive, payload, endpoint, context).is_err() {
            endpoint.receive_error(index, Syndrome::LocalProtection, context);
            return endpoint.fail();
        }
        let remote = header.source_qpn.get();
        let cqe = completion(send_opcode(header), index, remote, total, header, endpoint);
        // On InfiniBand a node is a LID.
        let slid = if context.port.link == LinkLayer::Ethernet { 0 } else { source as u16 };
        let cqe = cqe.with_path(PathFields { slid, level_or_l3_type: header.timer_or_level, has_grh });
        endpoint.complete(endpoint.recv_cq, cqe, context);
    }
}
