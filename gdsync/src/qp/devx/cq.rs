//! Completion queues made by `CREATE_CQ`.

use super::command::Object;
use super::domain::Domain;
use super::memory::Blocks;
use super::sizes;
use crate::qp::cq::CqObject;
use crate::queue::Ring;
use crate::verbs::error::Error;
use gdsync_sys::prm::command::encode::CreateCq;
use gdsync_sys::prm::cqe::CQE_SIZE;
use gdsync_sys::prm::doorbell::DBR_CQ_CI;
use gdsync_sys::verbs::ibv_cq;
use std::ptr::NonNull;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    // In this order: the device destroys the queue before its memory is released.
    object: Object,
    _memory: Blocks,
}

impl Cq {
    /// A queue of at least `entries` entries, and its ring, which must not be used longer than the
    /// queue.
    pub(crate) fn new(domain: &Domain, entries: u32) -> Result<(Self, Ring), Error> {
        let most = domain.device.attributes()?.max_completions;
        let entries = sizes::completion_entries(entries, most)?;
        let ring_bytes = entries as usize * CQE_SIZE;
        let memory = domain.completion_memory(ring_bytes)?;
        // SAFETY: ring and record are inside the memory, which `Blocks` keeps mapped and is aligned
        // to a page; entries are a power of two. Only the card accesses it besides.
        let ring = unsafe { Ring::new(memory.at(0), entries, CQE_SIZE, memory.record(DBR_CQ_CI)) };
        let command = CreateCq {
            ring: memory.place(),
            record: memory.record_place(),
            log_entries: entries.trailing_zeros(),
            uar_page: domain.uar.page,
            event_queue: domain.event_queue,
            ignore_overrun: false,
        };
        let detail = || format!("{entries} entries");
        let object = Object::create(&domain.device, "CREATE_CQ", &command.encode(), detail)?;
        Ok((Cq { object, _memory: memory }, ring))
    }
}

impl CqObject for Cq {
    fn number(&self) -> u32 {
        self.object.number
    }

    fn verbs(&self) -> Option<NonNull<ibv_cq>> {
        None
    }
}
