//! Memory regions.

use crate::attributes::Request;
use crate::context::{Context, Object};
use crate::errno::{Errno, Result};
use crate::resource::Resource;
use crate::uapi::ioctl::{attr, object};
use crate::uapi::verbs::{ACCESS_OPTIONAL, RegMr, RegMrResp};
use softhca::card::{Access, RegionConfig};
use std::os::fd::RawFd;

/// A memory region.
struct Mr {
    key: u32,
    length: u64,
    iova: u64,
    /// The mapping of a file that was registered instead of an address.
    _mapping: Option<Mapping>,
}

/// A mapping of a file that this library has made. Dropping it unmaps the memory.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: usize,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes of a file from `offset` on. Returns the address of the first byte, too.
    pub(crate) fn new(fd: RawFd, offset: u64, len: u64, writable: bool) -> Result<(Mapping, u64)> {
        const PAGE: u64 = 4096;
        let lead = offset % PAGE;
        let start = libc::off_t::try_from(offset - lead).map_err(|_| Errno::INVALID)?;
        let whole = len.checked_add(lead).filter(|_| len > 0).ok_or(Errno::INVALID)?;
        let len = usize::try_from(whole).map_err(|_| Errno::INVALID)?;
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address that the kernel chooses; it replaces no other
        // mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, start) };
        if base == libc::MAP_FAILED {
            let errno = Errno::last();
            tracing::warn!(
                ?errno,
                "memory of this file cannot be mapped by the CPU, so the software card cannot reach it"
            );
            return Err(if errno == Errno::BAD_FD { errno } else { Errno::NOT_SUPPORTED });
        }
        Ok((Mapping { base: base as usize, len }, base as u64 + lead))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping. The context drops an object only after it has destroyed
        // the object on the card, so the card no longer accesses the memory.
        if unsafe { libc::munmap(self.base as *mut libc::c_void, self.len) } != 0 {
            tracing::error!(errno = Errno::last().0, "a mapping is left");
        }
    }
}

/// Access rights, without the optional ones. On-demand paging, memory windows and huge-page hints
/// are not supported.
pub(crate) fn access_of(flags: u32) -> Result<Access> {
    let known = Access::from_bits_truncate(flags);
    if flags & !ACCESS_OPTIONAL & !known.bits() != 0 {
        tracing::warn!(flags, "access flags that the software card does not have");
        return Err(Errno::NOT_SUPPORTED);
    }
    Ok(known)
}

/// Registers a region: address, length, and the address on the card. Returns its handle and key.
fn add(
    context: &Context,
    region: (u64, u64, u64),
    pd: u32,
    flags: u32,
    mapping: Option<Mapping>,
) -> Result<(u32, u32)> {
    let (addr, length, iova) = region;
    let access = access_of(flags)?;
    let mut objects = context.objects.lock();
    let pdn = objects.number(object::PD, pd)?;
    let config = RegionConfig { pdn, addr, len: length, iova, access, tag: None };
    // SAFETY: the interface obliges the program to keep registered memory mapped; the region keeps
    // a mapping of this library.
    let key = unsafe { context.card().register_memory(&config) }?;
    let region = Object::new(object::MR, Resource::Mkey(key));
    Ok((objects.add(region.with(Mr { key, length, iova, _mapping: mapping })), key))
}

/// `REG_MR`.
pub(crate) fn register(context: &Context, request: &Request) -> Result<()> {
    let asked: RegMr = request.structure(attr::CORE_IN)?;
    let region = (asked.start, asked.length, asked.hca_va);
    let (mr_handle, key) = add(context, region, asked.pd_handle, asked.access_flags, None)?;
    request.answer_with(attr::CORE_OUT, &RegMrResp { mr_handle, lkey: key, rkey: key })
}

/// `REG_DMABUF_MR`, for files that the CPU can map.
pub(crate) fn register_dmabuf(context: &Context, request: &Request) -> Result<()> {
    request.knows(&[0, 1, 2, 3, 4, 5, 6, 7, 8])?;
    let (offset, length) = (request.number(attr::DMABUF_OFFSET)?, request.number(attr::DMABUF_LENGTH)?);
    let flags = request.number32(attr::DMABUF_ACCESS)?;
    let writable = access_of(flags)?.contains(Access::LOCAL_WRITE);
    // The attribute is a number here, not a file descriptor of the ioctl interface.
    let fd = RawFd::try_from(request.number(attr::DMABUF_FD)?).map_err(|_| Errno::BAD_FD)?;
    let (mapping, addr) = Mapping::new(fd, offset, length, writable)?;
    let region = (addr, length, request.number(attr::DMABUF_IOVA)?);
    let (handle, key) = add(context, region, request.handle(attr::DMABUF_PD)?, flags, Some(mapping))?;
    request.answer_created(attr::HANDLE, handle)?;
    request.answer_with(attr::DMABUF_LKEY, &key)?;
    request.answer_with(attr::DMABUF_RKEY, &key)
}

/// The newer `REG_MR`: registers memory by address, or a file.
pub(crate) fn register_any(context: &Context, request: &Request) -> Result<()> {
    // All attributes but the DMA handle, which is a cache hint.
    request.knows(&[0, 1, 3, 4, 5, 6, 7, 8, 9, 10])?;
    let (length, flags) = (request.number(attr::REG_MR_LENGTH)?, request.number32(attr::REG_MR_ACCESS)?);
    let writable = access_of(flags)?.contains(Access::LOCAL_WRITE);
    let (mapping, addr) = match (request.has(attr::REG_MR_FD), request.has(attr::REG_MR_ADDR)) {
        (true, false) => {
            let offset = request.number(attr::REG_MR_FD_OFFSET)?;
            let (mapping, addr) = Mapping::new(request.fd(attr::REG_MR_FD)?, offset, length, writable)?;
            (Some(mapping), addr)
        }
        (false, true) => (None, request.number(attr::REG_MR_ADDR)?),
        _ => return Err(Errno::INVALID),
    };
    let region = (addr, length, request.number(attr::REG_MR_IOVA)?);
    let (handle, key) = add(context, region, request.handle(attr::REG_MR_PD)?, flags, mapping)?;
    request.answer_created(attr::HANDLE, handle)?;
    request.answer_with(attr::REG_MR_LKEY, &key)?;
    request.answer_with(attr::REG_MR_RKEY, &key)
}

/// `QUERY_MR`.
pub(crate) fn query(context: &Context, request: &Request) -> Result<()> {
    let objects = context.objects.lock();
    let mr = objects.state::<Mr>(request.handle(attr::HANDLE)?)?;
    request.answer_with(attr::MR_QUERY_LKEY, &mr.key)?;
    request.answer_with(attr::MR_QUERY_RKEY, &mr.key)?;
    request.answer_with(attr::MR_QUERY_LENGTH, &mr.length)?;
    request.answer_with(attr::MR_QUERY_IOVA, &mr.iova)
}
