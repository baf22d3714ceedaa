//! Memory of rings and doorbell records, from the allocator of a parent domain or from the heap.

use super::domain::Pd;
use super::errno::{Errno, Result};
use super::object;
use gdsync_sys::mlx5dv::MLX5DV_RES_TYPE_DBR;
use gdsync_sys::shared::SharedU32;
use gdsync_sys::verbs::IBV_ALLOCATOR_USE_DEFAULT;
use libc::c_void;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a page, to which libmlx5 aligns its rings.
pub(super) fn page_size() -> usize {
    // SAFETY: the call accesses no memory of ours.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}

/// Bytes of a cache line, which doorbell records of different queues do not share.
const CACHE_LINE: usize = 64;

/// A block of queue memory. Dropping it frees it with its allocator.
pub(super) struct QueueMemory {
    start: NonNull<u8>,
    source: Source,
}

enum Source {
    Heap(Layout),
    Custom { domain: Arc<Pd>, resource_type: u64 },
}

pub(super) struct Request {
    pub(super) size: usize,
    pub(super) alignment: usize,
    /// `MLX5DV_RES_TYPE_*`.
    pub(super) resource_type: u64,
}

// SAFETY: an address; the C caller and the card access the memory.
unsafe impl Send for QueueMemory {}
// SAFETY: as above.
unsafe impl Sync for QueueMemory {}

impl QueueMemory {
    /// Allocates from the allocator of `domain`, or from the heap if it has none or its allocator asks for the default.
    /// A custom block keeps its allocator's content. A heap block is zeroed, and aligned to at least `own_alignment`.
    ///
    /// # Errors
    /// ENOMEM, or EINVAL for a custom block that is misaligned.
    pub(super) fn new(domain: Option<&Arc<Pd>>, request: &Request, own_alignment: usize) -> Result<Self> {
        if let Some(domain) = domain
            && let Some(custom) = Self::custom(domain, request)?
        {
            return Ok(custom);
        }
        let alignment = request.alignment.max(own_alignment);
        let size = request.size.max(1).next_multiple_of(alignment);
        let layout = Layout::from_size_align(size, alignment).map_err(|_| Errno::NO_MEMORY)?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or(Errno::NO_MEMORY)?;
        Ok(QueueMemory { start, source: Source::Heap(layout) })
    }

    /// Allocates a doorbell record: two words. A heap record is zeroed, and has its own cache line.
    ///
    /// # Errors
    /// As [`QueueMemory::new`].
    pub(super) fn doorbell_record(domain: Option<&Arc<Pd>>) -> Result<Self> {
        let request = Request { size: 8, alignment: 8, resource_type: MLX5DV_RES_TYPE_DBR };
        Self::new(domain, &request, CACHE_LINE)
    }

    /// Zeroes both words of a doorbell record.
    pub(super) fn clear_record(&self) {
        for word in 0..2 {
            // SAFETY: made by `doorbell_record`: two aligned words. The card may read them meanwhile.
            unsafe { SharedU32::from_ptr(self.start().cast::<u32>().add(word)) }.store(0, Ordering::Release);
        }
    }

    fn custom(domain: &Arc<Pd>, request: &Request) -> Result<Option<Self>> {
        let Some(parent) = domain.parent() else { return Ok(None) };
        let Some((allocate, _)) = parent.allocators else { return Ok(None) };
        // SAFETY: the program gave this function for this use with the domain, which is alive.
        let block = unsafe {
            allocate(
                object::handle(domain),
                parent.pd_context,
                request.size,
                request.alignment,
                request.resource_type,
            )
        };
        if block == IBV_ALLOCATOR_USE_DEFAULT {
            return Ok(None);
        }
        let start = NonNull::new(block.cast()).ok_or(Errno::NO_MEMORY)?;
        let source = Source::Custom { domain: domain.clone(), resource_type: request.resource_type };
        let memory = QueueMemory { start, source };
        if !(block as usize).is_multiple_of(request.alignment) {
            tracing::warn!(?block, request.alignment, "the parent domain's allocator ignored the alignment");
            return Err(Errno::INVALID);
        }
        Ok(Some(memory))
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns whether a parent domain's allocator made it.
    pub(super) fn is_custom(&self) -> bool {
        matches!(self.source, Source::Custom { .. })
    }
}

impl Drop for QueueMemory {
    fn drop(&mut self) {
        match &self.source {
            // SAFETY: allocated with this layout, freed once; the card's object that used it is destroyed.
            Source::Heap(layout) => unsafe { std::alloc::dealloc(self.start.as_ptr(), *layout) },
            Source::Custom { domain, resource_type } => {
                let Some(parent) = domain.parent() else { return };
                let Some((_, free)) = parent.allocators else { return };
                let block = self.start.as_ptr().cast::<c_void>();
                // SAFETY: the counterpart of the allocator that returned the block; `domain` is alive.
                unsafe { free(object::handle(domain), parent.pd_context, block, *resource_type) };
            }
        }
    }
}
