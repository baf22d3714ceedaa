//! Protection domains, and what is registered in them.

use super::ibv_context;
use libc::{c_void, size_t};

/// A protection domain (or a parent domain, which stands for one).
#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}

/// A thread domain: a promise that one thread at a time uses what is created in it.
#[repr(C)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}

/// Attributes of a thread domain.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_td_init_attr {
    /// Must be 0.
    pub comp_mask: u32,
}

/// Allocator of queue memory, given to a parent domain: returns memory, null on failure, or
/// [`IBV_ALLOCATOR_USE_DEFAULT`].
pub type ParentDomainAlloc = unsafe extern "C" fn(
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    size: size_t,
    alignment: size_t,
    resource_type: u64,
) -> *mut c_void;
/// Releases what [`ParentDomainAlloc`] returned.
pub type ParentDomainFree =
    unsafe extern "C" fn(pd: *mut ibv_pd, pd_context: *mut c_void, ptr: *mut c_void, resource_type: u64);

/// Answer of an allocator that leaves the allocation to the library.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = usize::MAX as *mut c_void;
/// `alloc` and `free` of [`ibv_parent_domain_init_attr`] are set.
pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: u32 = 1 << 0;
pub const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;

/// Attributes of a parent domain.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_parent_domain_init_attr {
    /// The protection domain it stands for; not null.
    pub pd: *mut ibv_pd,
    /// A thread domain, or null.
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: Option<ParentDomainAlloc>,
    pub free: Option<ParentDomainFree>,
    /// First argument of both, after the domain.
    pub pd_context: *mut c_void,
}

/// A memory region.
#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    /// Length in bytes.
    pub length: size_t,
    pub handle: u32,
    /// Key that local work requests name.
    pub lkey: u32,
    /// Key that remote work requests name.
    pub rkey: u32,
}
