//! Memory regions.

use crate::attributes::Request;
use crate::card::OpenCard;
use crate::context::{Context, Object};
use crate::errno::{Errno, Result};
use crate::uapi::ioctl::attr;
use crate::uapi::verbs::{ACCESS_OPTIONAL, RegMr, RegMrResp};
use softhca::card::{Access, RegionConfig};
use std::os::fd::RawFd;

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    key: u32,
    length: u64,
    iova: u64,
    /// Memory of a file that was registered instead of an address.
    _mapping: Option<Mapping>,
}

impl Mr {
    pub(crate) fn destroy(&self, card: &OpenCard) -> Result<()> {
        Ok(card.card.deregister_memory(self.key)?)
    }
}

/// A mapping of our own; unmapped with it.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: usize,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes of a file from `offset` on. Returns the first byte's address, too.
    pub(crate) fn new(fd: RawFd, offset: u64, len: u64, writable: bool) -> Result<(Mapping, u64)> {
        const PAGE: u64 = 4096;
        let lead = offset % PAGE;
        let start = libc::off_t::try_from(offset - lead).map_err(|_| Errno::INVALID)?;
        let whole = len.checked_add(lead).filter(|_| len > 0).ok_or(Errno::INVALID)?;
        let len = usize::try_from(whole).map_err(|_| Errno::INVALID)?;
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping where the system likes it; nothing is replaced.
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
        // SAFETY: our own mapping; the card has let go of it, since the region was deregistered before.
        if unsafe { libc::munmap(self.base as *mut libc::c_void, self.len) } != 0 {
            tracing::error!(errno = Errno::last().0, "a mapping is left");
        }
    }
}

/// Rights, without those that may be ignored. On-demand paging, windows and huge pages' hints are not there.
pub(crate) fn access_of(flags: u32) -> Result<Access> {
    let known = Access::from_bits_truncate(flags);
    if flags & !ACCESS_OPTIONAL & !known.bits() != 0 {
        tracing::warn!(flags, "access flags that the software card does not have");
        return Err(Errno::NOT_SUPPORTED);
    }
    Ok(known)
}

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
    let pdn = objects.pd(pd)?.number;
    let config = RegionConfig { pdn, addr, len: length, iova, access, tag: None };
    // SAFETY: a program keeps registered memory mapped, as the interface asks for; a mapping of ours is kept with the region.
    let key = unsafe { context.card().register_memory(&config) }?;
    Ok((objects.add(Object::Mr(Mr { key, length, iova, _mapping: mapping })), key))
}

/// `REG_MR`.
pub(crate) fn register(context: &Context, request: &Request) -> Result<()> {
    let asked: RegMr = request.structure(attr::CORE_IN)?;
    let region = (asked.start, asked.length, asked.hca_va);
    let (mr_handle, key) = add(context, region, asked.pd_handle, asked.access_flags, None)?;
    request.answer_with(attr::CORE_OUT, &RegMrResp { mr_handle, lkey: key, rkey: key })
}

/// `REG_DMABUF_MR`: for files whose memory the CPU can map.
pub(crate) fn register_dmabuf(context: &Context, request: &Request) -> Result<()> {
    request.knows(&[0, 1, 2, 3, 4, 5, 6, 7, 8])?;
    let (offset, length) = (request.number(attr::DMABUF_OFFSET)?, request.number(attr::DMABUF_LENGTH)?);
    let flags = request.number32(attr::DMABUF_ACCESS)?;
    let writable = access_of(flags)?.contains(Access::LOCAL_WRITE);
    // The descriptor is a plain number here, not an object of the context.
    let fd = RawFd::try_from(request.number(attr::DMABUF_FD)?).map_err(|_| Errno::BAD_FD)?;
    let (mapping, addr) = Mapping::new(fd, offset, length, writable)?;
    let region = (addr, length, request.number(attr::DMABUF_IOVA)?);
    let (handle, key) = add(context, region, request.handle(attr::DMABUF_PD)?, flags, Some(mapping))?;
    request.answer_made(attr::HANDLE, handle)?;
    request.answer_with(attr::DMABUF_LKEY, &key)?;
    request.answer_with(attr::DMABUF_RKEY, &key)
}

/// `REG_MR` of the newer kind: of memory by its address, or of a file.
pub(crate) fn register_any(context: &Context, request: &Request) -> Result<()> {
    // All but DMA handles, which steer caches.
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
    request.answer_made(attr::HANDLE, handle)?;
    request.answer_with(attr::REG_MR_LKEY, &key)?;
    request.answer_with(attr::REG_MR_RKEY, &key)
}

/// `QUERY_MR`.
pub(crate) fn query(context: &Context, request: &Request) -> Result<()> {
    let objects = context.objects.lock();
    let Object::Mr(mr) = objects.get(request.handle(attr::HANDLE)?)? else { return Err(Errno::INVALID) };
    request.answer_with(attr::MR_QUERY_LKEY, &mr.key)?;
    request.answer_with(attr::MR_QUERY_RKEY, &mr.key)?;
    request.answer_with(attr::MR_QUERY_LENGTH, &mr.length)?;
    request.answer_with(attr::MR_QUERY_IOVA, &mr.iova)
}

pub(crate) fn destroy(context: &Context, request: &Request) -> Result<()> {
    context.destroy(request.handle(attr::HANDLE)?, |_, object, card| {
        if let Object::Mr(mr) = object { mr.destroy(card) } else { Err(Errno::INVALID) }
    })
}
