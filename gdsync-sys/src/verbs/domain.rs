//! Protection domains and memory regions.

use super::ibv_context;
use libc::{c_void, size_t};

/// A protection domain, or a parent domain that represents one.
#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}

/// A thread domain: a promise that its objects are used by one thread at a time.
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

/// Allocator of queue memory of a parent domain. Returns memory, null on failure, or [`IBV_ALLOCATOR_USE_DEFAULT`].
pub type ParentDomainAlloc = unsafe extern "C" fn(
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    size: size_t,
    alignment: size_t,
    resource_type: u64,
) -> *mut c_void;
/// Frees memory from [`ParentDomainAlloc`].
pub type ParentDomainFree =
    unsafe extern "C" fn(pd: *mut ibv_pd, pd_context: *mut c_void, ptr: *mut c_void, resource_type: u64);

/// Result of an allocator that leaves the allocation to the library.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = usize::MAX as *mut c_void;
/// `alloc` and `free` of [`ibv_parent_domain_init_attr`] are set.
pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: u32 = 1 << 0;
pub const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;

/// Attributes of a parent domain.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_parent_domain_init_attr {
    /// The protection domain that it represents; not null.
    pub pd: *mut ibv_pd,
    /// A thread domain, or null.
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: Option<ParentDomainAlloc>,
    pub free: Option<ParentDomainFree>,
    /// First argument of both functions after the domain.
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
    /// Key for local access.
    pub lkey: u32,
    /// Key for remote access.
    pub rkey: u32,
}
