//! A leg's queue pair: connected to the one of the other side, and probed for its life.

use crate::device::Domain;
use crate::error::{Class, Failure};
use crate::offer::Offer;
use gdsync::{QueuePair, QueuePairConfig, RemoteMemory, WorkRequest};

/// One end of a leg.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) queue_pair: QueuePair,
    /// A probe has not completed.
    is_probing: bool,
}

impl Channel {
    /// Makes one that sends or receives, with that many work requests outstanding at a time.
    pub(crate) fn new(domain: &Domain, sends: bool, depth: u32) -> Result<Self, Failure> {
        let config = QueuePairConfig::default().send_segments(1).recv_segments(1).inline(0);
        // In front of a send, the card may wait. The receiving side's send queue is for what tells the sending side that
        // receives are posted, and for probes.
        let config = if sends {
            config.send_depth(depth.saturating_mul(2)).recv_depth(1)
        } else {
            config.inline(8).send_depth(depth.saturating_add(2)).recv_depth(depth)
        };
        Ok(Channel { queue_pair: QueuePair::new(&domain.pd, config)?, is_probing: false })
    }

    /// Connects it with the other side.
    ///
    /// # Errors
    /// A card of the other provider; the card's refusal.
    pub(crate) fn connect(&self, domain: &Domain, theirs: &Offer) -> Result<(), Failure> {
        let (own, other) = (domain.provider(), &theirs.provider);
        if own != other {
            let text = format!(
                "this rank has the {own} card, and the peer the {other} card: set GDSYNC_MPI_DEVICE alike for all ranks"
            );
            return Err(Failure::new(Class::Other, text));
        }
        let text = "the peer has no queue pair for a message: is its library the same version as this one?";
        let endpoint = theirs.endpoint.as_ref().ok_or_else(|| Failure::new(Class::Other, text))?;
        Ok(self.queue_pair.connect(endpoint, domain.connection)?)
    }

    /// Has the card ask whether the other side is there: a write of no bytes. If it does not answer, the queue pair
    /// fails after its retries, and with it the receives that a stream waits for.
    pub(crate) fn probe(&mut self) {
        // The write that counts receives in the sending side's word completes here, too. Until it is taken, the library does not know
        // that the stream has passed it, and refuses posts of the CPU.
        let polled = self.queue_pair.send_cq().poll();
        self.is_probing &= matches!(polled, Ok(None));
        if !self.is_probing {
            let nothing = RemoteMemory { addr: 0, len: 0, rkey: 0 };
            // One that has failed needs no probe.
            self.is_probing = self.queue_pair.post_send(WorkRequest::write(&[], nothing)).is_ok();
        }
    }

    /// Ends all work in both directions: what a stream waits for ends with an error, here and, after its retries, at
    /// the other side.
    pub(crate) fn abort(&self) {
        if let Err(error) = self.queue_pair.abort() {
            tracing::warn!(%error, "a queue pair could not be aborted");
        }
    }
}
