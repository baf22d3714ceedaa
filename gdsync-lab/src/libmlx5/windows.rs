//! Memory windows: ranges of a region, and rights, that a queue pair opens for remote sides by a work request.

use super::{NO_FUNCTIONS, Opened, Qp, done, made};
use gdsync::{Access, PinnedMemory};
use gdsync_cli::failure::Failure;
use gdsync_sys::verbs::*;
use libc::c_void;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};

/// The kinds of the InfiniBand specification, 10.6.7.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowKind {
    /// Bound by a verb, which chooses the new key. Every queue pair of the domain may use it.
    Type1,
    /// Bound by a work request, with a key that the program chooses, to the queue pair that it is posted on.
    Type2,
}

impl WindowKind {
    fn code(self) -> i32 {
        match self {
            WindowKind::Type1 => IBV_MW_TYPE_1,
            WindowKind::Type2 => IBV_MW_TYPE_2,
        }
    }
}

/// `ibv_inc_rkey`: the last 8 bits of a key count its binds.
pub(crate) fn next_key(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

impl Opened {
    /// Returns `device_cap_flags` and `max_mw`.
    pub(crate) fn window_capabilities(&self) -> Result<(u32, i32), Failure> {
        let mut attr = std::mem::MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and the place has room for the struct, of which all bytes may be zero.
        unsafe {
            done("ibv_query_device", (self.api.query_device)(self.context.as_ptr(), attr.as_mut_ptr()))?;
            let attr = attr.assume_init();
            Ok((attr.device_cap_flags, attr.max_mw))
        }
    }
}

/// Memory that libibverbs has registered.
pub(crate) struct Region<'a> {
    opened: &'a Opened,
    raw: NonNull<ibv_mr>,
    pub(crate) memory: PinnedMemory,
}

impl<'a> Region<'a> {
    pub(crate) fn new(opened: &'a Opened, len: usize, access: Access) -> Result<Self, Failure> {
        let memory = PinnedMemory::allocate(len)?;
        let (pd, start, flags) =
            (opened.pd.as_ptr(), memory.addr().get() as *mut c_void, access.bits() as i32);
        // SAFETY: the domain lives as long as `opened`; the memory stays mapped until the region is deregistered.
        let raw = unsafe { (opened.api.reg_mr)(pd, start, len, flags) };
        Ok(Region { opened, raw: made("ibv_reg_mr", raw)?, memory })
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and deregistered once, before the memory is released.
        unsafe { (self.opened.api.dereg_mr)(self.raw.as_ptr()) };
    }
}

pub(crate) struct Window<'a> {
    kind: WindowKind,
    raw: NonNull<ibv_mw>,
    bind: BindMw,
    dealloc: DeallocMw,
    _opened: &'a Opened,
}

impl<'a> Window<'a> {
    /// Allocates a window, or returns the error of a card that refuses it.
    pub(crate) fn new(opened: &'a Opened, kind: WindowKind) -> Result<Result<Self, io::Error>, Failure> {
        // SAFETY: the context is open, and belongs to the system's library.
        let functions = unsafe { window_functions(opened.context.as_ptr()) };
        let (alloc, bind, dealloc) = functions.ok_or(NO_FUNCTIONS)?;
        // SAFETY: the provider's own function; the domain lives as long as `opened`.
        let raw = unsafe { alloc(opened.pd.as_ptr(), kind.code()) };
        let window = |raw| Window { kind, raw, bind, dealloc, _opened: opened };
        Ok(NonNull::new(raw).map(window).ok_or_else(io::Error::last_os_error))
    }

    pub(crate) fn key(&self) -> u32 {
        // SAFETY: the window is allocated.
        unsafe { (*self.raw.as_ptr()).rkey }
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and freed once, while its context is open.
        unsafe { (self.dealloc)(self.raw.as_ptr()) };
    }
}

impl Qp<'_> {
    /// Posts the bind of a window to a range of a region; an empty range closes a window of type 1.
    pub(crate) fn bind(
        &self,
        window: &Window<'_>,
        region: &Region<'_>,
        range: Range<usize>,
        access: Access,
    ) -> Result<(), Failure> {
        if range.start > range.end || range.end > region.memory.len() {
            return Err(format!("{range:?} is not in a region of {} bytes", region.memory.len()).into());
        }
        let bind_info = ibv_mw_bind_info {
            mr: region.raw.as_ptr(),
            addr: region.memory.addr().get() + range.start as u64,
            length: range.len() as u64,
            mw_access_flags: access.bits(),
        };
        let mw = window.raw.as_ptr();
        if window.kind == WindowKind::Type1 {
            let mut bind = ibv_mw_bind { wr_id: 0, send_flags: IBV_SEND_SIGNALED, bind_info };
            // SAFETY: queue pair, window and region are alive, and of one context.
            return done("ibv_bind_mw", unsafe { (window.bind)(self.qp, mw, &mut bind) });
        }
        let rkey = next_key(window.key());
        self.post_control(IBV_WR_BIND_MW, 0, ibv_send_wr_bind_mw { mw, rkey, bind_info })?;
        // SAFETY: the window is allocated; no other thread has it.
        unsafe { (*mw).rkey = rkey };
        Ok(())
    }

    /// Posts the invalidation of a window of type 2.
    pub(crate) fn invalidate(&self, window: &Window<'_>) -> Result<(), Failure> {
        self.post_control(IBV_WR_LOCAL_INV, window.key(), ibv_send_wr_bind_mw::NONE)
    }

    fn post_control(&self, opcode: i32, key: u32, bind_mw: ibv_send_wr_bind_mw) -> Result<(), Failure> {
        let mut request = ibv_send_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
            opcode,
            send_flags: IBV_SEND_SIGNALED,
            imm_data: key,
            remote_addr: 0,
            rkey: 0,
            _rest: [0; 3],
            bind_mw,
        };
        // SAFETY: the queue pair is alive; what the request names is alive in the callers, and read before the call returns.
        let rc = unsafe { (self.post_send)(self.qp, &mut request, &mut ptr::null_mut()) };
        done("ibv_post_send", rc)
    }
}
