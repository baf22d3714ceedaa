//! Receive queues.

use crate::card::config::QpConfig;
use crate::card::memory::ring::{Producer, ReadRing};
use gdsync_sys::prm::wqe::DataSeg;
use gdsync_sys::prm::{doorbell, recv};

/// The protection domain and the completion of a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveOwner {
    pub(crate) pdn: u32,
    pub(crate) cqn: u32,
    /// Value that identifies its queue in completion entries.
    pub(crate) user_index: u32,
}

/// Identification of a receive for its completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) index: u16,
    pub(crate) owner: ReceiveOwner,
}

/// A receive that a message fills.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) slot: Slot,
    pub(crate) segments: Vec<DataSeg>,
    /// In bytes.
    pub(crate) filled: u32,
}

impl Receive {
    pub(crate) fn room(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.byte_count())).sum()
    }
}

/// A receive queue. Its indices are not reduced modulo the ring's size.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) owner: ReceiveOwner,
    ring: ReadRing,
    producer: Producer,
    next: u32,
    /// The receive that a message has begun to fill.
    pub(crate) current: Option<Receive>,
}

impl ReceiveQueue {
    /// # Safety
    /// The addresses of `config` stay valid as long as the queue; counts are powers of two.
    pub(crate) unsafe fn new(config: &QpConfig) -> Self {
        // SAFETY: the caller guarantees this.
        let (ring, producer) = unsafe {
            let ring = ReadRing::new(config.rq, config.rq_entries, config.rq_stride as usize);
            (ring, Producer::new(config.dbrec, doorbell::DBR_RECV))
        };
        let owner = ReceiveOwner {
            pdn: config.pdn.unwrap_or(0),
            cqn: config.recv_cq.unwrap_or(0),
            user_index: config.user_index.unwrap_or(0),
        };
        ReceiveQueue { owner, ring, producer, next: 0, current: None }
    }

    /// Empties the queue. The front end zeroes the doorbell record.
    pub(crate) fn reset(&mut self) {
        self.producer.set(0);
        (self.next, self.current) = (0, None);
    }

    fn poll_record(&mut self) {
        if self.ring.entries != 0 {
            self.producer.advance(self.producer.load());
        }
    }

    pub(crate) fn has_posted(&mut self) -> bool {
        self.poll_record();
        self.next != self.producer.index()
    }

    /// Takes the receive of an aborted message of an unreliable connection.
    pub(crate) fn take_aborted(&mut self) -> Option<Receive> {
        self.current.take().map(|receive| Receive { filled: 0, ..receive })
    }

    pub(crate) fn take_posted(&mut self) -> Option<Receive> {
        if !self.has_posted() {
            return None;
        }
        let index = self.next;
        self.next = index.wrapping_add(1);
        let mut bytes = Vec::with_capacity(64);
        self.ring.read(index, &mut bytes);
        let slot = Slot { index: index as u16, owner: self.owner };
        Some(Receive { slot, segments: recv::segments(&bytes).collect(), filled: 0 })
    }

    /// Takes all receives to flush them. Those of a shared queue stay there, except for the one that a message has
    /// begun to fill.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Slot> + use<> {
        let current = self.current.take().map(|receive| receive.slot);
        self.poll_record();
        // A broken record may announce more receives than the ring holds.
        let posted = self.producer.index().wrapping_sub(self.next).min(self.ring.entries);
        let (first, owner) = (self.next, self.owner);
        self.next = self.producer.index();
        let slot = move |step| Slot { index: first.wrapping_add(step) as u16, owner };
        current.into_iter().chain((0..posted).map(slot))
    }
}
