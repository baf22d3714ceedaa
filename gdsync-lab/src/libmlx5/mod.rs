//! libmlx5's own posting, on queue pairs unknown to gdsync: what gdsync is compared with, and what it has no calls for.

mod windows;

pub(crate) use windows::{Region, Window, WindowKind, next_key};

use gdsync::verbs::LinkLayer;
use gdsync::{Access, ConnectOptions, Device, Endpoint, ProtectionDomain, QueuePair};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::{self, Hca};
use gdsync_sys::VerbsApi;
use gdsync_sys::mlx5dv::{mlx5dv_cq_init_attr, mlx5dv_qp_init_attr};
use gdsync_sys::verbs::*;
use std::io;
use std::ptr::{self, NonNull};

const DEPTH: u32 = 128;
/// Reads and atomics in flight.
const READS: u8 = 1;
pub(crate) const NO_FUNCTIONS: &str =
    "the provider has no functions to post with: run this on the system's libraries (gdsync soft -- ...)";

fn failed(call: &str) -> Failure {
    format!("{call} failed: {}", io::Error::last_os_error()).into()
}

pub(crate) fn made<T>(call: &str, raw: *mut T) -> Result<NonNull<T>, Failure> {
    NonNull::new(raw).ok_or_else(|| failed(call))
}

pub(crate) fn done(call: &str, rc: i32) -> Result<(), Failure> {
    match rc {
        0 => Ok(()),
        rc if rc > 0 => Err(format!("{call} failed: {}", io::Error::from_raw_os_error(rc)).into()),
        _ => Err(failed(call)),
    }
}

/// A context and a protection domain for libmlx5's calls and for gdsync's.
pub(crate) struct Opened {
    pub(crate) api: &'static VerbsApi,
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
    pub(crate) port: u8,
}

impl Opened {
    pub(crate) fn new(hca: Option<&Hca>) -> Result<Self, Failure> {
        let (api, name, port) = hca::system(hca)?;
        // The library's errors name their remedies; those of the calls below do not.
        drop(Device::open(api, name)?);
        // SAFETY: the list is freed once, after its devices were used; names end with a zero.
        unsafe {
            let mut count = 0;
            let list = made("ibv_get_device_list", (api.get_device_list)(&mut count))?.as_ptr();
            let devices = (0..usize::try_from(count).unwrap_or(0)).map(|i| *list.add(i));
            let named = |device: &*mut ibv_device| {
                let found = std::ffi::CStr::from_ptr((api.get_device_name)(*device));
                name.is_none_or(|name| found.to_bytes() == name.as_bytes())
            };
            let context = match devices.into_iter().find(named) {
                Some(device) => made("ibv_open_device", (api.open_device)(device)),
                None => Err(format!("libibverbs has no device {}", name.unwrap_or("at all")).into()),
            };
            (api.free_device_list)(list);
            let context = context?;
            match made("ibv_alloc_pd", (api.alloc_pd)(context.as_ptr())) {
                Ok(pd) => Ok(Opened { api, context, pd, port }),
                Err(error) => {
                    (api.close_device)(context.as_ptr());
                    Err(error)
                }
            }
        }
    }

    pub(crate) fn device(&self) -> Result<Device, Failure> {
        // SAFETY: the context is open until `self` is dropped; everything made on it borrows `self`, or is dropped
        // before.
        Ok(unsafe { Device::from_raw(self.api, self.context) }?)
    }

    pub(crate) fn domain(&self) -> Result<ProtectionDomain, Failure> {
        // SAFETY: as in `device`.
        Ok(unsafe { ProtectionDomain::from_raw(&self.device()?, self.pd) }?)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: made by `new`; nothing remains on them.
        unsafe {
            (self.api.dealloc_pd)(self.pd.as_ptr());
            (self.api.close_device)(self.context.as_ptr());
        }
    }
}

/// A queue pair of libmlx5 with its own doorbell page, which takes no lock, and its completion queue.
pub(crate) struct Qp<'a> {
    pub(crate) opened: &'a Opened,
    td: *mut ibv_td,
    domain: *mut ibv_pd,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) post_send: PostSend,
    pub(crate) poll_cq: PollCq,
}

impl Drop for Qp<'_> {
    fn drop(&mut self) {
        let api = self.opened.api;
        // SAFETY: every non-null object was made by `Qp::new`, and is destroyed once, children first.
        unsafe {
            let _ = (!self.qp.is_null()).then(|| (api.destroy_qp)(self.qp));
            let _ = (!self.cq.is_null()).then(|| (api.destroy_cq)(self.cq));
            let _ = (!self.domain.is_null()).then(|| (api.dealloc_pd)(self.domain));
            let _ = (!self.td.is_null()).then(|| (api.dealloc_td)(self.td));
        }
    }
}

impl<'a> Qp<'a> {
    /// Creates a queue pair in RESET, for `ibv_post_send` and these operations of `ibv_wr_*`.
    pub(crate) fn new(opened: &'a Opened, send_ops_flags: u64) -> Result<Self, Failure> {
        let (api, context, null) = (opened.api, opened.context.as_ptr(), ptr::null_mut());
        // SAFETY: the context is open, and belongs to the system's library.
        let (post_send, poll_cq) = unsafe { inline_functions(context) }.ok_or(NO_FUNCTIONS)?;
        let mut all = Qp {
            post_send,
            poll_cq,
            opened,
            td: ptr::null_mut(),
            domain: ptr::null_mut(),
            cq: ptr::null_mut(),
            qp: ptr::null_mut(),
        };
        // SAFETY: the context is open as long as `opened`; every struct is valid, with zeroes for unused fields.
        unsafe {
            all.td =
                made("ibv_alloc_td", (api.alloc_td)(context, &mut ibv_td_init_attr::default()))?.as_ptr();
            let mut attr = ibv_parent_domain_init_attr {
                pd: opened.pd.as_ptr(),
                td: all.td,
                comp_mask: 0,
                alloc: None,
                free: None,
                pd_context: null,
            };
            let domain = (api.alloc_parent_domain)(context, &mut attr);
            all.domain = made("ibv_alloc_parent_domain", domain)?.as_ptr();
            let mut attr: ibv_cq_init_attr_ex = std::mem::zeroed();
            attr.cqe = 2 * DEPTH;
            let cq = (api.mlx5dv_create_cq)(context, &mut attr, &mut mlx5dv_cq_init_attr::default());
            all.cq = made("mlx5dv_create_cq", cq)?.as_ptr();
            let mut attr: ibv_qp_init_attr_ex = std::mem::zeroed();
            (attr.send_cq, attr.recv_cq, attr.pd) = (all.cq, all.cq, all.domain);
            attr.cap = ibv_qp_cap {
                max_send_wr: DEPTH,
                max_recv_wr: 1,
                max_send_sge: 4,
                max_recv_sge: 1,
                max_inline_data: 44,
            };
            attr.qp_type = IBV_QPT_RC;
            attr.comp_mask = IBV_QP_INIT_ATTR_PD;
            if send_ops_flags != 0 {
                attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
                attr.send_ops_flags = send_ops_flags;
            }
            let qp = (api.mlx5dv_create_qp)(context, &mut attr, &mut mlx5dv_qp_init_attr::default());
            all.qp = made("mlx5dv_create_qp", qp)?.as_ptr();
        }
        Ok(all)
    }

    fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { (*self.qp).qp_num }
    }

    fn modify(&self, mut attr: ibv_qp_attr, mask: u32) -> Result<(), Failure> {
        // SAFETY: the queue pair is alive, the struct valid.
        done("ibv_modify_qp", unsafe { (self.opened.api.modify_qp)(self.qp, &mut attr, mask as i32) })
    }

    /// Connects to a queue pair of gdsync, with its defaults, and that queue pair to this one. The remote side has these
    /// rights.
    pub(crate) fn connect(&self, to: &QueuePair, rights: Access) -> Result<(), Failure> {
        let (port_num, options) = (self.opened.port, ConnectOptions::default());
        let (remote, gid) = (to.endpoint()?, self.opened.device()?.choose_gid(port_num, None)?);
        let none = ibv_qp_attr::default();
        let qp_access_flags = rights.bits();
        let attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num, qp_access_flags, ..none };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify(attr, mask)?;
        let mut ah_attr = ibv_ah_attr { port_num, dlid: remote.lid, ..ibv_ah_attr::default() };
        if gid.kind.link() == LinkLayer::Ethernet {
            ah_attr.is_global = 1;
            ah_attr.grh.dgid.raw = remote.gid.0;
            ah_attr.grh.sgid_index = u8::try_from(gid.index)?;
            ah_attr.grh.hop_limit = options.hop_limit;
        }
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: remote.mtu as i32,
            dest_qp_num: remote.qpn,
            rq_psn: remote.psn,
            max_dest_rd_atomic: READS,
            min_rnr_timer: options.min_rnr_timer,
            ah_attr,
            ..none
        };
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(attr, mask)?;
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: options.timeout,
            retry_cnt: options.retry_count,
            rnr_retry: options.rnr_retry,
            max_rd_atomic: READS,
            ..none
        };
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(attr, mask)?;
        Ok(to.connect(&Endpoint { qpn: self.number(), psn: 0, ..remote }, options)?)
    }

    /// Takes the next completion.
    pub(crate) fn poll(&self) -> Result<Option<ibv_wc>, Failure> {
        let mut completion = ibv_wc::default();
        // SAFETY: the queue is alive, and there is room for one completion.
        match unsafe { (self.poll_cq)(self.cq, 1, &mut completion) } {
            0 => Ok(None),
            1 => Ok(Some(completion)),
            rc => done("ibv_poll_cq", rc).map(|()| None),
        }
    }
}
