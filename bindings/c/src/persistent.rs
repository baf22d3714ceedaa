//! Persistent requests of C programs.

use crate::completion::translate;
use crate::error::{CallError, bad_bits, cause_of};
use crate::handles::Named;
use crate::types::{gds_qp, gdsync_request};
use gdsync::persistent::{ListError, PersistentError, PersistentRecv, PersistentSend, Request};
use gdsync::qp::CardWord;
use gdsync::queue::Status;
use gdsync_sys::verbs::ibv_wc;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub(crate) enum Work {
    Send(PersistentSend),
    Receive(PersistentRecv),
}

/// Evaluates an expression with the request of a [`Work`].
macro_rules! on {
    ($work:expr, $request:ident => $value:expr) => {
        match $work {
            Work::Send($request) => $value,
            Work::Receive($request) => $value,
        }
    };
}

/// The object of a `gdsync_request_t *`.
pub(crate) struct RequestObject {
    owner: usize,
    wr_id: u64,
    work: Mutex<Work>,
}

static REQUESTS: Named<gdsync_request, RequestObject> = Named::new(
    "the request",
    "pass what gdsync_send_init or gdsync_recv_init returned, until it or its queue pair is gone",
);

/// The requests of each queue pair: pairs of the queue pair's handle and the request's.
static BY_OWNER: Mutex<BTreeSet<(usize, usize)>> = Mutex::new(BTreeSet::new());

pub(crate) fn keep(owner: usize, wr_id: u64, work: Work) -> Result<*mut gdsync_request, CallError> {
    let object = Arc::new(RequestObject { owner, wr_id, work: Mutex::new(work) });
    let made = REQUESTS.keep(object, gdsync_request::at)?;
    BY_OWNER.lock().insert((owner, made.addr()));
    Ok(made)
}

/// Calls a function with the requests of a list.
///
/// # Safety
/// No other thread frees the requests, or destroys their queue pairs.
pub(crate) unsafe fn with_all(
    requests: &[*mut gdsync_request],
    call: impl FnOnce(&mut [&mut dyn Request]) -> Result<(), CallError>,
) -> Result<(), CallError> {
    let mut locked = Vec::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        // SAFETY: the caller lets no other thread free the object.
        let object = unsafe { REQUESTS.find(*request) }?;
        locked.push(object.work.try_lock().ok_or(CallError::RequestInUse { index })?);
    }
    let mut list: Vec<&mut dyn Request> = Vec::with_capacity(locked.len());
    list.extend(locked.iter_mut().map(|work| on!(&mut **work, request => request as &mut dyn Request)));
    call(&mut list)
}

/// Makes the card hold back each start of a send until the word has reached the start's number.
///
/// # Safety
/// As [`with_all`], for the request.
pub(crate) unsafe fn set_behind(request: *mut gdsync_request, word: &CardWord) -> Result<(), CallError> {
    // SAFETY: the caller lets no other thread free the object.
    let object = unsafe { REQUESTS.find(request) }?;
    let mut work = object.work.try_lock().ok_or(CallError::RequestInUse { index: 0 })?;
    match &mut *work {
        Work::Receive(_) => {
            Err(bad_bits("the request", request.addr() as i64, "it is a receive: pass a send"))
        }
        Work::Send(send) if send.is_active() => {
            Err(ListError { index: None, source: PersistentError::Active }.into())
        }
        Work::Send(send) => Ok(send.set_card_wait(word)?),
    }
}

/// Waits on the CPU until all starts of a request have completed.
///
/// # Safety
/// As [`with_all`], for the request.
pub(crate) unsafe fn complete(request: *mut gdsync_request, timeout: Duration) -> Result<ibv_wc, CallError> {
    // SAFETY: the caller lets no other thread free the object.
    let object = unsafe { REQUESTS.find(request) }?;
    let mut work = object.work.try_lock().ok_or(CallError::RequestInUse { index: 0 })?;
    let completion = on!(&mut *work, request => request.complete(timeout));
    let completion = completion.map_err(|source| ListError { index: None, source })?;
    let completion = completion.ok_or_else(|| {
        let status = on!(&*work, request => request.status());
        let cause = cause_of(timeout, || status.as_ref().and_then(Status::explain));
        CallError::NotCompleted { timeout_ms: timeout.as_millis() as u64, cause }
    })?;
    Ok(ibv_wc { wr_id: object.wr_id, ..translate(&completion) })
}

/// Frees a request that is not active.
///
/// # Safety
/// As [`with_all`], for the request.
pub(crate) unsafe fn free(request: *mut gdsync_request) -> Result<(), CallError> {
    // SAFETY: the caller lets no other thread free the object.
    let object = unsafe { REQUESTS.find(request) }?;
    let mut work = object.work.try_lock().ok_or(CallError::RequestInUse { index: 0 })?;
    // Checks for its completion.
    let is_active = on!(&mut *work, request => matches!(request.complete(Duration::ZERO), Ok(None)));
    if is_active {
        return Err(ListError { index: None, source: PersistentError::Active }.into());
    }
    drop(work);
    BY_OWNER.lock().remove(&(object.owner, request.addr()));
    REQUESTS.take(request).map(drop)
}

/// Returns the handles of a list's queue pairs.
///
/// # Safety
/// As [`with_all`].
pub(crate) unsafe fn owners(requests: &[*mut gdsync_request]) -> Result<BTreeSet<*mut gds_qp>, CallError> {
    let owner = |request: &*mut gdsync_request| {
        // SAFETY: the caller lets no other thread free the object.
        let object = unsafe { REQUESTS.find(*request) }?;
        Ok(std::ptr::without_provenance_mut(object.owner))
    };
    requests.iter().map(owner).collect()
}

/// Removes the requests of a queue pair that is being destroyed. Started work ends with it.
pub(crate) fn forget(owner: usize) {
    let mut requests = BY_OWNER.lock();
    let of_it: Vec<_> = requests.range((owner, 0)..=(owner, usize::MAX)).copied().collect();
    requests.retain(|(of, _)| *of != owner);
    drop(requests);
    for (_, request) in of_it {
        // The program may have freed the request meanwhile.
        drop(REQUESTS.take(std::ptr::without_provenance_mut(request)));
    }
}
