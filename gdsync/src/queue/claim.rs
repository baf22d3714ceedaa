//! Completions that belong to a persistent request: the program's polls do not return them.

use crate::queue::{Completion, Status, WorkError, WorkKind};
use crate::verbs::error::Error;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Receives the completion of one start.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) status: Status,
    /// The entry of the completion queue in which the work completes, where nothing but this kind of
    /// work of one queue pair completes there.
    pub(crate) entry: OnceLock<u32>,
    /// A thread of the library looks for the completion.
    is_watched: AtomicBool,
    completion: Mutex<Option<Completion>>,
}

impl Claim {
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        let status = Status::new()?;
        let (entry, is_watched) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Arc::new(Claim { status, entry, is_watched, completion: Mutex::new(None) }))
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

    /// Says that a thread is to look for the completion. False where one does.
    pub(crate) fn watch(&self) -> bool {
        !self.is_watched.swap(true, Ordering::AcqRel)
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

    /// Those on work requests that have not retired, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Arc<Claim>)> {
        self.claims.iter().map(|(serial, claim)| (*serial, claim))
    }

    /// Whether the entries `from..to` of the completion queue are all those of claimed work.
    pub(crate) fn cover(&self, from: u32, to: u32) -> bool {
        let is_between = |entry: &u32| entry.wrapping_sub(from) < to.wrapping_sub(from);
        let claimed = self.claims.iter().filter(|(_, claim)| claim.entry.get().is_some_and(is_between));
        claimed.count() as u32 == to.wrapping_sub(from)
    }

    /// Takes out the claim on the work request that has just retired.
    pub(crate) fn take(&mut self, serial: u64) -> Option<Arc<Claim>> {
        let (first, _) = self.claims.front()?;
        if *first == serial { self.claims.pop_front().map(|(_, claim)| claim) } else { None }
    }
}
