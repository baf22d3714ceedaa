//! Sends that the card holds back until the other side is ready for them.

use super::PersistentSend;
use super::request::sealed::Core;
use crate::qp::{CardWord, QueuePair, Trigger};
use crate::queue::QueueError;
use crate::verbs::{Error, QueuePairError, RemoteMemory};

/// What the word of the other side holds from that start on.
pub(super) fn bytes_of(start: u64) -> [u8; size_of::<u64>()] {
    Trigger::word_of(start).to_ne_bytes()
}

impl PersistentSend {
    /// Remembers an RDMA write of the number of its start, from 1 on: of 8 bytes, as a big-endian number, into a word of
    /// the remote side behind which that side's sends are held back ([`Self::behind`]). Start it with a receive, on the
    /// same queue pair: then the word says how many receives are posted.
    ///
    /// It may be started again while it is active, as its bytes are in the work request: no stream has to wait for it.
    ///
    /// ```
    /// use gdsync::persistent::{PersistentRecv, PersistentSend, Request, start_all, wait_all};
    /// use gdsync::qp::CardWord;
    /// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, SoftStream, Stream};
    /// use std::time::Duration;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = ProtectionDomain::new(&Device::software()?)?;
    /// # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
    /// # left.connect(&right.endpoint()?, Default::default())?;
    /// # right.connect(&left.endpoint()?, Default::default())?;
    /// const LONG: Duration = Duration::from_secs(30);
    /// let region = MemoryRegion::allocate(&pd, 64, Access::all())?;
    /// // The sending side has the word, and says where it is.
    /// let word = CardWord::in_region(&region, 0)?;
    /// let mut send = PersistentSend::send(&left, &[region.slice(16..32)?])?.behind(&word)?;
    /// let mut receive = PersistentRecv::new(&right, &[region.slice(32..48)?])?;
    /// let mut ready = PersistentSend::count(&right, word.remote())?;
    /// let (sender, receiver) = (Stream::new(SoftStream::new()?)?, Stream::new(SoftStream::new()?)?);
    /// for _round in 0..3 {
    ///     // The card holds the send back until the other stream has come to the receive.
    ///     start_all(&mut [&mut send], &sender, LONG)?;
    ///     start_all(&mut [&mut receive, &mut ready], &receiver, LONG)?;
    ///     wait_all(&mut [&mut send], &sender, LONG)?;
    ///     wait_all(&mut [&mut receive], &receiver, LONG)?;
    /// }
    /// for request in [&mut send, &mut ready] {
    ///     request.complete(LONG)?.ok_or("it takes too long")?.status?;
    /// }
    /// receive.complete(LONG)?.ok_or("it takes too long")?.status?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`QueueError`]: the queue pair has no room for 8 bytes inline, or no RDMA writes.
    pub fn count(queue_pair: &QueuePair, remote: RemoteMemory) -> Result<Self, QueueError> {
        let mut this = Self::to(queue_pair, &[], Some(remote), Some(bytes_of(1)))?;
        this.core.may_overlap = true;
        Ok(this)
    }

    /// Has the card hold each start back until the word has reached its number: 1 for the first one, whose work request
    /// goes behind a WAIT, as does that of every other. Later work requests of the queue pair wait behind it. A start takes
    /// one block of the send queue more; the stream performs what it performs without.
    ///
    /// While it is held back, nothing is sent, so the card does not notice that the other side has died. A program that has
    /// waited long enough lets it go by [`CardWord::raise`]: then the card repeats the message until its receive is
    /// there, or the other side does not answer.
    ///
    /// The word holds big-endian numbers, and is 0 at first. The other side counts it up by [`Self::count`], or by writes of
    /// its own of [`Trigger::word_of`].
    ///
    /// # Errors
    /// [`QueuePairError::NoCardWaits`] where the card waits for no words; [`QueuePairError::OtherDomain`] for a word
    /// of another protection domain; [`QueuePairError::MasterWaits`] where the queue pair's trigger has a master.
    pub fn behind(mut self, word: &CardWord) -> Result<Self, Error> {
        self.set_behind(word)?;
        Ok(self)
    }

    /// As [`Self::behind`], for the starts from now on: the number is counted from the first start on, as before. Where
    /// it fails, nothing has changed.
    ///
    /// # Errors
    /// Those of [`Self::behind`].
    pub fn set_behind(&mut self, word: &CardWord) -> Result<(), Error> {
        let Core { queue_pair, .. } = &self.core;
        let device = &queue_pair.domain.pd.device;
        let refusal = if !device.card_waits()?.data {
            QueuePairError::NoCardWaits { device: device.name.to_owned(), what: "words in memory" }
        } else if !word.protection_domain().inner.is(&queue_pair.domain.pd) {
            QueuePairError::OtherDomain
        } else if queue_pair.trigger.as_ref().is_some_and(|trigger| trigger.master.is_some()) {
            QueuePairError::MasterWaits { qpn: queue_pair.number }
        } else {
            self.core.behind = Some(word.clone());
            return Ok(());
        };
        Err(Error::QueuePair(refusal))
    }
}
