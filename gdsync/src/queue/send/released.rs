//! Sends that another queue releases, and the requests by which a queue releases them (SEND_EN).
//!
//! The sends of a slave come to the card by SEND_EN, or by the slave's own doorbell. The card takes a
//! doorbell when it gets to it, and reads the record then: so a record that covers a send which
//! nothing has released yet must not meet a doorbell on its way. That is why only one of both ways has
//! sends outstanding at a time. A completion of the one says that none of its doorbells is on its way,
//! and a completion of the other that none of its SEND_ENs is.

use super::behind::block;
use super::{CardWait, Hold, SendState};
use crate::queue::completion::CompletionState;
use crate::queue::doorbell::ring;
use crate::queue::regions::Regions;
use crate::queue::request::Rules;
use crate::queue::{OrderError, QueueError, WorkRequest};
use gdsync_sys::barrier;
use gdsync_sys::prm::doorbell;
use gdsync_sys::prm::wait::{IndexSeg, Kind};
use zerocopy::IntoBytes;

/// A release of sends of another queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Enable {
    /// The slave.
    pub(crate) qpn: u32,
    /// The block after the last one that is released.
    pub(crate) until: u16,
}

impl SendState {
    /// Writes a work request into the ring of a slave, for its master to release and a stream to post.
    ///
    /// Returns its serial number, and the block after it.
    ///
    /// # Errors
    /// What [`Self::prepare`] says; [`OrderError::HandedOverOtherwise`].
    pub(crate) fn prepare_released(
        &mut self,
        request: &WorkRequest<'_>,
        rules: &impl Rules,
        completions: &mut CompletionState,
    ) -> Result<(u64, u32), QueueError> {
        if !self.is_released && !self.entries.is_empty() {
            return Err(QueueError::Order(OrderError::HandedOverOtherwise { qpn: self.qpn }));
        }
        let (serial, _) = self.prepare([], request, rules, completions)?;
        self.is_released = true;
        Ok((serial, self.head))
    }

    /// Takes the newest back, which nothing releases.
    pub(crate) fn unprepare_newest(&mut self, completions: &mut CompletionState) {
        self.take_back(self.entries.len().saturating_sub(1), completions);
    }

    /// Says in the record how far the ring is filled. A card reads it for a doorbell, and may for the
    /// end of what it flushes; SEND_EN goes without it.
    pub(crate) fn publish_released(&self) {
        barrier::to_device();
        self.ring.publish(doorbell::record(self.head));
    }

    /// Writes a WAIT and a release behind it, and rings the card for both: they count as posted by the
    /// CPU. Where that fails, nothing has changed.
    ///
    /// Returns the block of the release.
    ///
    /// # Safety
    /// The register is valid.
    pub(crate) unsafe fn post_release(
        &mut self,
        wait: CardWait,
        Enable { qpn, until }: Enable,
        completions: &mut CompletionState,
    ) -> Result<u32, QueueError> {
        let entries = self.entries.len();
        let segment = IndexSeg::new(until.into(), qpn);
        let placed = self.place_wait(Hold { wait, region: None }, completions).and_then(|()| {
            self.place_block(completions, Regions::None, |head, own| {
                block(Kind::SendEnable, head, own, segment.as_bytes())
            })
        });
        if let Err(error) = placed {
            self.take_back(entries, completions);
            return Err(error);
        }
        self.ring.drain();
        self.skip_unprepared();
        let release = self.head.wrapping_sub(1);
        let value = self.ring.first_bytes(release);
        // SAFETY: the caller's.
        unsafe { ring(&self.ring, doorbell::record(self.head), self.register, value) };
        Ok(release)
    }

    /// Whether the CPU may post and ring now, for which [`Self::post_now`] has found a doubt.
    #[cold]
    #[inline(never)]
    pub(super) fn check_cpus_turn(&mut self, serial: u64) -> Result<(), QueueError> {
        let (qpn, expected) = (self.qpn, self.next_to_post);
        if serial != expected {
            return Err(QueueError::Order(OrderError::OutOfOrder { qpn, serial, expected }));
        }
        if self.is_released && !self.entries.is_empty() {
            return Err(QueueError::Order(OrderError::HandedOverOtherwise { qpn }));
        }
        self.is_released = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
