//! Memory regions.

use super::domain::Pd;
use super::errno::{self, Errno};
use super::object::{self, CStruct, object};
use crate::card::{Access, RegionConfig};
use gdsync_sys::verbs::{ibv_mr, ibv_pd};
use libc::{c_int, c_void, size_t};
use std::sync::Arc;

/// Access flags that a provider may ignore (`IB_ACCESS_OPTIONAL`, `rdma/ib_user_ioctl_verbs.h`).
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

object! {
    /// A memory region. It keeps its protection domain alive, but not the parent domain that it was made from.
    Mr: ibv_mr {
        key: u32,
        domain: Arc<Pd>,
    }
}

/// `ibv_reg_mr`. EINVAL: no bytes, remote write or atomic without local write, or unknown flags. EFAULT: the memory is
/// not mapped with that access (an on-demand region need not be), or its peer-memory client refuses it.
///
/// # Safety
/// `pd` is null or allocated. Until the region is deregistered, the memory stays mapped (peer memory:
/// allocated), and is accessed otherwise only in ways that tolerate a device's concurrent accesses.
pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    errno::pointer(|| {
        // SAFETY: guaranteed by the caller.
        let through = unsafe { object::share::<Pd>(pd) }?;
        let access = access as u32;
        let known = access & (Access::all().bits() | !OPTIONAL_ACCESS);
        let access = Access::from_bits(known).ok_or_else(|| {
            tracing::warn!(access, "a memory region cannot be registered: unknown access flags");
            Errno::INVALID
        })?;
        let domain = Pd::protection(through);
        let config = RegionConfig::new(domain.number(), addr as u64, length as u64, access);
        // SAFETY: guaranteed by the caller.
        let key = unsafe { domain.context.card().register_memory(&config) }?;
        let ibv = ibv_mr {
            context: object::handle(&domain.context),
            pd,
            addr,
            length,
            handle: key,
            lkey: key,
            rkey: key,
        };
        Ok(object::into_raw(Arc::new(Mr { ibv: CStruct::new(ibv), key, domain })))
    })
}

/// `ibv_dereg_mr`. After it, the card does not touch the memory, and its peer-memory client has dropped the region.
///
/// # Safety
/// `mr` is null or registered.
pub(super) unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    let destroy = |mr: &Arc<Mr>| Ok(mr.domain.context.card().deregister_memory(mr.key)?);
    // SAFETY: guaranteed by the caller.
    errno::status(|| unsafe { object::destroy(mr, destroy) })
}
