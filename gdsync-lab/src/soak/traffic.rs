//! What the two kinds of links have in common.

use super::atomics::Words;
use super::ledger::Ended;
use super::tally::Tally;
use super::wire::Wire;
use gdsync::{Completion, Endpoint};
use gdsync_cli::failure::Failure;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the ends exchange before they connect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    /// Message that is expected next.
    pub(super) expected: u64,
    /// What the other end may write to, and read from.
    pub(super) window: String,
    pub(super) fixed: String,
    pub(super) control: String,
    /// What the other end's atomic operations have left.
    pub(super) words: Words,
}

/// The traffic of an end's queue pair, and its checks.
pub(super) trait Traffic: fmt::Display {
    fn offer(&self) -> Offer;

    /// Goes on, with nothing outstanding.
    fn resume(
        &mut self,
        wire: &Wire,
        there: &Endpoint,
        offer: &Offer,
        tally: &mut Tally,
    ) -> Result<(), Failure>;

    /// A receive has completed well.
    fn receive(&mut self, wire: &Wire, completion: &Completion, tally: &mut Tally) -> Result<(), Failure>;

    /// A send has ended. `completion` is its own, where it has one.
    fn end(
        &mut self,
        ended: &Ended,
        completion: Option<&Completion>,
        tally: &mut Tally,
    ) -> Result<(), Failure>;

    /// Posts something, if there is something to post.
    fn post(&mut self, wire: &mut Wire, tally: &mut Tally) -> Result<(), Failure>;

    /// No new messages from now on.
    fn stop(&mut self);

    /// How many messages were sent in all, once all have ended.
    fn sent(&self, wire: &Wire) -> Option<u64>;

    /// Whether everything that the other end has sent is here.
    fn has_all(&self, peer_sent: u64) -> bool;

    /// No more completions arrive.
    fn close(&self, peer_sent: u64, tally: &mut Tally);
}
