//! The functions with libibverbs' own structs instead of the old OFED's: `gds_create_qp` and others unless `GDSYNC_EXP_VERBS` is defined.

use super::persistent::gdsync_send_init;
use super::queue_pair::gds_create_qp;
use super::send::{gds_post_send, gds_prepare_send, gds_stream_queue_send};
use super::trigger::gdsync_trigger_create_qp;
use crate::error::{self, bad};
use crate::types::{
    CUstream, gds_qp, gds_qp_init_attr_t, gds_send_operands, gds_send_request_t, gds_send_wr, gdsync_request,
    gdsync_trigger,
};
use gdsync_sys::verbs::{ibv_context, ibv_pd, ibv_qp_init_attr, ibv_sge};
use libc::{c_int, c_uint};
use std::ptr;

/// `struct ibv_send_wr` of libibverbs. `tests/it/headers.rs` compares its layout with the C compiler's.
#[allow(non_camel_case_types, reason = "the names are those of the C headers")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct upstream_send_wr {
    /// The program's id of the request.
    pub wr_id: u64,
    /// The next request of the list, or null.
    pub next: *mut upstream_send_wr,
    /// The elements.
    pub sg_list: *mut ibv_sge,
    /// The number of elements.
    pub num_sge: c_int,
    /// `IBV_WR_*`.
    pub opcode: c_int,
    /// `IBV_SEND_*`.
    pub send_flags: c_uint,
    /// Immediate data, big endian; in C a union.
    pub imm_data: u32,
    /// Operands that depend on the operation.
    pub wr: gds_send_operands,
    /// For operations that gdsync does not support.
    pub rest: [u64; 7],
}

impl upstream_send_wr {
    /// Translates the request to the other dialect, whose operations and flags have the same numbers. Its `next` only says whether there
    /// is another request.
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

/// Calls a function with the attributes in the other dialect, and writes its results back.
///
/// # Safety
/// `attr` is null or valid, and not used elsewhere during the call.
unsafe fn with_attributes<T>(
    attr: *mut ibv_qp_init_attr,
    call: impl FnOnce(*mut gds_qp_init_attr_t) -> T,
) -> T {
    // SAFETY: the caller passes a pointer that is null or valid.
    let Some(given) = (unsafe { attr.as_mut() }) else { return call(ptr::null_mut()) };
    let mut local = gds_qp_init_attr_t {
        qp_context: given.qp_context,
        send_cq: given.send_cq,
        recv_cq: given.recv_cq,
        srq: given.srq,
        cap: given.cap,
        qp_type: given.qp_type,
        sq_sig_all: given.sq_sig_all,
        comp_mask: 0,
        pd: ptr::null_mut(),
        xrcd: ptr::null_mut(),
        exp_create_flags: 0,
        res_domain: ptr::null_mut(),
        peer_direct_attrs: ptr::null_mut(),
    };
    let done = call(&mut local);
    (given.send_cq, given.recv_cq, given.cap) = (local.send_cq, local.recv_cq, local.cap);
    done
}

/// `gds_create_qp`.
///
/// # Safety
/// As [`gds_create_qp`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_upstream_create_qp(
    pd: *mut ibv_pd,
    context: *mut ibv_context,
    qp_init_attr: *mut ibv_qp_init_attr,
    gpu_id: c_int,
    flags: c_int,
) -> *mut gds_qp {
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    unsafe { with_attributes(qp_init_attr, |attr| gds_create_qp(pd, context, attr, gpu_id, flags)) }
}

/// `gdsync_trigger_create_qp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_upstream_trigger_create_qp(
    trigger: *mut gdsync_trigger,
    qp_init_attr: *mut ibv_qp_init_attr,
    gpu_id: c_int,
    flags: c_int,
) -> *mut gds_qp {
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    unsafe { with_attributes(qp_init_attr, |attr| gdsync_trigger_create_qp(trigger, attr, gpu_id, flags)) }
}

/// The longest list of requests: more than any queue has room for.
const MOST: usize = 1 << 16;

/// Calls a function with the list in the other dialect. `bad_wr` receives the request at which it failed.
///
/// # Safety
/// The list's pointers are null or valid; `bad_wr` is null or valid for a write.
unsafe fn with_list(
    name: &'static str,
    wr: *mut upstream_send_wr,
    bad_wr: *mut *mut upstream_send_wr,
    call: impl FnOnce(*mut gds_send_wr, *mut *mut gds_send_wr) -> c_int,
) -> c_int {
    let mut failed = ptr::null_mut();
    // SAFETY: the caller passes a pointer that is null or valid.
    let Some(first) = (unsafe { wr.as_ref() }) else { return call(ptr::null_mut(), &mut failed) };
    if first.next.is_null() {
        let code = call(&mut first.translated(), &mut failed);
        if !failed.is_null() && !bad_wr.is_null() {
            // SAFETY: the caller passes a place that is valid for a write.
            unsafe { bad_wr.write(wr) };
        }
        return code;
    }
    let (mut list, mut given, mut at) = (Vec::new(), Vec::new(), wr);
    let code = error::status(name, || {
        // SAFETY: the caller passes a list of valid requests.
        while let Some(request) = unsafe { at.as_ref() } {
            if list.len() == MOST {
                return Err(bad(
                    "the number of work requests",
                    MOST as i64 + 1,
                    "65536 is the most of a list",
                ));
            }
            list.push(request.translated());
            given.push(at);
            at = request.next;
        }
        Ok(())
    });
    if code != 0 {
        return code;
    }
    let base: *mut gds_send_wr = list.as_mut_ptr();
    for index in 1..list.len() {
        // SAFETY: both are within the list, which is not reallocated.
        unsafe { (*base.add(index - 1)).next = base.add(index) };
    }
    let code = call(base, &mut failed);
    let index = (failed.addr().wrapping_sub(base.addr())) / size_of::<gds_send_wr>();
    if let Some(request) = given.get(index).filter(|_| !failed.is_null() && !bad_wr.is_null()) {
        // SAFETY: the caller passes a place that is valid for a write.
        unsafe { bad_wr.write(*request) };
    }
    code
}

/// `gds_post_send`.
///
/// # Safety
/// As [`gds_post_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_upstream_post_send(
    qp: *mut gds_qp,
    wr: *mut upstream_send_wr,
    bad_wr: *mut *mut upstream_send_wr,
) -> c_int {
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    unsafe { with_list("gds_post_send", wr, bad_wr, |wr, bad| gds_post_send(qp, wr, bad)) }
}

/// `gds_prepare_send`.
///
/// # Safety
/// As [`gds_prepare_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_upstream_prepare_send(
    qp: *mut gds_qp,
    wr: *mut upstream_send_wr,
    bad_wr: *mut *mut upstream_send_wr,
    request: *mut gds_send_request_t,
) -> c_int {
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    unsafe { with_list("gds_prepare_send", wr, bad_wr, |wr, bad| gds_prepare_send(qp, wr, bad, request)) }
}

/// `gds_stream_queue_send`.
///
/// # Safety
/// As [`gds_stream_queue_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_upstream_stream_queue_send(
    stream: CUstream,
    qp: *mut gds_qp,
    wr: *mut upstream_send_wr,
    bad_wr: *mut *mut upstream_send_wr,
) -> c_int {
    let queue = |wr: *mut gds_send_wr, bad: *mut *mut gds_send_wr| {
        // SAFETY: the caller passes valid pointers, and keeps the memory registered.
        unsafe { gds_stream_queue_send(stream, qp, wr, bad) }
    };
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    unsafe { with_list("gds_stream_queue_send", wr, bad_wr, queue) }
}

/// `gdsync_send_init`.
///
/// # Safety
/// As [`gdsync_send_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_upstream_send_init(
    qp: *mut gds_qp,
    wr: *const upstream_send_wr,
) -> *mut gdsync_request {
    // SAFETY: the caller passes a pointer that is null or valid. A request with a successor is refused, without reading that.
    let translated = unsafe { wr.as_ref() }.map(upstream_send_wr::translated);
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    unsafe { gdsync_send_init(qp, translated.as_ref().map_or(ptr::null(), ptr::from_ref)) }
}
