//! Pages of doorbell registers.

use super::device::OpenCard;
use super::errno::Result;
use gdsync_sys::prm::doorbell::{UAR_CQ_ARM, UAR_DOORBELLS};
use std::sync::Arc;

/// The register of queue pairs. Without BlueFlame, further ones have no purpose.
const DOORBELL: usize = UAR_DOORBELLS[0];
/// Registers of a thread domain's page.
static OF_DOMAIN: [usize; 1] = [DOORBELL];
/// Registers of a context's page, which also arms its completion queues.
static OF_CONTEXT: [usize; 2] = [DOORBELL, UAR_CQ_ARM];

/// A UAR. Dropping it frees it.
pub(super) struct OwnUar {
    open: Arc<OpenCard>,
    pub(super) id: u32,
    /// First byte of the page.
    pub(super) page: *mut u8,
}

// SAFETY: any thread may store to the page; it is not dereferenced here.
unsafe impl Send for OwnUar {}
// SAFETY: as above.
unsafe impl Sync for OwnUar {}

impl OwnUar {
    /// Allocates the page of a thread domain.
    pub(super) fn of_domain(open: &Arc<OpenCard>) -> Result<Self> {
        Self::new(open, &OF_DOMAIN)
    }

    /// Allocates the page of a context.
    pub(super) fn of_context(open: &Arc<OpenCard>) -> Result<Self> {
        Self::new(open, &OF_CONTEXT)
    }

    fn new(open: &Arc<OpenCard>, registers: &[usize]) -> Result<Self> {
        let uar = open.card.alloc_uar(registers)?;
        Ok(OwnUar { open: open.clone(), id: uar.id, page: uar.page })
    }

    pub(super) fn register(&self) -> *mut u8 {
        self.page.wrapping_add(DOORBELL)
    }
}

impl Drop for OwnUar {
    fn drop(&mut self) {
        if let Err(error) = self.open.card.free_uar(self.id) {
            tracing::error!(%error, "a UAR could not be freed");
        }
    }
}
