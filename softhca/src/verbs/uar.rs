//! Pages of doorbell registers.

use super::device::OpenCard;
use super::errno::Result;
use gdsync_sys::prm::doorbell::UAR_DOORBELLS;
use std::sync::Arc;

/// The only register of a page that is used. Without BlueFlame, further registers have no purpose.
static REGISTER: [usize; 1] = [UAR_DOORBELLS[0]];

/// A UAR. Dropping it frees it.
pub(super) struct OwnUar {
    open: Arc<OpenCard>,
    id: u32,
    page: *mut u8,
}

// SAFETY: any thread may store to the page; it is not dereferenced here.
unsafe impl Send for OwnUar {}
// SAFETY: as above.
unsafe impl Sync for OwnUar {}

impl OwnUar {
    pub(super) fn new(open: &Arc<OpenCard>) -> Result<Self> {
        let uar = open.card.alloc_uar(&REGISTER)?;
        Ok(OwnUar { open: open.clone(), id: uar.id, page: uar.page })
    }

    /// Number of the page.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// First byte of the page.
    pub(super) fn page(&self) -> *mut u8 {
        self.page
    }

    /// The doorbell register.
    pub(super) fn register(&self) -> *mut u8 {
        self.page.wrapping_add(REGISTER[0])
    }
}

impl Drop for OwnUar {
    fn drop(&mut self) {
        if let Err(error) = self.open.card.free_uar(self.id) {
            tracing::error!(%error, "a UAR could not be freed");
        }
    }
}
