//! Receive queues.

use super::producer::Producer;
use crate::card::config::QpConfig;
use crate::card::memory::ring::ReadRing;
use gdsync_sys::prm::doorbell;
use gdsync_sys::prm::recv;
use gdsync_sys::prm::wqe::DataSeg;

/// A receive that a message fills.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) index: u16,
    pub(crate) segments: Vec<DataSeg>,
    /// Bytes that are filled.
    pub(crate) offset: u32,
}

impl Receive {
    /// Bytes of all segments.
    pub(crate) fn room(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.byte_count())).sum()
    }
}

/// A receive queue. Its indices are not reduced modulo the ring's size.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    ring: ReadRing,
    producer: Producer,
    /// Next receive to use.
    next: u32,
    /// The receive that a message has begun to fill.
    pub(crate) current: Option<Receive>,
}

impl ReceiveQueue {
    /// # Safety
    /// The addresses of `config` stay valid as long as the queue; counts are powers of two.
    pub(crate) unsafe fn new(config: &QpConfig) -> Self {
        // SAFETY: the caller's.
        let (ring, producer) = unsafe {
            let ring = ReadRing::new(config.rq, config.rq_entries, config.rq_stride as usize);
            (ring, Producer::new(config.dbrec, doorbell::DBR_RECV))
        };
        ReceiveQueue { ring, producer, next: 0, current: None }
    }

    /// Empties the queue. The front zeroes the doorbell record.
    pub(crate) fn reset(&mut self) {
        self.producer.set(0);
        (self.next, self.current) = (0, None);
    }

    fn poll_record(&mut self) {
        if self.ring.entries() != 0 {
            self.producer.advance(self.producer.load());
        }
    }

    /// Whether a receive can be taken.
    pub(crate) fn has_receive(&mut self) -> bool {
        self.poll_record();
        self.current.is_some() || self.next != self.producer.index()
    }

    /// Takes a receive: first one that an aborted message of an unreliable connection has left,
    /// else the next posted one.
    pub(crate) fn take(&mut self) -> Option<Receive> {
        if !self.has_receive() {
            return None;
        }
        if let Some(receive) = self.current.take() {
            return Some(Receive { offset: 0, ..receive });
        }
        let index = self.next;
        self.next = index.wrapping_add(1);
        let mut bytes = Vec::with_capacity(64);
        self.ring.read(index, &mut bytes);
        Some(Receive { index: index as u16, segments: recv::segments(&bytes).collect(), offset: 0 })
    }

    /// Takes all receives, for flushing. Returns their indices.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = u16> + use<> {
        let current = self.current.take().map(|receive| receive.index);
        self.poll_record();
        // A broken record may announce more receives than the ring holds.
        let posted = self.producer.index().wrapping_sub(self.next).min(self.ring.entries());
        let first = self.next;
        self.next = self.producer.index();
        current.into_iter().chain((0..posted).map(move |step| first.wrapping_add(step) as u16))
    }
}
