//! `gdsync/ext.h` and `infiniband/verbs_exp.h`: libibverbs' calls, on objects of either provider.

use crate::completion::poll_into;
use crate::error::{self, CallError, check, check_explained, made, non_null_mut};
use crate::explain;
use crate::objects;
use crate::providers::{self, ObjectKind};
use crate::types::ibv_recv_wr;
use crate::work;
use gdsync_sys::VerbsApi;
use gdsync_sys::verbs::{
    OPS_POLL_CQ, PollCq, ibv_ah, ibv_ah_attr, ibv_context, ibv_cq, ibv_device_attr, ibv_gid, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_wc,
};
use libc::{c_int, c_void, size_t};

/// The index of `post_recv` in `ibv_context::ops` (verbs.h of rdma-core; `tests/it/headers.rs` compares).
pub const OPS_POST_RECV: usize = 26;

type PostRecv =
    unsafe extern "C" fn(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int;

/// `gdsync_poll_cq`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    error::count("gdsync_poll_cq", || {
        let cq = non_null_mut("the completion queue", cq)?;
        if let Some(queue) = objects::find_queue(cq) {
            // SAFETY: the caller passes an array of that length.
            return unsafe { poll_into(&queue, num_entries, wc) };
        }
        if !providers::libibverbs_is_there() {
            return Err(objects::no_provider_queue(cq));
        }
        // SAFETY: the caller passes a valid queue of libibverbs, whose context has a function of this type here.
        let theirs = unsafe {
            let op = (*(*cq).context).ops[OPS_POLL_CQ];
            std::mem::transmute::<*mut c_void, Option<PollCq>>(op)
        };
        let theirs = theirs.ok_or(NO_FUNCTION)?;
        // SAFETY: the caller passes valid pointers.
        Ok(unsafe { theirs(cq, num_entries, wc) })
    })
}

const NO_FUNCTION: CallError =
    CallError::Unsupported { what: "the provider has no such function", remedy: "use gdsync's queues on it" };

/// `gdsync_post_recv`.
///
/// # Safety
/// The pointers are null or valid; the memory stays registered until the receives have completed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    error::status("gdsync_post_recv", || {
        let qp = non_null_mut("the queue pair", qp)?;
        if let Some(ours) = objects::find_queue_pair(qp) {
            // SAFETY: the caller passes valid pointers, and keeps the memory registered.
            return unsafe { work::post_receives(&ours, wr, bad_wr) };
        }
        if !providers::libibverbs_is_there() {
            return Err(objects::no_provider_queue_pair(qp));
        }
        // SAFETY: the caller passes a valid queue pair of libibverbs, whose context has a function of this type here.
        let theirs = unsafe {
            let op = (*(*qp).context).ops[OPS_POST_RECV];
            std::mem::transmute::<*mut c_void, Option<PostRecv>>(op)
        };
        // SAFETY: the caller passes valid pointers.
        check("ibv_post_recv", unsafe { theirs.ok_or(NO_FUNCTION)?(qp, wr, bad_wr) })
    })
}

/// `gdsync_alloc_pd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    error::pointer("gdsync_alloc_pd", || {
        let api = providers::of(ObjectKind::Context, context)?;
        // SAFETY: the software card's object is known, or the caller passes a valid one.
        let pd = made("ibv_alloc_pd", unsafe { (api.alloc_pd)(context) })?;
        Ok(providers::note(api, ObjectKind::Domain, pd, context))
    })
}

/// `gdsync_dealloc_pd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    error::status("gdsync_dealloc_pd", || {
        // SAFETY: the software card's object is known, or the caller passes a valid one.
        let dealloc = |api: &VerbsApi| check("ibv_dealloc_pd", unsafe { (api.dealloc_pd)(pd) });
        let done = providers::end(ObjectKind::Domain, pd, dealloc);
        providers::name_left(ObjectKind::Domain, pd, done)
    })
}

/// `gdsync_reg_mr`.
///
/// # Safety
/// The domain is null or valid; the memory stays mapped until it is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    error::pointer("gdsync_reg_mr", || {
        let api = providers::of(ObjectKind::Domain, pd)?;
        non_null_mut("the memory", addr)?;
        // SAFETY: the software card's object is known, or the caller passes a valid one.
        let mr = made("ibv_reg_mr", unsafe { (api.reg_mr)(pd, addr, length, access) });
        let mr =
            mr.map_err(|error| error.explained(|| explain::registration(addr.addr(), length, access)))?;
        Ok(providers::note(api, ObjectKind::Region, mr, pd))
    })
}

/// `gdsync_dereg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_dereg_mr(mr: *mut ibv_mr) -> c_int {
    error::status("gdsync_dereg_mr", || {
        // SAFETY: the software card's object is known, or the caller passes a valid one.
        providers::end(ObjectKind::Region, mr, |api| check("ibv_dereg_mr", unsafe { (api.dereg_mr)(mr) }))
    })
}

/// Returns the attributes of a port, if the device has it.
///
/// # Safety
/// The context is open.
unsafe fn port_attributes(api: &VerbsApi, context: *mut ibv_context, port: u8) -> Option<ibv_port_attr> {
    let mut attr = ibv_port_attr::default();
    // SAFETY: the caller passes an open context, and the place is valid.
    (unsafe { (api.query_port)(context, port, &mut attr) } == 0).then_some(attr)
}

/// Returns the number of the device's ports.
///
/// # Safety
/// The context is open.
unsafe fn ports(api: &VerbsApi, context: *mut ibv_context) -> u8 {
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the caller passes an open context, and the place is valid.
    unsafe { (api.query_device)(context, &mut attr) };
    attr.phys_port_cnt
}

/// `gdsync_query_port`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    error::status("gdsync_query_port", || {
        let (api, attr) = (providers::of(ObjectKind::Context, context)?, non_null_mut("attr", attr)?);
        // SAFETY: the place is valid, and of plain numbers.
        unsafe { attr.write_bytes(0, 1) };
        // SAFETY: the caller passes valid pointers.
        let code = unsafe { (api.query_port)(context, port, attr) };
        check_explained("ibv_query_port", code, || {
            // SAFETY: the context is known or valid, as above.
            let ports = unsafe { ports(api, context) };
            (!(1..=ports).contains(&port)).then(|| explain::no_port("port", port, ports))
        })
    })
}

/// `gdsync_query_gid`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    error::status("gdsync_query_gid", || {
        let (api, gid) = (providers::of(ObjectKind::Context, context)?, non_null_mut("gid", gid)?);
        // SAFETY: the caller passes valid pointers.
        let code = unsafe { (api.query_gid)(context, port, index, gid) };
        check_explained("ibv_query_gid", code, || {
            // SAFETY: the context is known or valid, as above.
            let Some(attr) = (unsafe { port_attributes(api, context, port) }) else {
                // SAFETY: as above.
                return Some(explain::no_port("port", port, unsafe { ports(api, context) }));
            };
            let all = attr.gid_tbl_len;
            (!(0..all).contains(&index)).then(|| format!("index is {index}, but the port has {all} GIDs"))
        })
    })
}

/// `gdsync_create_ah`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    error::pointer("gdsync_create_ah", || {
        let (api, attr) = (providers::of(ObjectKind::Domain, pd)?, non_null_mut("attr", attr)?);
        // SAFETY: the software card's object is known, or the caller passes a valid one.
        let ah = made("ibv_create_ah", unsafe { (api.create_ah)(pd, attr) });
        let ah = ah.map_err(|error| {
            // SAFETY: the domain is known or valid, and names its context; the caller passes valid attributes.
            error.explained(|| unsafe {
                let (context, attr) = ((*pd).context, &*attr);
                let port = port_attributes(api, context, attr.port_num);
                explain::address(attr, port.as_ref(), ports(api, context))
            })
        })?;
        Ok(providers::note(api, ObjectKind::Path, ah, pd))
    })
}

/// `gdsync_destroy_ah`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_destroy_ah(ah: *mut ibv_ah) -> c_int {
    error::status("gdsync_destroy_ah", || {
        // SAFETY: the software card's object is known, or the caller passes a valid one.
        providers::end(ObjectKind::Path, ah, |api| check("ibv_destroy_ah", unsafe { (api.destroy_ah)(ah) }))
    })
}
