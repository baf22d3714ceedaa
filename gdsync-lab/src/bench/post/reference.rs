//! libmlx5's own posting, on a queue pair unknown to gdsync.

use gdsync::verbs::{GidEntry, LinkLayer};
use gdsync::{ConnectOptions, Device, Endpoint, MemoryRegion, ProtectionDomain, QueuePair, RemoteMemory};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::{self, Hca};
use gdsync_sys::VerbsApi;
use gdsync_sys::mlx5dv::{mlx5dv_cq_init_attr, mlx5dv_qp_init_attr};
use gdsync_sys::verbs::*;
use std::io;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// 8 bytes, in the request itself.
    Inline,
    One,
    Four,
}

const ON_SOFTWARE: &str = "or measure on the software card: `gdsync soft -- gdsync bench post`";

const DEPTH: u32 = 128;

fn failed(call: &str) -> Failure {
    format!("{call} failed: {}", io::Error::last_os_error()).into()
}

fn made<T>(call: &str, raw: *mut T) -> Result<NonNull<T>, Failure> {
    NonNull::new(raw).ok_or_else(|| failed(call))
}

fn done(call: &str, rc: i32) -> Result<(), Failure> {
    match rc {
        0 => Ok(()),
        rc if rc > 0 => Err(format!("{call} failed: {}", io::Error::from_raw_os_error(rc)).into()),
        _ => Err(failed(call)),
    }
}

/// A context and a protection domain that both sides of the comparison use.
pub(super) struct Opened {
    api: &'static VerbsApi,
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
    pub(super) port: u8,
}

impl Opened {
    pub(super) fn new(hca: Option<&Hca>) -> Result<Self, Failure> {
        let (api, name, port) = hca::system(hca)?;
        // The library's errors name their remedies; those of the calls below do not.
        drop(Device::open(api, name).map_err(|error| format!("{error}; {ON_SOFTWARE}"))?);
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

    fn device(&self) -> Result<Device, Failure> {
        // SAFETY: the context is open until `self` is dropped; everything made on it borrows `self`, or is dropped
        // earlier in `run`.
        Ok(unsafe { Device::from_raw(self.api, self.context) }?)
    }

    pub(super) fn domain(&self) -> Result<ProtectionDomain, Failure> {
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

/// A queue pair with its own doorbell page, and libmlx5's functions for it. The order of the fields is the order of
/// drops.
pub(super) struct Reference<'a> {
    qp: Qp<'a>,
    qp_ex: NonNull<ibv_qp_ex>,
    post_send: PostSend,
    poll_cq: PollCq,
    wr: Operations,
    elements: [ibv_sge; 4],
}

#[derive(Clone, Copy)]
struct Operations {
    start: unsafe extern "C" fn(*mut ibv_qp_ex),
    rdma_write: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64),
    inline: unsafe extern "C" fn(*mut ibv_qp_ex, *mut libc::c_void, usize),
    sge: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    sge_list: unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge),
    complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> i32,
}

impl Operations {
    /// # Safety
    /// `qp_ex` was returned by `ibv_qp_to_qp_ex`.
    unsafe fn of(qp_ex: NonNull<ibv_qp_ex>) -> Option<Self> {
        // SAFETY: the caller's promise.
        let qp_ex = unsafe { qp_ex.as_ref() };
        Some(Operations {
            start: qp_ex.wr_start?,
            rdma_write: qp_ex.wr_rdma_write?,
            inline: qp_ex.wr_set_inline_data?,
            sge: qp_ex.wr_set_sge?,
            sge_list: qp_ex.wr_set_sge_list?,
            complete: qp_ex.wr_complete?,
        })
    }
}

struct Qp<'a> {
    opened: &'a Opened,
    td: *mut ibv_td,
    domain: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
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
    fn new(opened: &'a Opened) -> Result<Self, Failure> {
        let (api, context, null) = (opened.api, opened.context.as_ptr(), ptr::null_mut());
        let mut all = Qp {
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
            attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
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

    /// Connects to a queue pair of gdsync, with its defaults.
    fn connect(&self, remote: &Endpoint, gid: &GidEntry) -> Result<(), Failure> {
        let (port_num, options) = (self.opened.port, ConnectOptions::default());
        let none = ibv_qp_attr::default();
        let attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num, ..none };
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
            max_dest_rd_atomic: 1,
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
            max_rd_atomic: 1,
            ..none
        };
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(attr, mask)
    }
}

impl<'a> Reference<'a> {
    /// Creates a queue pair connected to `target`. The elements are the first four parts of `source`, of `element` bytes
    /// each.
    pub(super) fn new(
        opened: &'a Opened,
        target: &QueuePair,
        source: &MemoryRegion,
        element: usize,
    ) -> Result<Self, Failure> {
        let qp = Qp::new(opened)?;
        let remote = target.endpoint()?;
        qp.connect(&remote, &opened.device()?.choose_gid(opened.port, None)?)?;
        target.connect(&Endpoint { qpn: qp.number(), psn: 0, ..remote }, ConnectOptions::default())?;
        let none = "the provider has no functions to post with: run this on the system's libraries (gdsync soft -- ...)";
        // SAFETY: context and queue pair are alive, and belong to the system's library.
        let (inline, qp_ex) = unsafe {
            let qp_ex = opened.api.qp_to_qp_ex.ok_or(none)?(qp.qp);
            (inline_functions(opened.context.as_ptr()), made("ibv_qp_to_qp_ex", qp_ex)?)
        };
        let (post_send, poll_cq) = inline.ok_or(none)?;
        // SAFETY: just returned.
        let wr = unsafe { Operations::of(qp_ex) }.ok_or(none)?;
        let addr = source.addr().get();
        let elements = [0, 1, 2, 3].map(|i| ibv_sge {
            addr: addr + i * element as u64,
            length: element as u32,
            lkey: source.lkey(),
        });
        Ok(Reference { qp, qp_ex, post_send, poll_cq, wr, elements })
    }

    pub(super) fn post_send(&self, shape: Shape, to: &RemoteMemory, burst: u64) -> Result<Duration, Failure> {
        // SAFETY: the queue pair is connected and has room for a burst; elements and inline bytes are valid.
        self.time("ibv_post_send", burst, || unsafe {
            match shape {
                Shape::Inline => post_send_inline(self, to, burst),
                Shape::One => post_send_one(self, to, burst),
                Shape::Four => post_send_four(self, to, burst),
            }
        })
    }

    pub(super) fn wr(&self, shape: Shape, to: &RemoteMemory, burst: u64) -> Result<Duration, Failure> {
        // SAFETY: as in `post_send`.
        self.time("ibv_wr_complete", burst, || unsafe {
            match shape {
                Shape::Inline => wr_inline(self, to, burst),
                Shape::One => wr_one(self, to, burst),
                Shape::Four => wr_four(self, to, burst),
            }
        })
    }

    fn time(&self, call: &str, burst: u64, post: impl FnOnce() -> i32) -> Result<Duration, Failure> {
        let start = Instant::now();
        let rc = post();
        let elapsed = start.elapsed();
        done(call, rc)?;
        self.drain(burst)?;
        Ok(elapsed)
    }

    fn drain(&self, burst: u64) -> Result<(), Failure> {
        let (mut left, mut completion) = (burst, ibv_wc::default());
        while left > 0 {
            // SAFETY: the queue is alive, and there is room for one completion.
            match unsafe { (self.poll_cq)(self.qp.cq, 1, &mut completion) } {
                0 => std::thread::yield_now(),
                1 if completion.status == 0 => left -= 1,
                1 => {
                    return Err(
                        format!("a write of the reference failed: status {}", completion.status).into()
                    );
                }
                rc => done("ibv_poll_cq", rc)?,
            }
        }
        Ok(())
    }

    /// Posts one request by `ibv_post_send`, built as a program does it.
    #[inline(always)]
    unsafe fn send(&self, wr_id: u64, to: &RemoteMemory, elements: &mut [ibv_sge], flags: u32) -> i32 {
        let mut request = ibv_send_wr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: elements.as_mut_ptr(),
            num_sge: elements.len() as i32,
            opcode: IBV_WR_RDMA_WRITE,
            send_flags: IBV_SEND_SIGNALED | flags,
            imm_data: 0,
            remote_addr: to.addr,
            rkey: to.rkey,
            _rest: [0; 9],
        };
        // SAFETY: the caller's promise.
        unsafe { (self.post_send)(self.qp.qp, &mut request, &mut ptr::null_mut()) }
    }

    /// Begins and ends a request by `ibv_wr_*`; `payload` is set in between.
    #[inline(always)]
    unsafe fn begin(&self, wr_id: u64, to: &RemoteMemory, payload: impl FnOnce(*mut ibv_qp_ex)) -> i32 {
        let qp_ex = self.qp_ex.as_ptr();
        // SAFETY: the caller's promise.
        unsafe {
            (self.wr.start)(qp_ex);
            (*qp_ex).wr_id = wr_id;
            (*qp_ex).wr_flags = IBV_SEND_SIGNALED;
            (self.wr.rdma_write)(qp_ex, to.rkey, to.addr);
            payload(qp_ex);
            (self.wr.complete)(qp_ex)
        }
    }
}

/// Posts a burst. Returns the first nonzero result, or 0.
#[inline(always)]
fn each(burst: u64, post: impl FnMut(u64) -> i32) -> i32 {
    (0..burst).map(post).find(|rc| *rc != 0).unwrap_or(0)
}

// Not inlined, so that `scripts/bench/post-instructions` finds these by name. All are safe if the queue pair is
// connected and has room for the burst.

#[inline(never)]
unsafe fn post_send_inline(this: &Reference<'_>, to: &RemoteMemory, burst: u64) -> i32 {
    each(burst, |wr_id| {
        let bytes = wr_id.to_ne_bytes();
        let mut element = [ibv_sge { addr: bytes.as_ptr() as u64, length: 8, lkey: 0 }];
        // SAFETY: the caller's promise; the bytes are read before the call returns.
        unsafe { this.send(wr_id, to, &mut element, IBV_SEND_INLINE) }
    })
}

#[inline(never)]
unsafe fn post_send_one(this: &Reference<'_>, to: &RemoteMemory, burst: u64) -> i32 {
    let mut element = [this.elements[0]];
    // SAFETY: the caller's promise.
    each(burst, |wr_id| unsafe { this.send(wr_id, to, &mut element, 0) })
}

#[inline(never)]
unsafe fn post_send_four(this: &Reference<'_>, to: &RemoteMemory, burst: u64) -> i32 {
    let mut elements = this.elements;
    // SAFETY: the caller's promise.
    each(burst, |wr_id| unsafe { this.send(wr_id, to, &mut elements, 0) })
}

#[inline(never)]
unsafe fn wr_inline(this: &Reference<'_>, to: &RemoteMemory, burst: u64) -> i32 {
    each(burst, |wr_id| {
        let mut bytes = wr_id.to_ne_bytes();
        // SAFETY: the caller's promise; the bytes are read before the call returns.
        unsafe { this.begin(wr_id, to, |qp| (this.wr.inline)(qp, bytes.as_mut_ptr().cast(), 8)) }
    })
}

#[inline(never)]
unsafe fn wr_one(this: &Reference<'_>, to: &RemoteMemory, burst: u64) -> i32 {
    let ibv_sge { addr, length, lkey } = this.elements[0];
    // SAFETY: the caller's promise.
    each(burst, |wr_id| unsafe { this.begin(wr_id, to, |qp| (this.wr.sge)(qp, lkey, addr, length)) })
}

#[inline(never)]
unsafe fn wr_four(this: &Reference<'_>, to: &RemoteMemory, burst: u64) -> i32 {
    let elements = this.elements.as_ptr();
    // SAFETY: the caller's promise.
    each(burst, |wr_id| unsafe { this.begin(wr_id, to, |qp| (this.wr.sge_list)(qp, 4, elements)) })
}
