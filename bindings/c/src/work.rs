//! Translates work requests of C programs, and posts and prepares them.

use crate::error::{self, CallError, bad, bad_bits, non_null, non_null_mut};
use crate::objects::QueuePairObject;
use crate::providers::{self, ObjectKind};
use crate::streams;
use crate::types::{gds_send_wr, ibv_recv_wr};
use gdsync::persistent::{PersistentRecv, PersistentSend};
use gdsync::queue::StateError;
use gdsync::verbs::AddressHandle;
use gdsync::{PreparedSend, QueueError, RemoteMemory, Slice, WorkRequest};
use gdsync_sys::verbs::ibv_sge;
use libc::c_int;
use std::ptr::{self, NonNull};

/// `enum ibv_wr_opcode`, whose numbers are those of `enum ibv_exp_wr_opcode`.
pub(crate) mod opcode {
    use libc::c_int;
    pub(crate) const RDMA_WRITE: c_int = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: c_int = 1;
    pub(crate) const SEND: c_int = 2;
    pub(crate) const SEND_WITH_IMM: c_int = 3;
    pub(crate) const RDMA_READ: c_int = 4;
    pub(crate) const COMPARE_SWAP: c_int = 5;
    pub(crate) const FETCH_ADD: c_int = 6;
}

const FENCE: u64 = 1 << 0;
pub(crate) const SIGNALED: u64 = 1 << 1;
const SOLICITED: u64 = 1 << 2;
const INLINE: u64 = 1 << 3;

/// A limit above that of any card.
const MOST_ELEMENTS: c_int = 1024;

/// The elements of a request.
///
/// # Safety
/// `list` is null, or an array of `count`.
#[inline(always)]
unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [ibv_sge], CallError> {
    if !(0..=MOST_ELEMENTS).contains(&count) {
        return Err(bad("num_sge", count, "0 to 1024 are possible"));
    }
    // SAFETY: the caller passes an array of that length.
    unsafe { error::list("sg_list", count as usize, list) }
}

/// Calls a function with the slices of a list of elements.
///
/// # Safety
/// The memory stays registered until the request has completed.
#[inline(always)]
unsafe fn with_slices<T>(
    qp: &QueuePairObject,
    list: &[ibv_sge],
    call: impl FnOnce(&[Slice]) -> Result<T, CallError>,
) -> Result<T, CallError> {
    match list {
        // SAFETY: the caller passes valid pointers, and keeps the memory registered.
        [one] => call(unsafe { qp.memory.borrow(one.addr, one.length as usize, one.lkey) }.slices()),
        // SAFETY: the caller passes valid pointers, and keeps the memory registered.
        several => unsafe { with_several(qp, several, call) },
    }
}

/// As [`with_slices`], for any number of elements.
///
/// # Safety
/// As [`with_slices`].
#[cold]
#[inline(never)]
unsafe fn with_several<T>(
    qp: &QueuePairObject,
    list: &[ibv_sge],
    call: impl FnOnce(&[Slice]) -> Result<T, CallError>,
) -> Result<T, CallError> {
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    let slice = |sge: &ibv_sge| unsafe { qp.memory.slice(sge.addr, sge.length as usize, sge.lkey) };
    call(&list.iter().map(slice).collect::<Vec<_>>())
}

/// Gathers the bytes of an inline request.
///
/// # Safety
/// The elements are readable memory of the process.
unsafe fn gather(list: &[ibv_sge]) -> Result<Vec<u8>, CallError> {
    let mut bytes = Vec::new();
    for sge in list.iter().filter(|sge| sge.length > 0) {
        let from = non_null("the address of an inline element", sge.addr as *const u8)?;
        // SAFETY: the caller passes an array of that length.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, sge.length as usize) });
    }
    Ok(bytes)
}

/// Refuses a length above the queue pair's limit before the bytes are read, as such a program may not have as many.
fn check_inline(qp: &QueuePairObject, list: &[ibv_sge]) -> Result<(), CallError> {
    let length: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
    if length <= u64::from(qp.queue_pair.max_inline()) {
        return Ok(());
    }
    let most = qp.queue_pair.max_inline();
    let limit = format!("the queue pair takes {most} (cap.max_inline_data): leave IBV_SEND_INLINE out");
    Err(bad("the length of the inline elements", length as i64, limit))
}

/// Calls a function with the translated request.
///
/// # Safety
/// The request's pointers are valid, and its memory stays registered until it has completed.
#[inline(always)]
unsafe fn with_request<T>(
    qp: &QueuePairObject,
    wr: &gds_send_wr,
    call: impl FnOnce(WorkRequest<'_>) -> Result<T, CallError>,
) -> Result<T, CallError> {
    // SAFETY: the caller passes an array of that length.
    let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    if wr.exp_send_flags & INLINE != 0 && matches!(wr.exp_opcode, opcode::RDMA_WRITE..=opcode::SEND_WITH_IMM)
    {
        // SAFETY: the caller passes valid pointers, and keeps the memory registered.
        return unsafe { with_inline(qp, wr, list, call) };
    }
    let with = |slices: &[Slice]| finish(qp, wr, other_request(wr, slices)?, call);
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    unsafe { with_slices(qp, list, with) }
}

/// As [`with_request`], for an inline request.
///
/// # Safety
/// As [`gather`].
#[inline(never)]
unsafe fn with_inline<T>(
    qp: &QueuePairObject,
    wr: &gds_send_wr,
    list: &[ibv_sge],
    call: impl FnOnce(WorkRequest<'_>) -> Result<T, CallError>,
) -> Result<T, CallError> {
    check_inline(qp, list)?;
    let post = |bytes: &[u8]| match wr.exp_opcode {
        opcode::SEND | opcode::SEND_WITH_IMM => finish(qp, wr, WorkRequest::send_inline(bytes), call),
        _ => finish(qp, wr, WorkRequest::write_inline(bytes, remote(wr)), call),
    };
    match list {
        [one] if one.length > 0 && one.addr != 0 => {
            // SAFETY: the caller passes readable memory, which does not change during the call.
            post(unsafe { std::slice::from_raw_parts(one.addr as *const u8, one.length as usize) })
        }
        // SAFETY: the caller passes valid pointers, and keeps the memory registered.
        several => post(&unsafe { gather(several) }?),
    }
}

fn other_request<'a>(wr: &gds_send_wr, slices: &'a [Slice]) -> Result<WorkRequest<'a>, CallError> {
    Ok(match (wr.exp_opcode, slices) {
        (opcode::SEND | opcode::SEND_WITH_IMM, _) => WorkRequest::send(slices),
        (opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM, _) => WorkRequest::write(slices, remote(wr)),
        (opcode::RDMA_READ, _) => WorkRequest::read(slices, remote(wr)),
        (opcode::COMPARE_SWAP | opcode::FETCH_ADD, [result]) => {
            // SAFETY: plain numbers, for which every bit pattern is valid.
            let operands = unsafe { wr.wr.atomic };
            let at = RemoteMemory { addr: operands.remote_addr, len: 8, rkey: operands.rkey };
            match wr.exp_opcode {
                opcode::FETCH_ADD => WorkRequest::fetch_add(result, at, operands.compare_add),
                _ => WorkRequest::compare_swap(result, at, operands.compare_add, operands.swap),
            }
        }
        (opcode::COMPARE_SWAP | opcode::FETCH_ADD, _) => {
            return Err(bad("num_sge", wr.num_sge, "an atomic operation has 1"));
        }
        (other, _) => {
            return Err(bad("opcode", other, "operations are 0 (RDMA write) to 6 (fetch and add)"));
        }
    })
}

/// The remote memory of a request, whose length is unknown.
#[inline(always)]
pub(crate) fn remote(wr: &gds_send_wr) -> RemoteMemory {
    // SAFETY: plain numbers, for which every bit pattern is valid.
    let (addr, rkey) = unsafe { (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) };
    RemoteMemory { addr, len: u64::MAX, rkey }
}

#[inline(never)]
fn finish<T>(
    qp: &QueuePairObject,
    wr: &gds_send_wr,
    request: WorkRequest<'_>,
    call: impl FnOnce(WorkRequest<'_>) -> Result<T, CallError>,
) -> Result<T, CallError> {
    let flags = wr.exp_send_flags;
    if flags & !(FENCE | SIGNALED | SOLICITED | INLINE) != 0 {
        return Err(bad_bits(
            "send_flags",
            flags as i64,
            "fence, signaled, solicited and inline are possible",
        ));
    }
    let mut request = request.wr_id(wr.wr_id);
    if matches!(wr.exp_opcode, opcode::SEND_WITH_IMM | opcode::RDMA_WRITE_WITH_IMM) {
        request = request.immediate(u32::from_be(wr.imm_data));
    }
    if flags & SIGNALED == 0 && !qp.signal_all {
        request = request.unsignaled();
    }
    if flags & SOLICITED != 0 {
        request = request.solicited();
    }
    if flags & FENCE != 0 {
        request = request.fence();
    }
    if qp.is_datagram {
        return to_datagram(qp, wr, request, call);
    }
    call(request)
}

#[cold]
fn to_datagram<T>(
    qp: &QueuePairObject,
    wr: &gds_send_wr,
    request: WorkRequest<'_>,
    call: impl FnOnce(WorkRequest<'_>) -> Result<T, CallError>,
) -> Result<T, CallError> {
    // SAFETY: plain numbers, for which every bit pattern is valid.
    let ud = unsafe { wr.wr.ud };
    let path = NonNull::new(ud.ah).ok_or(CallError::Null { what: "wr.ud.ah" })?;
    if !ptr::eq(providers::of(ObjectKind::Path, ud.ah)?, qp.api) {
        return Err(bad_bits("wr.ud.ah", ud.ah.addr() as i64, "it must be of the queue pair's context"));
    }
    // SAFETY: an address handle that is alive: a known one of the software card, or one of libibverbs, as the C function's caller
    // promises.
    let handle = unsafe { AddressHandle::from_raw(&qp.queue_pair, path) }?;
    call(request.to(&handle, ud.remote_qpn, ud.remote_qkey))
}

/// Updates the state that an error depends on, and returns whether to try again: the program may have connected the queue pair, or a
/// stream may have passed what was in the way.
#[cold]
#[inline(never)]
fn look_again(qp: &QueuePairObject, error: &CallError) -> bool {
    match error {
        CallError::Queue(QueueError::State(StateError::NotConnected { .. })) => qp.queue_pair.adopt_state(),
        CallError::Queue(error) if streams::waits_for_a_stream(error) => streams::settle(),
        _ => return false,
    }
    true
}

/// Tries, and retries if the cause may have ended.
#[inline(always)]
fn attempt<T>(qp: &QueuePairObject, what: impl Fn() -> Result<T, CallError>) -> Result<T, CallError> {
    match what() {
        Err(error) if look_again(qp, &error) => what(),
        done => done,
    }
}

/// Calls a function with each request of a list. `bad` receives the request at which it failed.
///
/// # Safety
/// As [`with_request`], for each; `bad` is null or valid for a write.
unsafe fn each<T>(
    list: *mut T,
    bad: *mut *mut T,
    next: impl Fn(&T) -> *mut T,
    mut call: impl FnMut(&T) -> Result<(), CallError>,
) -> Result<(), CallError> {
    let mut at = non_null_mut("the work request", list)?;
    while !at.is_null() {
        // SAFETY: the caller passes a list of valid requests.
        let wr = unsafe { &*at };
        if let Err(error) = call(wr) {
            if !bad.is_null() {
                // SAFETY: the caller passes a place that is valid for a write.
                unsafe { *bad = at };
            }
            return Err(error);
        }
        at = next(wr);
    }
    Ok(())
}

/// Posts a list on the CPU.
///
/// # Safety
/// As [`each`].
pub(crate) unsafe fn post_sends(
    qp: &QueuePairObject,
    list: *mut gds_send_wr,
    bad: *mut *mut gds_send_wr,
) -> Result<(), CallError> {
    let post = |wr: &gds_send_wr| {
        // SAFETY: the caller passes valid pointers, and keeps the memory registered.
        attempt(qp, || unsafe { with_request(qp, wr, |request| Ok(qp.queue_pair.post_send(request)?)) })
    };
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    unsafe { each(list, bad, |wr| wr.next, post) }
}

/// Prepares one request.
///
/// # Safety
/// As [`with_request`].
pub(crate) unsafe fn prepare_send(qp: &QueuePairObject, wr: &gds_send_wr) -> Result<PreparedSend, CallError> {
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    attempt(qp, || unsafe { with_request(qp, wr, |request| Ok(qp.queue_pair.prepare(request)?)) })
}

/// Prepares a list. If a request fails, those before it are cancelled.
///
/// # Safety
/// As [`each`].
pub(crate) unsafe fn prepare_sends(
    qp: &QueuePairObject,
    list: *mut gds_send_wr,
    bad: *mut *mut gds_send_wr,
    mut keep: impl FnMut(PreparedSend),
) -> Result<(), CallError> {
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    let prepare = |wr: &gds_send_wr| unsafe { prepare_send(qp, wr) }.map(&mut keep);
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    unsafe { each(list, bad, |wr| wr.next, prepare) }
}

/// Posts receives.
///
/// # Safety
/// As [`each`].
pub(crate) unsafe fn post_receives(
    qp: &QueuePairObject,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> Result<(), CallError> {
    let post = |wr: &ibv_recv_wr| {
        // SAFETY: the caller passes valid pointers.
        unsafe {
            let list = elements(wr.sg_list, wr.num_sge)?;
            let receive = |slices: &[Slice]| Ok(qp.queue_pair.post_recv(slices, wr.wr_id)?);
            attempt(qp, || with_slices(qp, list, receive))
        }
    };
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    unsafe { each(list, bad, |wr| wr.next, post) }
}

fn check_persistent(qp: &QueuePairObject, is_one: bool) -> Result<(), CallError> {
    if qp.is_datagram {
        let remedy = "prepare each datagram (gds_prepare_send)";
        return Err(CallError::Unsupported { what: "persistent requests of datagrams", remedy });
    }
    if !is_one {
        let remedy = "set next to NULL, and make a request of each";
        return Err(CallError::Unsupported { what: "a persistent request of a list", remedy });
    }
    Ok(())
}

/// Makes a persistent send or write.
///
/// # Safety
/// The request's pointers are valid; its memory stays registered until the persistent request is freed.
pub(crate) unsafe fn persistent_send(
    qp: &QueuePairObject,
    wr: &gds_send_wr,
) -> Result<PersistentSend, CallError> {
    check_persistent(qp, wr.next.is_null())?;
    if wr.exp_send_flags & !SIGNALED != 0 {
        let limit = "a persistent request has its completion, and no other flag";
        return Err(bad_bits("send_flags", wr.exp_send_flags as i64, limit));
    }
    let make = |slices: &[Slice]| {
        Ok(match wr.exp_opcode {
            opcode::SEND | opcode::SEND_WITH_IMM => PersistentSend::send(&qp.queue_pair, slices)?,
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => {
                PersistentSend::write(&qp.queue_pair, slices, remote(wr))?
            }
            other => {
                return Err(bad("opcode", other, "persistent requests are 0 (RDMA write) to 3 (send)"));
            }
        })
    };
    // SAFETY: the caller passes an array of that length.
    let request = unsafe { with_slices(qp, elements(wr.sg_list, wr.num_sge)?, make) }?;
    Ok(match wr.exp_opcode {
        opcode::SEND_WITH_IMM | opcode::RDMA_WRITE_WITH_IMM => request.immediate(u32::from_be(wr.imm_data)),
        _ => request,
    })
}

/// Makes a persistent write of its start's number.
pub(crate) fn persistent_count(
    qp: &QueuePairObject,
    addr: u64,
    rkey: u32,
) -> Result<PersistentSend, CallError> {
    check_persistent(qp, true)?;
    let remote = RemoteMemory { addr, len: size_of::<u64>() as u64, rkey };
    Ok(PersistentSend::write_start_count(&qp.queue_pair, remote)?)
}

/// Makes a persistent receive.
///
/// # Safety
/// As [`persistent_send`].
pub(crate) unsafe fn persistent_receive(
    qp: &QueuePairObject,
    wr: &ibv_recv_wr,
) -> Result<PersistentRecv, CallError> {
    check_persistent(qp, wr.next.is_null())?;
    let make = |slices: &[Slice]| Ok(PersistentRecv::new(&qp.queue_pair, slices)?);
    // SAFETY: the caller passes an array of that length.
    unsafe { with_slices(qp, elements(wr.sg_list, wr.num_sge)?, make) }
}
