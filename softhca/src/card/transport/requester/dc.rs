//! Initiators of dynamically connected transport (DC): connected to one target at a time.
//!
//! An initiator connects to the target of its next request when all requests for the previous target have completed.
//! Connections are numbered, and the PSNs of each start at 0; so a target, which may learn of a connection by any of
//! its packets, distinguishes a new connection from an old one.

use super::state::{DcTarget, Requester};
use crate::card::config::Transport;
use crate::card::transport::endpoint::Step;
use crate::card::transport::route;
use crate::packet::PSN_MASK;

impl Requester {
    /// Returns the target of the request under the cursor, if it has one.
    fn next_target(&self, step: &Step<'_, '_>) -> Option<DcTarget> {
        if step.endpoint.config.transport != Transport::DcInitiator {
            return None;
        }
        let work = self.requests.get(self.cursor)?.work.as_ref().ok()?;
        let vector = work.to.as_deref()?;
        let node = route::destination(vector, step.context.port);
        Some(DcTarget { node, number: vector.fields().qpn, key: vector.dc_key() })
    }

    /// Returns whether the request under the cursor can be sent on the current connection.
    pub(super) fn is_connected(&self, step: &Step<'_, '_>) -> bool {
        self.next_target(step).is_none_or(|target| self.target == Some(target))
    }

    /// Connects to the target of the oldest request, of which nothing was sent.
    pub(super) fn connect(&mut self, step: &mut Step<'_, '_>) {
        let Some(target) = self.next_target(step) else { return };
        self.target = Some(target);
        self.connection += 1;
        step.endpoint.turn_to(target.node, target.number, self.connection);
        self.reached = None;
        self.next_psn = 0;
        for request in &mut self.requests {
            request.first_psn = self.next_psn;
            self.next_psn = self.next_psn.wrapping_add(request.packets) & PSN_MASK;
        }
    }

    /// Forgets the target: nothing is in flight to it, and the next request may have a different target.
    pub(super) fn disconnect(&mut self) {
        self.target = None;
    }
}
