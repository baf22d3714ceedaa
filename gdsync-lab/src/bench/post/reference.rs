//! libmlx5's own posting, measured.

use crate::libmlx5::{NO_FUNCTIONS, Opened, Qp, done, made};
use gdsync::{Access, MemoryRegion, QueuePair, RemoteMemory};
use gdsync_cli::failure::Failure;
use gdsync_sys::verbs::*;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// 8 bytes, in the request itself.
    Inline,
    One,
    Four,
}

/// A queue pair with its own doorbell page, and libmlx5's functions for it. The order of the fields is the order of
/// drops.
pub(super) struct Reference<'a> {
    qp: Qp<'a>,
    qp_ex: NonNull<ibv_qp_ex>,
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

impl<'a> Reference<'a> {
    /// Creates a queue pair connected to `target`. The elements are the first four parts of `source`, of `element` bytes
    /// each.
    pub(super) fn new(
        opened: &'a Opened,
        target: &QueuePair,
        source: &MemoryRegion,
        element: usize,
    ) -> Result<Self, Failure> {
        let qp = Qp::new(opened, IBV_QP_EX_WITH_RDMA_WRITE)?;
        qp.connect(target, Access::empty())?;
        // SAFETY: the queue pair is alive, and belongs to the system's library.
        let qp_ex = unsafe { opened.api.qp_to_qp_ex.ok_or(NO_FUNCTIONS)?(qp.qp) };
        let qp_ex = made("ibv_qp_to_qp_ex", qp_ex)?;
        // SAFETY: just returned.
        let wr = unsafe { Operations::of(qp_ex) }.ok_or(NO_FUNCTIONS)?;
        let addr = source.addr().get();
        let elements = [0, 1, 2, 3].map(|i| ibv_sge {
            addr: addr + i * element as u64,
            length: element as u32,
            lkey: source.lkey(),
        });
        Ok(Reference { qp, qp_ex, wr, elements })
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
        let mut left = burst;
        while left > 0 {
            match self.qp.poll()? {
                None => std::thread::yield_now(),
                Some(completion) if completion.status == 0 => left -= 1,
                Some(completion) => {
                    return Err(
                        format!("a write of the reference failed: status {}", completion.status).into()
                    );
                }
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
            _rest: [0; 3],
            bind_mw: ibv_send_wr_bind_mw::NONE,
        };
        // SAFETY: the caller's promise.
        unsafe { (self.qp.post_send)(self.qp.qp, &mut request, &mut ptr::null_mut()) }
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
