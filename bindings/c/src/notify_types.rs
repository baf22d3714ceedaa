//! The structs and numbers of `include/gdsync/team.h`. `tests/it/headers.rs` compares them with the C compiler's.

#![allow(non_camel_case_types, reason = "the names are those of the C headers")]

use crate::types::{gds_qp, gdsync_segment};
use libc::{c_int, c_uint, c_void, size_t};

/// `GDSYNC_CONNECTIONS_BY_SIZE`.
pub const GDSYNC_CONNECTIONS_BY_SIZE: c_uint = 0;
/// `GDSYNC_CONNECTIONS_EACH`.
pub const GDSYNC_CONNECTIONS_EACH: c_uint = 1;
/// `GDSYNC_CONNECTIONS_DYNAMIC`.
pub const GDSYNC_CONNECTIONS_DYNAMIC: c_uint = 2;

/// `gdsync_all_gather_t`: argument, own block, all blocks, bytes of a block.
pub type gdsync_all_gather_t = unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, size_t) -> c_int;

/// `gdsync_connection_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gdsync_connection_t {
    /// The queue pair.
    pub qp: *mut gds_qp,
    /// The rank with the other side.
    pub rank: u32,
    /// The number that both sides have in common.
    pub tag: u32,
}

/// `gdsync_team_attr_t`. Zeroes are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct gdsync_team_attr_t {
    /// The number of queues.
    pub queues: c_uint,
    /// `GDSYNC_CONNECTIONS_*`.
    pub connections: c_uint,
    /// How long a post waits for room, in milliseconds.
    pub post_timeout_ms: c_uint,
    /// 0.
    pub reserved: c_uint,
}

/// `gdsync_put_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gdsync_put_t {
    /// The segment with the source.
    pub from: *mut gdsync_segment,
    /// The offset of the source in this rank's part.
    pub from_offset: size_t,
    /// Bytes; 0 for a notification alone.
    pub length: size_t,
    /// The segment that is written.
    pub to: *mut gdsync_segment,
    /// The offset of the destination in that rank's part.
    pub to_offset: u64,
    /// The rank that is written to.
    pub rank: u32,
    /// The notification that is set there after the bytes.
    pub notification: u32,
    /// Its value; 0 for none.
    pub value: u32,
    /// 0.
    pub reserved: u32,
}
