//! The ways from a queue to the ranks: a connection to each, or DC queue pairs that they share.

use crate::action::Action;
use crate::error::NotifyError;
use crate::initiator::{self, Initiator};
use crate::peer::{self, Peer};
use gdsync::verbs::DcAddress;
use gdsync::{ConnectOptions, Endpoint, PreparedSend, PreparedWait, QueuePair};
use std::time::Duration;

#[derive(Debug)]
pub(crate) enum Routes {
    /// In the order of the ranks.
    Each(Vec<Peer>),
    /// Rank `r` is reached by the one at `r` modulo their number, so that what goes to one rank stays in
    /// order.
    Dynamic(Vec<Initiator>),
}

/// A locked queue, which takes requests to one rank one after the other.
pub(crate) enum Posting<'a> {
    Each(peer::Posting<'a>),
    Dynamic(initiator::Posting<'a>),
}

/// The way to one rank.
enum Way<'a> {
    Each(&'a Peer),
    Dynamic(&'a Initiator),
}

impl Routes {
    /// The way to a rank of the team.
    fn to(&self, rank: u32) -> Way<'_> {
        match self {
            Routes::Each(peers) => Way::Each(&peers[rank as usize]),
            Routes::Dynamic(initiators) => Way::Dynamic(&initiators[rank as usize % initiators.len()]),
        }
    }

    pub(crate) fn lock(&self, rank: u32, timeout: Duration) -> Posting<'_> {
        match self.to(rank) {
            Way::Each(peer) => Posting::Each(peer.lock(timeout)),
            Way::Dynamic(initiator) => Posting::Dynamic(initiator.lock(rank, timeout)),
        }
    }

    pub(crate) fn flush(&self, rank: u32, timeout: Duration) -> Result<(), NotifyError> {
        match self.to(rank) {
            Way::Each(peer) => peer.flush(timeout),
            Way::Dynamic(initiator) => initiator.flush(rank, timeout),
        }
    }

    pub(crate) fn prepare_waits(&self, rank: u32) -> Result<Vec<PreparedWait>, NotifyError> {
        match self.to(rank) {
            Way::Each(peer) => peer.prepare_waits(),
            Way::Dynamic(initiator) => initiator.prepare_waits(rank),
        }
    }

    /// Ends the connection with a dead rank. Of a DC queue pair, the card gives up what is under way to
    /// the rank, and nothing new goes there.
    pub(crate) fn cut(&self, rank: u32) {
        if let Way::Each(peer) = self.to(rank) {
            peer.cut();
        }
    }

    /// Brings what has led to a dead rank back to where it was made, for another process in its place.
    /// Returns the endpoint that this process connects to, where it has one of its own.
    pub(crate) fn vacate(&self, rank: u32, timeout: Duration) -> Result<Option<Endpoint>, NotifyError> {
        match self.to(rank) {
            Way::Each(peer) => peer.reset(timeout).map(Some),
            Way::Dynamic(initiator) => initiator.leave(rank, timeout).map(|()| None),
        }
    }

    /// Connects to the process that has taken a rank's place, where there is a connection with each.
    pub(crate) fn connect(
        &self,
        rank: u32,
        remote: &Endpoint,
        options: ConnectOptions,
    ) -> Result<(), NotifyError> {
        match self.to(rank) {
            Way::Each(peer) => peer.connect(remote, options),
            Way::Dynamic(_) => Ok(()),
        }
    }

    /// Sends to the process that has taken a rank's place, where connections are dynamic.
    pub(crate) fn redirect(&self, rank: u32, address: &DcAddress) -> Result<(), NotifyError> {
        match self.to(rank) {
            Way::Each(_) => Ok(()),
            Way::Dynamic(initiator) => initiator.redirect(rank, address.clone()),
        }
    }

    /// Goes on with what the failure of a request has stopped.
    pub(crate) fn bring_back(&self) {
        self.initiators().iter().for_each(Initiator::look);
    }

    /// Whether something was lost by that since this was asked last.
    pub(crate) fn take_lost(&self) -> bool {
        self.initiators().iter().fold(false, |any, one| one.take_lost() | any)
    }

    fn initiators(&self) -> &[Initiator] {
        match self {
            Routes::Each(_) => &[],
            Routes::Dynamic(initiators) => initiators,
        }
    }

    /// The queue pair to a rank.
    pub(crate) fn queue_pair(&self, rank: u32) -> Result<&QueuePair, NotifyError> {
        match self.to(rank) {
            Way::Each(peer) => Ok(&peer.queue_pair),
            Way::Dynamic(_) => Err(NotifyError::NoQueuePair { rank }),
        }
    }
}

impl Posting<'_> {
    /// Posts a request whose completion says that those before it have completed, too.
    pub(crate) fn post(&mut self, action: Action) -> Result<(), NotifyError> {
        match self {
            Posting::Each(posting) => posting.post(&action),
            Posting::Dynamic(posting) => posting.post(action),
        }
    }

    /// Posts a request that a later one completes.
    pub(crate) fn post_unsignaled(&mut self, action: Action) -> Result<(), NotifyError> {
        match self {
            Posting::Each(posting) => posting.post_unsignaled(&action),
            Posting::Dynamic(posting) => posting.post_unsignaled(action),
        }
    }

    /// Prepares a request for a stream.
    pub(crate) fn prepare(&mut self, action: Action) -> Result<PreparedSend, NotifyError> {
        match self {
            Posting::Each(posting) => posting.prepare(&action, true),
            Posting::Dynamic(posting) => posting.prepare(action, true),
        }
    }

    /// Prepares a request for a stream that a later one completes.
    pub(crate) fn prepare_unsignaled(&mut self, action: Action) -> Result<PreparedSend, NotifyError> {
        match self {
            Posting::Each(posting) => posting.prepare(&action, false),
            Posting::Dynamic(posting) => posting.prepare(action, false),
        }
    }
}
