//! Shared receive queues.
//!
//! The entries of a shared queue form a list: each begins with the index of the next (`struct mlx5_wqe_srq_next_seg`),
//! as receives complete in any order. The card starts at entry 0 and follows the list; the doorbell record counts the
//! posted receives. A cyclic queue, which only DEVX commands create, is taken in ring order, without regard to the
//! links.

use super::receive::ReceiveOwner;
use crate::card::config::{SrqAttributes, SrqConfig, XrcConfig};
use crate::card::memory::ring::{Producer, ReadRing};
use gdsync_sys::prm::recv;
use gdsync_sys::prm::wqe::DataSeg;

#[derive(Debug)]
pub(crate) struct Srq {
    ring: ReadRing,
    stride: u32,
    cyclic: bool,
    producer: Producer,
    /// Number of receives taken; not reduced.
    taken: u32,
    head: u16,
    limit: u32,
    broken: bool,
    pub(crate) pdn: u32,
    pub(crate) xrc: Option<XrcConfig>,
    /// Number of queue pairs that take from it.
    pub(crate) users: u32,
}

/// The ring is inconsistent.
#[derive(Debug)]
pub(crate) struct Broken {
    /// True for the first time, the only one that raises an event.
    pub(crate) first: bool,
    pub(crate) message: String,
}

#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) index: u16,
    pub(crate) segments: Vec<DataSeg>,
    pub(crate) below_limit: bool,
}

impl Srq {
    /// # Safety
    /// The addresses of `config` stay valid as long as the queue; counts are powers of two.
    pub(crate) unsafe fn new(config: &SrqConfig) -> Self {
        // SAFETY: the caller guarantees this.
        let (ring, producer) = unsafe {
            (
                ReadRing::new(config.ring, config.entries, config.stride as usize),
                Producer::new(config.dbrec, 0),
            )
        };
        Srq {
            ring,
            stride: config.stride,
            cyclic: config.cyclic,
            producer,
            taken: 0,
            head: 0,
            limit: 0,
            broken: false,
            pdn: config.pdn,
            xrc: config.xrc,
            users: 0,
        }
    }

    /// Returns the owner of a receive that is taken for a queue pair: it completes there, unless the queue is an XRC
    /// one.
    pub(crate) fn owner(&self, of_queue_pair: ReceiveOwner) -> ReceiveOwner {
        match self.xrc {
            Some(XrcConfig { cqn, user_index, .. }) => ReceiveOwner { pdn: self.pdn, cqn, user_index },
            None => ReceiveOwner { pdn: self.pdn, ..of_queue_pair },
        }
    }

    pub(crate) fn attributes(&mut self) -> SrqAttributes {
        SrqAttributes {
            entries: self.ring.entries,
            stride: self.stride,
            limit: self.limit,
            posted: self.posted(),
        }
    }

    /// Returns the number of posted receives that are not taken.
    fn posted(&mut self) -> u32 {
        self.producer.advance(self.producer.load());
        self.producer.index().wrapping_sub(self.taken)
    }

    /// Arms the limit; 0 disarms it. Returns true if the queue is already below it.
    pub(crate) fn set_limit(&mut self, limit: u32) -> bool {
        self.limit = limit;
        self.passes_limit()
    }

    /// Returns whether the queue is below its limit. If so, disarms the limit.
    fn passes_limit(&mut self) -> bool {
        let passes = self.posted() < self.limit;
        if passes {
            self.limit = 0;
        }
        passes
    }

    pub(crate) fn has_receive(&mut self) -> bool {
        self.posted() > 0
    }

    pub(crate) fn take(&mut self) -> Result<Option<Taken>, Broken> {
        let (posted, entries) = (self.posted(), self.ring.entries);
        if posted == 0 {
            return Ok(None);
        }
        if posted > entries {
            return Err(self.fail(format!("{posted} receives are posted in a ring of {entries}")));
        }
        let index = self.head;
        if u32::from(index) >= entries {
            return Err(self.fail(format!("the list goes on at entry {index} of {entries}")));
        }
        let mut bytes = Vec::with_capacity(64);
        self.ring.read(index.into(), &mut bytes);
        let (next, segments) = recv::linked(&bytes);
        self.head = if self.cyclic { (index + 1) & (entries - 1) as u16 } else { next };
        self.taken = self.taken.wrapping_add(1);
        let segments = segments.collect();
        Ok(Some(Taken { index, segments, below_limit: self.passes_limit() }))
    }

    fn fail(&mut self, message: String) -> Broken {
        Broken { first: !std::mem::replace(&mut self.broken, true), message }
    }
}
