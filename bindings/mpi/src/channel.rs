//! A leg's queue pair: connected to the one of the other side, and probed for its life.
//!
//! Where the card waits in front of everything that a leg sends, a probe would wait, too. So the leg has a second queue
//! pair then, for probes alone; the two end together.

use crate::device::Domain;
use crate::error::{Class, Failure};
use crate::offer::Offer;
use gdsync::{Endpoint, QueuePair, QueuePairConfig, RemoteMemory, WorkRequest};

/// One end of a leg.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) queue_pair: QueuePair,
    /// For probes.
    life: Option<QueuePair>,
    /// A probe has not completed.
    is_probing: bool,
}

impl Channel {
    /// Makes one that sends or receives, with that many work requests outstanding at a time; `waits`: the card waits in
    /// front of all of them.
    pub(crate) fn new(domain: &Domain, sends: bool, depth: u32, waits: bool) -> Result<Self, Failure> {
        let config = QueuePairConfig::default().send_segments(1).recv_segments(1).inline(0);
        let of_list = if waits { depth } else { 0 };
        // In front of a send, the card may wait. The receiving side's send queue is for what tells the sending side that
        // receives are posted, and for probes.
        let own = if sends {
            config.send_depth(depth.saturating_mul(2).saturating_add(of_list)).recv_depth(1)
        } else {
            config.inline(8).send_depth(depth.saturating_add(2).saturating_add(of_list)).recv_depth(depth)
        };
        let life = waits.then(|| QueuePair::new(&domain.pd, config.send_depth(1).recv_depth(1)));
        let queue_pair = QueuePair::new(&domain.pd, own)?;
        Ok(Channel { queue_pair, life: life.transpose()?, is_probing: false })
    }

    /// Where the other side connects to: with its messages, and with its probes.
    pub(crate) fn endpoints(&self) -> Result<(Endpoint, Option<Endpoint>), Failure> {
        let life = self.life.as_ref().map(QueuePair::endpoint).transpose()?;
        Ok((self.queue_pair.endpoint()?, life))
    }

    /// The card waits in front of all that it sends.
    pub(crate) fn waits(&self) -> bool {
        self.life.is_some()
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
        match (&self.life, &theirs.life) {
            (None, None) => {}
            (Some(life), Some(theirs)) => life.connect(theirs, domain.connection)?,
            (own, _) => {
                let (own, other) = if own.is_some() { ("1", "0") } else { ("0", "1") };
                let text = format!(
                    "GDSYNC_MPI_CARD_WAITS is {own} on this rank, and {other} on the peer: set it alike for all ranks"
                );
                return Err(Failure::new(Class::Other, text));
            }
        }
        let text = "the peer has no queue pair for a message: is its library the same version as this one?";
        let endpoint = theirs.endpoint.as_ref().ok_or_else(|| Failure::new(Class::Other, text))?;
        Ok(self.queue_pair.connect(endpoint, domain.connection)?)
    }

    /// Has the card ask whether the other side is there: a write of no bytes. If it does not answer, the queue pair
    /// fails after its retries, and with it the work that a stream waits for.
    pub(crate) fn probe(&mut self) {
        let probed = self.life.as_ref().unwrap_or(&self.queue_pair);
        // The write that counts receives in the sending side's word completes here, too, where there is one queue pair. Until it is
        // taken, the library does not know that the stream has passed it, and refuses posts of the CPU.
        let polled = probed.send_cq().poll();
        self.is_probing &= matches!(polled, Ok(None));
        if !self.is_probing {
            let nothing = RemoteMemory { addr: 0, len: 0, rkey: 0 };
            // One that has failed needs no probe.
            self.is_probing = probed.post_send(WorkRequest::write(&[], nothing)).is_ok();
        }
        self.end_together();
    }

    /// Where one of the two queue pairs has failed, ends the other.
    pub(crate) fn end_together(&self) {
        let Some(life) = &self.life else { return };
        if life.failure().is_some() != self.queue_pair.failure().is_some() {
            self.abort();
        }
    }

    /// Ends all work in both directions: what a stream waits for ends with an error, here and, after its retries, at
    /// the other side.
    pub(crate) fn abort(&self) {
        for queue_pair in [&self.queue_pair].into_iter().chain(&self.life) {
            if let Err(error) = queue_pair.abort() {
                tracing::warn!(%error, "a queue pair could not be aborted");
            }
        }
    }
}
