//! The device header's calls from Rust, through the library of `tests/device/calls.cpp`.

use gdsync::device::{CollectorData, DeviceQpData, TriggerData};
use gdsync_test_support::device::{self, Ended};
use gdsync_test_support::skipped;
use libloading::Library;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::time::Duration;

/// `operation` of [`Request`].
pub(crate) const PUT: u32 = 0;
pub(crate) const PUT_INLINE: u32 = 1;
pub(crate) const PUT_SIGNAL: u32 = 2;
pub(crate) const PUT_SIGNAL_ADD: u32 = 3;
pub(crate) const GET: u32 = 4;
pub(crate) const SEND: u32 = 5;
pub(crate) const SEND_INLINE: u32 = 6;
pub(crate) const FETCH_ADD: u32 = 7;
pub(crate) const COMPARE_SWAP: u32 = 8;
pub(crate) const PUT_WARP: u32 = 9;
pub(crate) const PUT_BLOCK: u32 = 10;

/// Arguments of a call, in the layout of `calls.cpp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    pub(crate) operation: u32,
    pub(crate) lkey: u32,
    pub(crate) local: u64,
    pub(crate) bytes: u64,
    pub(crate) remote: u64,
    pub(crate) signal: u64,
    pub(crate) value: u64,
    pub(crate) desired: u64,
    pub(crate) timeout_ns: u64,
    pub(crate) rkey: u32,
    pub(crate) more: u32,
}

/// Arguments of `storm`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storm {
    pub(crate) threads: u32,
    pub(crate) count: u64,
    pub(crate) slots: u32,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
    pub(crate) counters: u64,
    pub(crate) local: u64,
    pub(crate) lkey: u32,
}

/// The device header, compiled for the CPU.
pub(crate) struct Calls(Library);

/// The library. `None` without a C++ compiler: the test is skipped.
pub(crate) fn calls(test: &str) -> Option<&'static Calls> {
    static CALLS: OnceLock<Result<Calls, String>> = OnceLock::new();
    let calls = CALLS.get_or_init(|| device::load("gdsync/tests/device/calls.cpp").map(Calls));
    calls.as_ref().map_err(|why| skipped(test, why)).ok()
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

macro_rules! symbol {
    ($self:ident, $name:literal, $type:ty) => {{
        // SAFETY: the function has the type of `calls.cpp`.
        let function: libloading::Symbol<'_, $type> = unsafe { $self.0.get($name) }.unwrap();
        function
    }};
}

/// Every call takes a queue pair that is attached to this process's threads, and is not dropped meanwhile, as the
/// tests ensure.
impl Calls {
    pub(crate) fn layout(&self) -> Vec<u64> {
        let mut offsets = [0u64; 64];
        let function = symbol!(self, b"layout", unsafe extern "C" fn(*mut u64) -> i32);
        // SAFETY: there is enough room for the function's results.
        let count = unsafe { function(offsets.as_mut_ptr()) };
        offsets[..count as usize].to_vec()
    }

    pub(crate) fn call(&self, qp: &DeviceQpData, request: &Request) -> (Ended, u64) {
        type Call = unsafe extern "C" fn(*const DeviceQpData, *const Request, *mut u64) -> i32;
        let function = symbol!(self, b"call", Call);
        let mut ticket = 0;
        // SAFETY: as the block's comment says; the named memory is registered.
        let code = unsafe { function(qp, request, &mut ticket) };
        (Ended::new(code), ticket)
    }

    pub(crate) fn quiet(&self, qp: &DeviceQpData, timeout: Duration) -> Ended {
        let function = symbol!(self, b"call_quiet", unsafe extern "C" fn(*const DeviceQpData, u64) -> i32);
        // SAFETY: as the block's comment says.
        Ended::new(unsafe { function(qp, ns(timeout)) })
    }

    pub(crate) fn wait(&self, qp: &DeviceQpData, ticket: u64, timeout: Duration) -> Ended {
        let function =
            symbol!(self, b"call_wait", unsafe extern "C" fn(*const DeviceQpData, u64, u64) -> i32);
        // SAFETY: as the block's comment says.
        Ended::new(unsafe { function(qp, ticket, ns(timeout)) })
    }

    pub(crate) fn poll(&self, qp: &DeviceQpData) -> (Ended, u64) {
        let function =
            symbol!(self, b"call_poll", unsafe extern "C" fn(*const DeviceQpData, *mut u64) -> i32);
        let mut completed = 0;
        // SAFETY: as the block's comment says.
        (Ended::new(unsafe { function(qp, &mut completed) }), completed)
    }

    pub(crate) fn ring(&self, qp: &DeviceQpData) -> Ended {
        let function = symbol!(self, b"call_ring", unsafe extern "C" fn(*const DeviceQpData) -> i32);
        // SAFETY: as the block's comment says.
        Ended::new(unsafe { function(qp) })
    }

    pub(crate) fn wait_signal(&self, word: u64, value: u64, timeout: Duration) -> Ended {
        let function =
            symbol!(self, b"call_wait_signal", unsafe extern "C" fn(*const c_void, u64, u64) -> i32);
        // SAFETY: the tests pass aligned words of live regions.
        Ended::new(unsafe { function(word as *const c_void, value, ns(timeout)) })
    }

    pub(crate) fn release(&self, trigger: &TriggerData, ticket: u64) {
        let function = symbol!(self, b"call_release", unsafe extern "C" fn(*const TriggerData, u64));
        // SAFETY: the tests keep the trigger.
        unsafe { function(trigger, ticket) }
    }

    pub(crate) fn wait_arrivals(&self, collector: &CollectorData, number: u64, timeout: Duration) -> Ended {
        type Function = unsafe extern "C" fn(*const CollectorData, u64, u64) -> i32;
        let function = symbol!(self, b"call_wait_arrivals", Function);
        // SAFETY: the tests keep the collector.
        Ended::new(unsafe { function(collector, number, ns(timeout)) })
    }

    pub(crate) fn error(&self, qp: &DeviceQpData) -> u64 {
        let function = symbol!(self, b"call_error", unsafe extern "C" fn(*const DeviceQpData) -> u64);
        // SAFETY: as the block's comment says.
        unsafe { function(qp) }
    }

    pub(crate) fn syndrome(&self, qp: &DeviceQpData) -> u32 {
        let function = symbol!(self, b"call_syndrome", unsafe extern "C" fn(*const DeviceQpData) -> u32);
        // SAFETY: as the block's comment says.
        unsafe { function(qp) }
    }

    pub(crate) fn crc32(&self, bytes: &[u8], before: u32) -> u32 {
        let function = symbol!(self, b"call_crc32", unsafe extern "C" fn(*const u8, u64, u32) -> u32);
        // SAFETY: that many bytes are there.
        unsafe { function(bytes.as_ptr(), bytes.len() as u64, before) }
    }

    pub(crate) fn stop_inside(&self, qp: &DeviceQpData, place: i32) {
        let function = symbol!(self, b"stop_inside", unsafe extern "C" fn(*const DeviceQpData, i32));
        // SAFETY: as the block's comment says.
        unsafe { function(qp, place) }
    }

    pub(crate) fn storm(&self, qp: &DeviceQpData, storm: Storm) -> u64 {
        type Function =
            unsafe extern "C" fn(*const DeviceQpData, u32, u64, u32, u64, u32, u64, u64, u32) -> u64;
        let function = symbol!(self, b"storm", Function);
        let Storm { threads, count, slots, remote, rkey, counters, local, lkey } = storm;
        // SAFETY: as the block's comment says.
        unsafe { function(qp, threads, count, slots, remote, rkey, counters, local, lkey) }
    }
}
