//! `gdsync/core.h`: the version, and queue pairs.

use crate::completion::poll_into;
use crate::error::{self, CallError, bad, bad_bits, check_explained, non_null_mut};
use crate::explain::{self, DeviceLimits};
use crate::objects::Wishes;
use crate::types::{self, gds_cq, gds_qp, gds_qp_init_attr_t, ibv_recv_wr};
use crate::{log, objects, streams, work};
use gdsync::verbs::{OutOfRange, Transport};
use gdsync::{Access, Device, ProtectionDomain, QueuePairConfig, Trigger};
use gdsync_sys::verbs::{ibv_context, ibv_pd, ibv_qp_attr, ibv_wc};
use libc::c_int;

/// `gds_query_param`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_query_param(param: c_int, value: *mut c_int) -> c_int {
    error::status("gds_query_param", || {
        let value = non_null_mut("value", value)?;
        if param != types::GDS_PARAM_VERSION {
            return Err(bad("the parameter", param, "0 (GDS_PARAM_VERSION) is the only one"));
        }
        // SAFETY: the place is valid for a write.
        unsafe { *value = types::GDS_API_VERSION };
        Ok(())
    })
}

fn transport(code: c_int) -> Result<Transport, CallError> {
    // `enum ibv_qp_type`.
    match code {
        2 => Ok(Transport::Rc),
        3 => Ok(Transport::Uc),
        4 => Ok(Transport::Ud),
        _ => Err(bad(
            if code == 0 { "qp_init_attr.qp_type (not set)" } else { "qp_init_attr.qp_type" },
            code,
            "2 (IBV_QPT_RC), 3 (IBV_QPT_UC) and 4 (IBV_QPT_UD) are possible",
        )),
    }
}

fn check_create(flags: c_int, gpu_id: c_int) -> Result<(), CallError> {
    if flags & !(types::GDS_CREATE_QP_WQ_ON_GPU | types::GDS_CREATE_QP_WISHES) != 0 {
        return Err(bad_bits("flags", flags, "only GDS_CREATE_QP_* flags are possible"));
    }
    if flags & types::GDS_CREATE_QP_WQ_ON_GPU != 0 {
        let remedy = "leave GDS_CREATE_QP_WQ_ON_GPU out";
        return Err(CallError::Unsupported { what: "work queues cannot be in GPU memory", remedy });
    }
    // Without a driver, the number cannot be checked, and is unused.
    let count = gdsync::cuda::device_count().ok().and_then(|count| c_int::try_from(count).ok());
    if gpu_id < -1 || count.is_some_and(|count| count > 0 && gpu_id >= count) {
        return Err(bad("gpu_id", gpu_id, "it must be the number of a GPU, or -1 for none"));
    }
    Ok(())
}

/// `gds_create_qp`.
///
/// # Safety
/// The pointers are null or valid; domain and context outlive the queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_create_qp(
    pd: *mut ibv_pd,
    context: *mut ibv_context,
    qp_init_attr: *mut gds_qp_init_attr_t,
    gpu_id: c_int,
    flags: c_int,
) -> *mut gds_qp {
    log::start();
    // SAFETY: the caller keeps the domain and the context alive.
    error::pointer("gds_create_qp", || unsafe { create((pd, context), qp_init_attr, (gpu_id, flags), None) })
}

/// Has an error name an attribute as the struct of C does.
fn with_names_of_c(error: CallError) -> CallError {
    let CallError::Gdsync(gdsync::Error::OutOfRange(range)) = error else { return error };
    let what = match range.what {
        "send_depth" => "qp_init_attr.cap.max_send_wr",
        "recv_depth" => "qp_init_attr.cap.max_recv_wr",
        "send_segments" => "qp_init_attr.cap.max_send_sge",
        "recv_segments" => "qp_init_attr.cap.max_recv_sge",
        "inline" => "qp_init_attr.cap.max_inline_data",
        other => other,
    };
    gdsync::Error::OutOfRange(OutOfRange { what, ..range }).into()
}

/// Makes a queue pair. If there is a trigger, it is in the trigger's domain, and the trigger releases its sends.
///
/// # Safety
/// As [`gds_create_qp`].
pub(super) unsafe fn create(
    (pd, context): (*mut ibv_pd, *mut ibv_context),
    qp_init_attr: *mut gds_qp_init_attr_t,
    (gpu_id, flags): (c_int, c_int),
    trigger: Option<(&Trigger, &(Device, ProtectionDomain))>,
) -> Result<*mut gds_qp, CallError> {
    non_null_mut("the protection domain", pd)?;
    non_null_mut("the context", context)?;
    let attr = non_null_mut("qp_init_attr", qp_init_attr)?;
    check_create(flags, gpu_id)?;
    // SAFETY: the caller passes a valid pointer, and does not use the attributes elsewhere during the call.
    let attr = unsafe { &mut *attr };
    if !attr.srq.is_null() {
        let remedy = "leave srq NULL";
        return Err(CallError::Unsupported { what: "shared receive queues cannot be used", remedy });
    }
    let mut config = QueuePairConfig::default()
        .transport(transport(attr.qp_type)?)
        .send_depth(attr.cap.max_send_wr)
        .recv_depth(attr.cap.max_recv_wr)
        .send_segments(attr.cap.max_send_sge)
        .recv_segments(attr.cap.max_recv_sge)
        .inline(attr.cap.max_inline_data);
    let domain = match trigger {
        Some((trigger, domain)) => {
            config = config.trigger(trigger);
            domain.clone()
        }
        // SAFETY: the caller keeps the domain and the context alive.
        None => unsafe { objects::domain(context, pd) }?,
    };
    // For `gdsync_bootstrap_connect`; programs that move the queue pair themselves say what they allow.
    if domain.0.attributes()?.atomics {
        config = config.access(config.access | Access::REMOTE_ATOMIC);
    }
    streams::prepare(gpu_id);
    let wishes = Wishes { flags, gpu: gpu_id };
    // SAFETY: the caller keeps the domain and the context alive.
    let made = unsafe { objects::create((context, pd.addr()), domain, config, wishes, attr.sq_sig_all != 0) };
    let made = made.map_err(with_names_of_c)?;
    // SAFETY: made above.
    unsafe {
        (attr.send_cq, attr.recv_cq) = ((*made).send_cq.cq, (*made).recv_cq.cq);
        attr.cap.max_inline_data = objects::queue_pair(made)?.queue_pair.max_inline();
    }
    attr.pd = pd;
    attr.comp_mask |= 1 << 0;
    Ok(made)
}

/// `gds_destroy_qp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_destroy_qp(qp: *mut gds_qp) -> c_int {
    error::status("gds_destroy_qp", || objects::destroy(qp))
}

/// `gds_modify_qp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_modify_qp(qp: *mut gds_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int {
    error::status("gds_modify_qp", || {
        // SAFETY: the caller lets no other thread destroy the object.
        let qp = unsafe { objects::queue_pair(qp) }?;
        let attr = non_null_mut("attr", attr)?;
        // SAFETY: the queue pair is alive, and the caller passes valid attributes.
        let code = unsafe { (qp.api.modify_qp)(qp.queue_pair.as_raw(), attr, attr_mask) };
        check_explained("ibv_modify_qp", code, || {
            let device = objects::device(qp)?.attributes().ok()?;
            let limits = DeviceLimits { ports: device.ports, reads: device.max_reads };
            // SAFETY: the queue pair is alive, and the caller passes valid attributes.
            let (state, attr) = unsafe { ((*qp.queue_pair.as_raw()).state, &*attr) };
            explain::change(qp.queue_pair.transport(), state, attr, attr_mask as u32, limits)
        })?;
        qp.queue_pair.adopt_state();
        Ok(())
    })
}

/// `gds_post_recv`.
///
/// # Safety
/// The pointers are null or valid; the memory stays registered until the receives have completed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_post_recv(
    qp: *mut gds_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    error::status("gds_post_recv", || {
        // SAFETY: the caller lets no other thread destroy the object.
        unsafe { work::post_receives(objects::queue_pair(qp)?, wr, bad_wr) }
    })
}

/// `gds_poll_cq`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_poll_cq(cq: *mut gds_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    error::count("gds_poll_cq", || {
        // SAFETY: the caller lets no other thread destroy the object.
        let (queue, _) = unsafe { objects::queue(cq) }?;
        // SAFETY: the caller passes an array of that length.
        unsafe { poll_into(&queue, num_entries, wc) }
    })
}
