//! The structs of the dialect of upstream verbs (`GDSYNC_UPSTREAM_VERBS`): libibverbs' own.
//! `tests/it/headers.rs` compares their layouts with the C compiler's.

#![allow(non_camel_case_types, reason = "the names are those of the C headers")]

use crate::types::{gds_send_operands, gds_send_wr};
use gdsync_sys::verbs::ibv_sge;
use libc::{c_int, c_uint};

/// `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct upstream_send_wr {
    /// The poster's number.
    pub wr_id: u64,
    /// The next request of the list, or null.
    pub next: *mut upstream_send_wr,
    /// Its elements.
    pub sg_list: *mut ibv_sge,
    /// How many.
    pub num_sge: c_int,
    /// `IBV_WR_*`.
    pub opcode: c_int,
    /// `IBV_SEND_*`.
    pub send_flags: c_uint,
    /// Immediate data, big endian; in C a union.
    pub imm_data: u32,
    /// What the operation needs besides.
    pub wr: gds_send_operands,
    /// Of operations that gdsync has not.
    pub rest: [u64; 7],
}

impl upstream_send_wr {
    /// The same request in the other dialect, whose operations and flags have the same numbers. Its `next` says
    /// only whether there is one.
    pub(crate) fn translated(&self) -> gds_send_wr {
        gds_send_wr {
            wr_id: self.wr_id,
            next: self.next.cast(),
            sg_list: self.sg_list,
            num_sge: self.num_sge,
            exp_opcode: self.opcode,
            reserved: 0,
            imm_data: self.imm_data,
            wr: self.wr,
            exp_send_flags: self.send_flags.into(),
            comp_mask: 0,
        }
    }
}
