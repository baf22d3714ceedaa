//! Answers that a card with liberties keeps back for a while.

use super::response::Response;
use super::state::{Hold, Responder};
use crate::card::transport::step::Step;
use crate::liberties::{LONGEST_PAUSE, LibertyKinds};
use crate::packet::psn_distance;
use std::time::Instant;

impl Responder {
    /// Keeps all answers back for a while, if the card takes that liberty now.
    pub(super) fn hold(&mut self, kind: LibertyKinds, step: &mut Step<'_, '_>) {
        if let Some(pause) = step.context.dice.pause(kind) {
            self.held.until = self.held.until.max(Some(step.context.now + pause));
        }
    }

    /// Whether answers wait: for the liberty of another moment, or for payload that is parked. An answer
    /// says that the payload before it is written, so if not, everything is.
    pub(super) fn is_held(&mut self, step: &mut Step<'_, '_>) -> bool {
        let now = step.context.now;
        if let Some(until) = self.held.until.max(step.endpoint.parked.due()) {
            let since = *self.held.since.get_or_insert(now);
            let until = until.min(since + LONGEST_PAUSE);
            if now < until {
                // What is parked may be written before.
                self.held.until = Some(until);
                return true;
            }
            self.held = Hold::default();
        }
        step.endpoint.parked.write_all();
        false
    }

    /// When answers go on that are kept back.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.held.until
    }

    /// Whether the time has come. Forgets it.
    pub(crate) fn take_hold_over(&mut self, now: Instant) -> bool {
        self.held.until.take_if(|until| *until <= now).is_some()
    }

    /// The number of the packet up to which the acknowledgement in front is one for all: with that
    /// liberty, of all acknowledgements that wait beside each other.
    pub(super) fn acknowledged_at_once(&self, psn: u32, step: &Step<'_, '_>) -> u32 {
        if !step.context.dice.has(LibertyKinds::ACKNOWLEDGEMENTS) {
            return psn;
        }
        let numbers = self.responses.iter().map_while(|response| match response {
            Response::Ack { psn, .. } => Some(*psn),
            _ => None,
        });
        numbers.fold(psn, |last, psn| if psn_distance(psn, last) > 0 { psn } else { last })
    }
}
