//! Changes of memory regions, and advice about them.

use super::mr::{Backing, Mr, access_of};
use crate::attributes::Request;
use crate::context::Context;
use crate::errno::{Errno, Result};
use crate::uapi::ioctl::{attr, object};
use crate::uapi::verbs::{ReregMr, ReregMrResp, Sge, advice, rereg};
use softhca::card::{Access, RegionConfig, is_mapped};
use zerocopy::FromBytes;

const PAGE: u64 = 4096;

/// `REREG_MR`: another range, another domain, other rights. The region keeps its key.
pub(crate) fn reregister(context: &Context, request: &Request) -> Result<()> {
    let asked: ReregMr = request.structure(attr::CORE_IN)?;
    let moves = asked.flags & rereg::TRANSLATION != 0;
    if asked.flags == 0 || moves && asked.start % PAGE != asked.hca_va % PAGE {
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
    let (addr, length, iova) = match moves {
        true => (asked.start, asked.length, asked.hca_va),
        false => (mr.addr, mr.length, mr.iova),
    };
    let key = mr.key;
    let pdn = objects.number(object::PD, pd)?;
    let config = RegionConfig { pdn, addr, len: length, iova, access: access_of(flags)?, tag: None };
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
