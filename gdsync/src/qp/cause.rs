//! Why a wait for a completion takes long.

use crate::memop::WaitCause;
use crate::qp::QueuePairInner;
use std::sync::{Arc, Weak};

/// The queue pairs whose completion ends a wait. It does not keep them.
#[derive(Debug)]
pub(crate) struct Completing(Vec<Weak<QueuePairInner>>);

impl Completing {
    pub(crate) fn of(queue_pairs: &[Arc<QueuePairInner>]) -> Self {
        Completing(queue_pairs.iter().map(Arc::downgrade).collect())
    }

    fn alive(&self) -> impl Iterator<Item = Arc<QueuePairInner>> {
        self.0.iter().filter_map(Weak::upgrade)
    }
}

impl WaitCause for Completing {
    fn cause(&self) -> Option<String> {
        let mut known = Vec::new();
        for one in self.alive() {
            let failure = one.life.failure();
            known.extend(failure.map(|cause| format!("queue pair {:#x} has failed: {cause}", one.number)));
            known.extend(one.trigger.as_ref().and_then(|trigger| trigger.missing()));
        }
        // Queue pairs share triggers.
        known.dedup();
        (!known.is_empty()).then(|| known.join("; "))
    }

    fn queue_pairs(&self) -> Vec<u32> {
        self.alive().map(|one| one.number).collect()
    }
}
