//! Pages of doorbell registers.

use crate::attributes::Request;
use crate::context::{Context, Object};
use crate::errno::{Errno, Result};
use crate::resource::Resource;
use crate::uapi::ioctl::{attr, object};
use gdsync_sys::prm::doorbell::{UAR_CQ_ARM, UAR_DOORBELLS};
use std::os::fd::OwnedFd;

/// Bytes of a page.
const PAGE: u32 = 4096;
/// Registers that libmlx5 writes: two blue-flame registers of two buffers each, and the register
/// that arms completion queues.
const REGISTERS: &[usize] =
    &[UAR_DOORBELLS[0], UAR_DOORBELLS[1], UAR_DOORBELLS[2], UAR_DOORBELLS[3], UAR_CQ_ARM];
/// Set in the mmap offset of a page, to keep clear of the commands of `enum mlx5_ib_mmap_cmd`.
const MAPPING: u64 = 1 << 47;
/// Type 0 is blue flame, 1 is non-cached, 2 is non-cached and dedicated. The card does not
/// distinguish them.
const LAST_TYPE: u64 = 2;

/// The page of a mapping offset.
fn page_id_of(offset: u64) -> Option<u32> {
    let number = (offset & !MAPPING) / u64::from(PAGE);
    u32::try_from(number).ok().filter(|_| offset & MAPPING != 0 && offset.is_multiple_of(u64::from(PAGE)))
}

/// The memory of the page that a program maps at an offset of the device: a file, and an offset in
/// it. `None` if the context has not returned this offset.
///
/// # Errors
/// EINVAL for more than one page: the file continues with pages of other contexts.
pub(crate) fn mapping(context: &Context, offset: u64, len: usize) -> Result<Option<(OwnedFd, u64)>> {
    let Some(page_id) = page_id_of(offset) else { return Ok(None) };
    if !context.objects.lock().has(Resource::Uar(page_id)) {
        return Ok(None);
    }
    if len > PAGE as usize {
        return Err(Errno::INVALID);
    }
    Ok(Some(context.card().uar_memory(page_id)?))
}

/// `MLX5_IB_METHOD_UAR_OBJ_ALLOC`.
pub(crate) fn alloc(context: &Context, request: &Request) -> Result<()> {
    if request.number(attr::UAR_TYPE)? > LAST_TYPE {
        return Err(Errno::NOT_SUPPORTED);
    }
    let id = context.card().alloc_uar(REGISTERS)?.id;
    let handle = context.objects.lock().add(Object::new(object::UAR, Resource::Uar(id)));
    request.answer_created(attr::UAR_HANDLE, handle)?;
    request.answer_with(attr::UAR_MMAP_OFFSET, &(MAPPING | (u64::from(id) * u64::from(PAGE))))?;
    request.answer_with(attr::UAR_MMAP_LENGTH, &PAGE)?;
    request.answer_with(attr::UAR_PAGE_ID, &id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_offsets_that_were_given_out_name_a_page() {
        assert_eq!(page_id_of(MAPPING | 0x40_000), Some(0x40));
        for offset in [0, 0x40_000, MAPPING | 0x40_001, MAPPING | (1 << 48), u64::MAX] {
            assert_eq!(page_id_of(offset), None, "{offset:#x}");
        }
    }
}
