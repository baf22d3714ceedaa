//! Pages of doorbell registers.

use crate::attributes::Request;
use crate::context::{Context, Object};
use crate::errno::{Errno, Result};
use crate::resource::Resource;
use crate::uapi::ioctl::{attr, object};
use gdsync_sys::prm::doorbell::{UAR_CQ_ARM, UAR_DOORBELLS};

/// Bytes of a page.
const PAGE: u32 = 4096;
/// Registers that libmlx5 writes: two BlueFlame registers of two buffers each, and the register that arms
/// completion queues.
const REGISTERS: &[usize] =
    &[UAR_DOORBELLS[0], UAR_DOORBELLS[1], UAR_DOORBELLS[2], UAR_DOORBELLS[3], UAR_CQ_ARM];
/// Type 0 is BlueFlame, 1 is non-cached, 2 is non-cached and dedicated. The card does not distinguish them.
const LAST_TYPE: u64 = 2;

/// Checks that a program maps one page of this context. The system itself would also map other parts of the
/// file. Returns the number of the page.
///
/// # Errors
/// EINVAL, as in the kernel.
pub(crate) fn check_mapping(context: &Context, offset: u64, len: usize) -> Result<u32> {
    let page = context.pages.lock().get(&offset).copied();
    let own = page.filter(|id| context.objects.lock().has(Resource::Uar(*id)));
    own.filter(|_| len <= PAGE as usize).ok_or(Errno::INVALID)
}

pub(crate) fn alloc(context: &Context, request: &Request) -> Result<()> {
    if request.number(attr::UAR_TYPE)? > LAST_TYPE {
        return Err(Errno::NOT_SUPPORTED);
    }
    let uar = context.card().alloc_uar(REGISTERS)?;
    context.pages.lock().insert(uar.offset, uar.id);
    let handle = context.objects.lock().add(Object::new(object::UAR, Resource::Uar(uar.id)));
    request.answer_created(attr::UAR_HANDLE, handle)?;
    request.answer_with(attr::UAR_MMAP_OFFSET, &uar.offset)?;
    request.answer_with(attr::UAR_MMAP_LENGTH, &PAGE)?;
    request.answer_with(attr::UAR_PAGE_ID, &uar.id)
}
