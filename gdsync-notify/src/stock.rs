//! What a team keeps for its segments: registrations of the program's memory, and the kernels of GPUs.

use crate::error::NotifyError;
use crate::word::Taker;
use gdsync::ProtectionDomain;
use gdsync::cudarc::driver::CudaContext;
use gdsync::verbs::RegistrationCache;
use parking_lot::Mutex;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Stock {
    /// Memory of the program that segments were made of.
    pub(crate) registrations: RegistrationCache,
    /// Of each context in whose memory a segment was, one.
    takers: Mutex<Vec<Arc<Taker>>>,
}

impl Stock {
    /// With nothing, for segments of a protection domain.
    pub(crate) fn new(pd: &ProtectionDomain) -> Self {
        Stock { registrations: RegistrationCache::new(pd), takers: Mutex::default() }
    }

    /// What takes notifications in memory of a context. The first call for a context loads its kernels.
    pub(crate) fn taker(&self, context: &Arc<CudaContext>) -> Result<Arc<Taker>, NotifyError> {
        let mut takers = self.takers.lock();
        if let Some(known) = takers.iter().find(|one| one.context().cu_ctx() == context.cu_ctx()) {
            return Ok(known.clone());
        }
        let made = Arc::new(Taker::new(context)?);
        takers.push(made.clone());
        Ok(made)
    }
}
