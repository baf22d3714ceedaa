//! Completions that belong to a persistent request: the program's polls do not return them.

use crate::queue::{Completion, Status, WorkError, WorkKind};
use crate::verbs::error::Error;
use gdsync_sys::prm::cqe::Syndrome;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Receives the completion of one start.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) status: Status,
    completion: Mutex<Option<Completion>>,
}

impl Claim {
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Claim { status: Status::new()?, completion: Mutex::new(None) }))
    }

    /// Sets the outcome, unless there is one.
    pub(crate) fn finish(&self, completion: Completion) {
        let mut place = self.completion.lock();
        if place.is_none() {
            *place = Some(completion);
            drop(place);
            self.status.set(completion.status);
        }
    }

    /// The work never reached the card: `syndrome` says why; 0 if the card has no syndrome for the
    /// reason.
    pub(crate) fn finish_unposted(&self, qp_num: u32, kind: WorkKind, syndrome: u8) {
        let status = Err(WorkError { syndrome, vendor: 0 });
        self.finish(Completion {
            wr_id: 0,
            index: None,
            qp_num,
            kind,
            byte_len: 0,
            immediate: None,
            invalidated: None,
            source: None,
            was_posted: false,
            status,
        });
    }

    /// As [`Self::finish_unposted`], for work that the queue pair's failure has flushed.
    pub(crate) fn finish_flushed(&self, qp_num: u32, kind: WorkKind) {
        self.finish_unposted(qp_num, kind, Syndrome::WrFlush as u8);
    }

    pub(crate) fn completion(&self) -> Option<Completion> {
        *self.completion.lock()
    }
}

/// The claims on the work requests of one queue, oldest first, by serial number.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    claims: VecDeque<(u64, Arc<Claim>)>,
}

impl Claims {
    pub(crate) fn add(&mut self, serial: u64, claim: Arc<Claim>) {
        self.claims.push_back((serial, claim));
    }

    /// The work request was withdrawn, and does not complete.
    pub(crate) fn forget(&mut self, serial: u64) {
        self.claims.retain(|(known, _)| *known != serial);
    }

    /// Takes out the claim on the work request that has just retired.
    pub(crate) fn take(&mut self, serial: u64) -> Option<Arc<Claim>> {
        let (first, _) = self.claims.front()?;
        if *first == serial { self.claims.pop_front().map(|(_, claim)| claim) } else { None }
    }
}
