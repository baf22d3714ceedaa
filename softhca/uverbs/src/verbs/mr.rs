//! Memory regions and windows. Work requests bind the windows.

use crate::attributes::Request;
use crate::context::{Context, Object};
use crate::errno::{Errno, Result};
use crate::resource::Resource;
use crate::uapi::ioctl::{attr, object};
use crate::uapi::verbs::{
    ACCESS_FLUSH, ACCESS_OPTIONAL, AllocMw, AllocMwResp, RegMr, RegMrResp, ReregMr, ReregMrResp, Sge, advice,
    rereg,
};
use crate::{calls, cuda};
use softhca::card::{Access, RegionConfig, WindowKind, is_mapped};
use std::os::fd::RawFd;
use zerocopy::FromBytes;

pub(super) struct Mr {
    pub(super) key: u32,
    /// Handle of its domain.
    pub(super) pd: u32,
    pub(super) addr: u64,
    pub(super) length: u64,
    pub(super) iova: u64,
    pub(super) flags: u32,
    pub(super) backing: Backing,
}

/// The memory of a region.
pub(super) enum Backing {
    /// Memory of the program, by address.
    Program,
    /// A file, through a mapping of this library.
    #[expect(dead_code, reason = "held, not used")]
    File(Mapping),
    /// GPU memory that the program has exported as a file.
    Exported,
    /// Device memory.
    Device,
}

/// A mapping of a file by this library. Dropping it unmaps the memory.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: usize,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes of a file at `offset`. Also returns the address of the first byte.
    pub(crate) fn new(fd: RawFd, offset: u64, len: u64, writable: bool) -> Result<(Mapping, u64)> {
        const PAGE: u64 = 4096;
        let lead = offset % PAGE;
        let start = libc::off_t::try_from(offset - lead).map_err(|_| Errno::INVALID)?;
        let whole = len.checked_add(lead).filter(|_| len > 0).ok_or(Errno::INVALID)?;
        let len = usize::try_from(whole).map_err(|_| Errno::INVALID)?;
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, start) };
        if base == libc::MAP_FAILED {
            let errno = Errno::last();
            if errno == Errno::BAD_FD {
                tracing::warn!(fd, "no file is open under this descriptor");
                return Err(errno);
            }
            tracing::warn!(
                ?errno,
                "this process has not exported the file by cuMemGetHandleForAddressRange, and the CPU cannot map \
                 it: the software card cannot reach its memory"
            );
            return Err(Errno::NOT_SUPPORTED);
        }
        Ok((Mapping { base: base as usize, len }, base as u64 + lead))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping. The context drops an object only after it has destroyed the object
        // on the card, so the card no longer accesses the memory.
        if unsafe { libc::munmap(self.base as *mut libc::c_void, self.len) } != 0 {
            tracing::error!(errno = Errno::last().0, "a mapping is left");
        }
    }
}

/// Returns the access rights without the optional ones, as `ib_check_mr_access` has them: remote writes and atomics need
/// local writes (EINVAL), the card has no flushes (EOPNOTSUPP), and no kernel knows other flags (EINVAL).
pub(crate) fn access_of(flags: u32) -> Result<Access> {
    let known = Access::from_bits_truncate(flags);
    let writes = known.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if writes && !known.contains(Access::LOCAL_WRITE) {
        tracing::warn!(?known, "remote writes and atomics need IBV_ACCESS_LOCAL_WRITE");
        return Err(Errno::INVALID);
    }
    let unsupported = flags & !ACCESS_OPTIONAL & !known.bits();
    if unsupported != 0 {
        let access = calls::of_bits(unsupported, calls::ACCESS);
        tracing::warn!(access, "access flags that the software card does not have");
        let is_known = unsupported & !ACCESS_FLUSH == 0;
        return Err(if is_known { Errno::NOT_SUPPORTED } else { Errno::INVALID });
    }
    Ok(known)
}

/// Returns whether a region is all of the address space, on demand.
fn is_implicit(addr: u64, length: u64, flags: u32) -> bool {
    (addr, length) == (0, u64::MAX) && flags & Access::ON_DEMAND.bits() != 0
}

pub(super) struct Source {
    pub(super) addr: u64,
    pub(super) length: u64,
    pub(super) iova: u64,
    pub(super) backing: Backing,
}

impl Source {
    /// Memory of the program. Refuses what the kernel does: a range without pages, or whose pages leave the address space
    /// (`ib_umem_get`), and an I/O address at another offset in its page (`ib_uverbs_reg_mr`). All of the address space can be on demand.
    fn new(addr: u64, length: u64, iova: u64, flags: u32) -> Result<Self> {
        let on_demand = flags & Access::ON_DEMAND.bits() != 0;
        let is_implicit = is_implicit(addr, length, flags);
        let end = addr.checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE));
        let wraps = end.is_none() && !is_implicit;
        let is_elsewhere = addr % PAGE != iova % PAGE || is_implicit && iova != 0;
        if wraps || is_elsewhere || length == 0 {
            tracing::warn!(
                addr,
                length,
                iova,
                "memory without a byte or that wraps around, or another offset in its page as I/O address"
            );
            // `ib_init_umem_odp`.
            return Err(if wraps && on_demand { Errno(libc::EOVERFLOW) } else { Errno::INVALID });
        }
        Ok(Source { addr, length, iova, backing: Backing::Program })
    }

    /// Memory of a file at `offset`: GPU memory that this process has exported, or a file that the CPU can map.
    fn of_file(fd: RawFd, offset: u64, length: u64, iova: u64, writable: bool) -> Result<Self> {
        let (addr, mapping) = file_memory(fd, offset, length, writable)?;
        let backing = mapping.map_or(Backing::Exported, Backing::File);
        Ok(Source { addr, length, iova, backing })
    }
}

/// Returns the address of a file's memory, and its mapping if this library has made one. GPU memory needs none.
pub(crate) fn file_memory(
    fd: RawFd,
    offset: u64,
    length: u64,
    writable: bool,
) -> Result<(u64, Option<Mapping>)> {
    match cuda::exported(fd) {
        Some(range) => {
            let end = offset.checked_add(length).filter(|end| *end <= range.len);
            end.map(|_| (range.addr + offset, None)).ok_or(Errno::INVALID).inspect_err(|_| {
                tracing::warn!(offset, length, range.len, "a region leaves the GPU memory of its dma-buf");
            })
        }
        None => Mapping::new(fd, offset, length, writable).map(|(mapping, addr)| (addr, Some(mapping))),
    }
}

/// Registers a region on an object that lives as long as those of `uses`. Returns its handle and key.
pub(super) fn add(
    context: &Context,
    source: Source,
    pd: u32,
    flags: u32,
    uses: &[u32],
) -> Result<(u32, u32)> {
    let access = access_of(flags)?;
    let Source { addr, length, iova, backing } = source;
    let mut objects = context.objects.lock();
    let pdn = objects.number(object::PD, pd)?;
    let config = RegionConfig { pdn, addr, len: length, iova, access, tag: None };
    // SAFETY: the interface obliges the program to keep registered memory mapped (on-demand memory is checked
    // at each access); the region keeps a mapping of this library, and device memory.
    let key = unsafe { context.card().register_memory(&config) }?;
    // A region that begins at 0 reports 0.
    let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    let mr = Mr { key, pd, addr, length, iova, flags, backing };
    let region = Object::new(object::MR, Resource::Mkey(key)).using(uses);
    Ok((objects.add(region.with(mr)), key))
}

pub(crate) fn register(context: &Context, request: &Request) -> Result<()> {
    let asked: RegMr = request.structure(attr::CORE_IN)?;
    let source = Source::new(asked.start, asked.length, asked.hca_va, asked.access_flags)?;
    let (mr_handle, key) = add(context, source, asked.pd_handle, asked.access_flags, &[])?;
    request.answer_with(attr::CORE_OUT, &RegMrResp { mr_handle, lkey: key, rkey: key })
}

/// `REG_DMABUF_MR`, for GPU memory that this process has exported, and for files that the CPU can map.
pub(crate) fn register_dmabuf(context: &Context, request: &Request) -> Result<()> {
    let (offset, length) = (request.number(attr::DMABUF_OFFSET)?, request.number(attr::DMABUF_LENGTH)?);
    let flags = request.flags32(attr::DMABUF_ACCESS)?;
    let writable = access_of(flags)?.contains(Access::LOCAL_WRITE);
    // A number of 32 bits here: a negative one is the descriptor of no file.
    let fd = request.number32(attr::DMABUF_FD)? as RawFd;
    let source = Source::of_file(fd, offset, length, request.number(attr::DMABUF_IOVA)?, writable)?;
    let (handle, key) = add(context, source, request.handle(attr::DMABUF_PD)?, flags, &[])?;
    request.answer_created(attr::HANDLE, handle)?;
    request.answer_with(attr::DMABUF_LKEY, &key)?;
    request.answer_with(attr::DMABUF_RKEY, &key)
}

/// The newer `REG_MR`: registers memory by address, or a file.
pub(crate) fn register_any(context: &Context, request: &Request) -> Result<()> {
    let (length, flags) = (request.number(attr::REG_MR_LENGTH)?, request.number32(attr::REG_MR_ACCESS)?);
    let writable = access_of(flags)?.contains(Access::LOCAL_WRITE);
    let iova = request.number(attr::REG_MR_IOVA)?;
    let source = match (request.has(attr::REG_MR_FD), request.has(attr::REG_MR_ADDR)) {
        (true, false) => {
            let offset = request.number(attr::REG_MR_FD_OFFSET)?;
            Source::of_file(request.fd(attr::REG_MR_FD)?, offset, length, iova, writable)?
        }
        (false, true) => Source::new(request.number(attr::REG_MR_ADDR)?, length, iova, flags)?,
        _ => return Err(Errno::INVALID),
    };
    let (handle, key) = add(context, source, request.handle(attr::REG_MR_PD)?, flags, &[])?;
    request.answer_created(attr::HANDLE, handle)?;
    request.answer_with(attr::REG_MR_LKEY, &key)?;
    request.answer_with(attr::REG_MR_RKEY, &key)
}

pub(crate) fn query(context: &Context, request: &Request) -> Result<()> {
    let objects = context.objects.lock();
    let mr = objects.state::<Mr>(request.handle(attr::HANDLE)?)?;
    request.answer_with(attr::MR_QUERY_LKEY, &mr.key)?;
    request.answer_with(attr::MR_QUERY_RKEY, &mr.key)?;
    request.answer_with(attr::MR_QUERY_LENGTH, &mr.length)?;
    request.answer_with(attr::MR_QUERY_IOVA, &mr.iova)
}

const PAGE: u64 = 4096;
/// Rights that a region changes under its key.
const EASY: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::RELAXED_ORDERING);

/// `REREG_MR`: another range, another domain, other rights. The region keeps its key.
pub(crate) fn reregister(context: &Context, request: &Request) -> Result<()> {
    let asked: ReregMr = request.structure(attr::CORE_IN)?;
    let moves = asked.flags & rereg::TRANSLATION != 0;
    if asked.flags == 0 {
        return Err(Errno::INVALID);
    }
    if asked.flags & !rereg::ALL != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    let mut objects = context.objects.lock();
    let mr = objects.state::<Mr>(asked.mr_handle)?;
    match &mr.backing {
        Backing::Device => return Err(Errno::INVALID),
        Backing::File(_) | Backing::Exported if moves => {
            tracing::warn!("a region of a file is registered anew: only its domain and rights can change");
            return Err(Errno::NOT_SUPPORTED);
        }
        _ => {}
    }
    let pd = if asked.flags & rereg::PD != 0 { asked.pd_handle } else { mr.pd };
    let flags = if asked.flags & rereg::ACCESS != 0 { asked.access_flags } else { mr.flags };
    // Rights outside `can_use_umr_rereg_access` need a new key, which these regions cannot get (`mlx5_ib_rereg_user_mr`).
    let is_bound = has(mr, Access::ON_DEMAND) || matches!(mr.backing, Backing::File(_) | Backing::Exported);
    if !moves && is_bound && (flags ^ mr.flags) & !EASY.bits() != 0 {
        tracing::warn!(
            flags,
            was = mr.flags,
            "a region on demand, or of a file, only changes its usual rights"
        );
        return Err(Errno::NOT_SUPPORTED);
    }
    if moves {
        Source::new(asked.start, asked.length, asked.hca_va, flags)?;
    }
    let (addr, length, iova) = match moves {
        true => (asked.start, asked.length, asked.hca_va),
        false => (mr.addr, mr.length, mr.iova),
    };
    let key = mr.key;
    let access = access_of(flags)?;
    // Only the handle of the region is looked up to replace its object.
    let pdn = objects.number(object::PD, pd).map_err(|_| Errno::INVALID)?;
    let config = RegionConfig { pdn, addr, len: length, iova, access, tag: None };
    // SAFETY: the interface obliges the program to keep registered memory mapped, on success the new range;
    // the region keeps a mapping of this library.
    unsafe { context.card().reregister_memory(key, &config) }?;
    let mr = objects.state_mut::<Mr>(asked.mr_handle)?;
    (mr.pd, mr.flags, mr.addr, mr.length) = (pd, flags, addr, length);
    mr.iova = if config.access.contains(Access::ZERO_BASED) { 0 } else { iova };
    drop(objects);
    request.answer_with(attr::CORE_OUT, &ReregMrResp { lkey: key, rkey: key })
}

/// `ADVISE_MR`: fetches on-demand memory before it is accessed. Errors are those of the mlx5 driver
/// (`mlx5_ib_advise_mr`): ENOENT for a key of no on-demand region, EPERM for one of another domain or without
/// the right, EFAULT for missing memory if the program waits for it.
pub(crate) fn advise(context: &Context, request: &Request) -> Result<()> {
    let kind = request.number(attr::ADVISE_ADVICE)?;
    if ![advice::PREFETCH, advice::PREFETCH_WRITE, advice::PREFETCH_NO_FAULT].contains(&kind) {
        return Err(Errno::NOT_SUPPORTED);
    }
    let flags = request.number32(attr::ADVISE_FLAGS)?;
    if flags & !advice::FLUSH != 0 {
        return Err(Errno::INVALID);
    }
    let list = request.bytes(attr::ADVISE_SGES)?;
    if list.is_empty() || !list.len().is_multiple_of(size_of::<Sge>()) {
        return Err(Errno::INVALID);
    }
    let objects = context.objects.lock();
    let pd = request.handle(attr::ADVISE_PD)?;
    objects.number(object::PD, pd)?;
    let writes = kind == advice::PREFETCH_WRITE;
    let mut ranges = Vec::new();
    for bytes in list.chunks_exact(size_of::<Sge>()) {
        let sge = Sge::read_from_bytes(bytes).map_err(|_| Errno::INVALID)?;
        let is_it = |mr: &&Mr| mr.key == sge.lkey && has(mr, Access::ON_DEMAND);
        let mr = objects.states::<Mr>().find(is_it).ok_or(Errno::NO_ENTRY)?;
        if mr.pd != pd || writes && !has(mr, Access::LOCAL_WRITE) {
            return Err(Errno(libc::EPERM));
        }
        let length = u64::from(sge.length);
        let offset = sge
            .addr
            .checked_sub(mr.iova)
            .filter(|offset| offset.checked_add(length).is_some_and(|end| end <= mr.length));
        ranges.push((mr.addr + offset.ok_or(Errno::FAULT)?, length));
    }
    drop(objects);
    // The card itself needs no advice.
    let waits = flags & advice::FLUSH != 0 && kind != advice::PREFETCH_NO_FAULT;
    let is_there = ranges.iter().all(|(addr, length)| *length == 0 || is_mapped(*addr, *length, writes));
    if waits && !is_there { Err(Errno::FAULT) } else { Ok(()) }
}

fn has(mr: &Mr, right: Access) -> bool {
    Access::from_bits_truncate(mr.flags).contains(right)
}

pub(crate) fn alloc_window(context: &Context, request: &Request) -> Result<()> {
    let asked: AllocMw = request.structure(attr::CORE_IN)?;
    let kind = match asked.mw_type {
        1 => WindowKind::Type1,
        2 => WindowKind::Type2,
        _ => return Err(Errno::INVALID),
    };
    // `struct mlx5_ib_alloc_mw`: a mask, and a count of ranges that windows do not use.
    let [comp_mask, rest]: [u32; 2] = request.structure(attr::UHW_IN)?;
    if comp_mask != 0 || rest & !0xff != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    let mut objects = context.objects.lock();
    let pdn = objects.number(object::PD, asked.pd_handle)?;
    let rkey = context.card().alloc_window(pdn, kind)?;
    let mw_handle = objects.add(Object::new(object::MW, Resource::Mkey(rkey)));
    drop(objects);
    request.answer_with(attr::CORE_OUT, &AllocMwResp { mw_handle, rkey })?;
    request.answer(attr::UHW_OUT, &[])
}
