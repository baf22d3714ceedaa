//! Protection domains, and XRC domains. A file names an XRC domain, which all that open it in this process share: each
//! process has its own card.

use crate::attributes::Request;
use crate::context::{Context, Object};
use crate::errno::{Errno, Result};
use crate::resource::Resource;
use crate::uapi::ioctl::{attr, object};
use crate::uapi::queues::{CloseXrcd, OpenXrcd};
use std::mem::MaybeUninit;

/// `ALLOC_PD`: answers the handle, and the number for libmlx5.
pub(crate) fn alloc(context: &Context, request: &Request) -> Result<()> {
    let number = context.card().alloc_pd()?;
    let handle = context.objects.lock().add(Object::new(object::PD, Resource::Pd(number)));
    request.answer_with(attr::CORE_OUT, &handle)?;
    request.answer_with(attr::UHW_OUT, &number)
}

/// `MLX5_IB_METHOD_PD_QUERY`: the number of an imported domain.
pub(crate) fn query(context: &Context, request: &Request) -> Result<()> {
    let number = context.objects.lock().number(object::PD, request.handle(attr::PD_QUERY_HANDLE)?)?;
    request.answer_with(attr::PD_QUERY_PDN, &number)
}

/// Returns what tells an open file from others.
pub(super) fn file_of(fd: i32) -> Result<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `status` has room for the answer; a descriptor that is not open is an error.
    if unsafe { libc::fstat(fd, status.as_mut_ptr()) } != 0 {
        return Err(Errno::BAD_FD);
    }
    // SAFETY: the call has filled it.
    let status = unsafe { status.assume_init() };
    Ok((status.st_dev, status.st_ino))
}

/// `OPEN_XRCD`. As in the kernel, a file whose domain is not open needs `O_CREAT` (else EAGAIN), and `O_EXCL`
/// refuses one that is (EINVAL).
pub(crate) fn open_xrcd(context: &Context, request: &Request) -> Result<()> {
    let asked: OpenXrcd = request.structure(attr::CORE_IN)?;
    let has = |flag: i32| asked.oflags & flag as u32 != 0;
    let card = context.card();
    let number = match asked.fd as i32 {
        -1 => card.open_xrcd(None, true)?,
        fd => {
            let file = file_of(fd)?;
            if has(libc::O_EXCL) && card.has_xrcd(file) {
                return Err(Errno::INVALID);
            }
            card.open_xrcd(Some(file), has(libc::O_CREAT))?
        }
    };
    let number = number.ok_or(Errno(libc::EAGAIN))?;
    let handle = context.objects.lock().add(Object::new(object::XRCD, Resource::Xrcd(number)));
    request.answer_with(attr::CORE_OUT, &handle)
}

/// `CLOSE_XRCD`, the older command.
pub(crate) fn close_xrcd(context: &Context, request: &Request) -> Result<()> {
    let asked: CloseXrcd = request.structure(attr::CORE_IN)?;
    context.destroy(object::XRCD, asked.xrcd_handle).map(drop)
}
