//! Streams of C programs: CUDA streams, wrapped at their first use, and software streams.

use crate::error::{CallError, bad_bits, stale};
use crate::handles::Addresses;
use crate::stream_object::{StreamObject, on, patience};
use crate::types::CUstream;
use gdsync::cudarc::driver::sys;
use gdsync::persistent::{self, ListError, PersistentError, Request};
use gdsync::queue::{OrderError, QueueFull};
use gdsync::stream::{PostError, PostFailure, StreamOptions};
use gdsync::{Batch, CudaStream, PreparedSend, QueueError, SoftStream, Stream, Trigger};
use libc::c_int;
use parking_lot::RwLock;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Name {
    handle: usize,
    /// The context and the thread of a default stream, whose handle is the same in all contexts, or in all threads.
    scope: usize,
}

/// The largest handle that is no pointer: null, `CU_STREAM_LEGACY` (1) and `CU_STREAM_PER_THREAD` (2).
const LAST_DEFAULT: usize = 2;

/// The lowest bits of a software stream's handle. CUDA's handles are pointers to aligned structs or the numbers above, and never
/// have all these bits.
const SOFT: usize = 0b111;

/// Returns whether a handle is, or was, a software stream's, which CUDA must not get.
fn is_soft(stream: CUstream) -> bool {
    stream.addr() & SOFT == SOFT
}

/// Returns a new handle: a number and [`SOFT`]. Handles are not reused.
fn soft_name() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) << SOFT.count_ones() | SOFT
}

#[cold]
fn no_soft_stream(stream: CUstream) -> CallError {
    let remedy = "pass what gdsync_soft_stream_create returned, until gdsync_soft_stream_destroy";
    let why = if is_soft(stream) { "was destroyed, or never made" } else { "is no software stream" };
    stale("the stream", stream.addr(), why, remedy)
}

/// The options of every stream: it stops where it would compute on a dead rank's data (`gdsync_stream_go_on`).
fn options() -> StreamOptions {
    StreamOptions::default().stop_at_death(true)
}

type Streams = HashMap<Name, Arc<StreamObject>, Addresses>;

static STREAMS: LazyLock<RwLock<Streams>> = LazyLock::new(RwLock::default);

/// Counts the forgotten streams. A stream that a thread remembers from before a change may no longer exist.
static FORGOTTEN: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Copy)]
struct Remembered {
    handle: usize,
    forgotten: u64,
    /// The driver's id of a CUDA stream that its program may destroy at any time.
    number: Option<u64>,
    stream: *const StreamObject,
}

thread_local! {
    /// Identifies the thread by its address.
    static THREAD: u8 = const { 0 };
    static LAST: Cell<Remembered> = const {
        Cell::new(Remembered { handle: 0, forgotten: 0, number: None, stream: std::ptr::null() })
    };
}

/// Returns the stream if it is the one that this thread has [found](find) last.
///
/// # Safety
/// As [`find`]; the reference is used only during the C function's call.
#[inline(always)]
pub(crate) unsafe fn remembered<'a>(stream: CUstream) -> Option<&'a StreamObject> {
    let last = LAST.get();
    if last.handle != stream as usize
        || last.stream.is_null()
        || last.forgotten != FORGOTTEN.load(Ordering::Acquire)
        // SAFETY: the caller passes a stream that is alive.
        || last.number.is_some_and(|number| unsafe { number_of(stream) } != number)
    {
        return None;
    }
    // SAFETY: `STREAMS` holds the stream until it is forgotten, which the count and the caller exclude, or until a stream with another
    // id replaces it.
    Some(unsafe { &*last.stream })
}

/// Remembers the stream for this thread, unless it is a default stream, which depends on the context. `forgotten` is the count from
/// before the stream was found: if the stream was forgotten since, [`remembered`] does not return it.
fn remember(stream: CUstream, found: &Arc<StreamObject>, forgotten: u64) {
    if stream as usize > LAST_DEFAULT {
        let number = if let StreamObject::Cuda(_, number) = **found { number } else { None };
        LAST.set(Remembered { handle: stream as usize, forgotten, number, stream: Arc::as_ptr(found) });
    }
}

fn name_of(stream: CUstream) -> Result<Name, CallError> {
    let handle = stream as usize;
    if handle > LAST_DEFAULT {
        return Ok(Name { handle, scope: 0 });
    }
    gdsync::cuda::device_count()?;
    let mut context = std::ptr::null_mut();
    // SAFETY: the driver is initialised (`device_count`); `context` is valid for a write.
    let result = unsafe { sys::cuCtxGetCurrent(&mut context) };
    if result != sys::CUresult::CUDA_SUCCESS || context.is_null() {
        return Err(bad_bits("the stream", handle as i64, "no CUDA context is current"));
    }
    let thread =
        if handle == LAST_DEFAULT { THREAD.with(|place| std::ptr::from_ref(place) as usize) } else { 0 };
    Ok(Name { handle, scope: (context as usize) ^ thread })
}

/// Returns the driver's id of a stream.
///
/// # Safety
/// The stream is alive, and the driver initialised.
unsafe fn number_of(stream: CUstream) -> u64 {
    let mut number = 0;
    // SAFETY: the caller passes a live stream; `number` is valid for a write. Drivers without ids leave it at 0.
    unsafe { sys::cuStreamGetId(stream.cast(), &mut number) };
    number
}

/// Returns the stream of a handle, wrapping a CUDA stream at its first use.
///
/// # Safety
/// It is the handle of a software stream, alive or not, or of a live CUDA stream, which may be null or another default stream. The
/// context stays for the life of the process.
pub(crate) unsafe fn find(stream: CUstream) -> Result<Arc<StreamObject>, CallError> {
    let forgotten = FORGOTTEN.load(Ordering::Acquire);
    let name = name_of(stream)?;
    let known = STREAMS.read().get(&name).cloned();
    let found = match known {
        None if is_soft(stream) => return Err(no_soft_stream(stream)),
        // SAFETY: the caller passes a stream that is alive.
        Some(found) if unsafe { found.is_still(stream) } => found,
        // No stream, or a destroyed one whose handle was reused.
        // SAFETY: the caller passes a stream that is alive.
        _ => unsafe { wrap(stream, name) }?,
    };
    remember(stream, &found, forgotten);
    Ok(found)
}

#[cold]
unsafe fn wrap(stream: CUstream, name: Name) -> Result<Arc<StreamObject>, CallError> {
    // SAFETY: the caller passes a stream that is alive, here and to each function that posts. Without a driver, this fails first.
    let (backend, number) = unsafe { (CudaStream::borrow_raw(stream.cast())?, number_of(stream)) };
    let made = Arc::new(StreamObject::Cuda(Stream::with_options(backend, options())?, Some(number)));
    // SAFETY: the caller passes a stream that is alive.
    Ok(first(name, made, |known| unsafe { known.is_still(stream) }))
}

/// Enters a stream. If another thread has entered the same stream, that entry stays, as threads may have
/// [remembered](remember) it.
fn first(
    name: Name,
    made: Arc<StreamObject>,
    is_same: impl FnOnce(&StreamObject) -> bool,
) -> Arc<StreamObject> {
    let mut streams = STREAMS.write();
    if let Some(known) = streams.get(&name)
        && is_same(known)
    {
        return known.clone();
    }
    let old = streams.insert(name, made.clone());
    drop(streams);
    // The drop may wait for the stream.
    drop(old);
    made
}

/// Enters a CUDA stream that the program keeps until it has it forgotten: the driver can be asked about its progress, so posts need
/// not mark it. With `is_never_captured`, posts do not check for a capture.
///
/// # Safety
/// As [`find`]. The stream is alive until [`forget`] of it has returned, no other thread uses it during this call, and with
/// `is_never_captured` nothing captures it.
pub(crate) unsafe fn keep(stream: CUstream, is_never_captured: bool) -> Result<(), CallError> {
    if is_soft(stream) {
        return find_soft(stream).map(drop);
    }
    let name = name_of(stream)?;
    // SAFETY: the caller passes a stream that is alive.
    let mut backend = unsafe { CudaStream::from_raw(stream.cast(), ()) }?;
    if is_never_captured {
        // SAFETY: the caller passes a stream that is alive.
        backend = unsafe { backend.never_captured() };
    }
    let kept = Arc::new(StreamObject::Cuda(Stream::with_options(backend, options())?, None));
    let mut streams = STREAMS.write();
    if let Some(known) = streams.get(&name)
        // SAFETY: the caller passes a stream that is alive.
        && unsafe { known.is_still(stream) }
    {
        let outstanding = known.outstanding();
        if outstanding > 0 {
            return Err(CallError::InUse { outstanding });
        }
    }
    let old = streams.insert(name, kept);
    FORGOTTEN.fetch_add(1, Ordering::Release);
    drop(streams);
    // The drop may wait for the stream.
    drop(old);
    Ok(())
}

/// Returns the software stream of a handle. Any value may be passed.
pub(crate) fn find_soft(stream: CUstream) -> Result<Arc<StreamObject>, CallError> {
    let known = STREAMS.read().get(&Name { handle: stream.addr(), scope: 0 }).cloned();
    known.filter(|known| known.soft().is_some()).ok_or_else(|| no_soft_stream(stream))
}

pub(crate) fn create_soft() -> Result<CUstream, CallError> {
    let made = Arc::new(StreamObject::Soft(Stream::with_options(SoftStream::new()?, options())?));
    let handle = soft_name();
    STREAMS.write().insert(Name { handle, scope: 0 }, made);
    Ok(std::ptr::without_provenance_mut(handle))
}

/// Forgets a stream; this ends a software stream.
pub(crate) fn forget(stream: CUstream, soft_only: bool) -> Result<(), CallError> {
    if soft_only || is_soft(stream) {
        find_soft(stream)?;
    }
    let name = name_of(stream)?;
    let mut streams = STREAMS.write();
    let gone = match streams.get(&name).map(|found| matches!(**found, StreamObject::Soft(_))) {
        Some(is_soft) if is_soft == soft_only => streams.remove(&name),
        None if !soft_only => None,
        _ if soft_only => return Err(no_soft_stream(stream)),
        _ => {
            let limit = "that is a software stream: gdsync_soft_stream_destroy ends it";
            return Err(bad_bits("the stream", stream.addr() as i64, limit));
        }
    };
    FORGOTTEN.fetch_add(1, Ordering::Release);
    drop(streams);
    // The drop may wait for the stream.
    drop(gone);
    Ok(())
}

/// Polls the progress of all streams, and releases what they have passed.
pub(crate) fn settle() {
    let all: Vec<_> = STREAMS.read().values().cloned().collect();
    all.iter().for_each(|stream| _ = stream.outstanding());
}

impl StreamObject {
    fn post_once(&self, batch: Batch) -> Result<(), PostError> {
        on!(self, stream => stream.post_timeout(batch, patience())).map(drop)
    }

    /// Posts a batch. Sends and waits that were not posted are dropped, which cancels them.
    pub(crate) fn post(&self, batch: Batch) -> Result<(), CallError> {
        match self.post_once(batch) {
            Ok(()) => Ok(()),
            Err(error) if is_in_the_way(&error.source) => {
                settle();
                self.post_once(error.batch).map_err(|again| again.source.into())
            }
            Err(error) => Err(error.source.into()),
        }
    }

    #[inline(always)]
    pub(crate) fn post_send(&self, send: PreparedSend) -> Result<(), CallError> {
        match on!(self, stream => stream.post_send(send)) {
            Ok(_) => Ok(()),
            Err(error) => self.post_after(error),
        }
    }

    /// Retries with [`Self::post`], which may wait, if the cause may end.
    #[cold]
    #[inline(never)]
    fn post_after(&self, error: PostError) -> Result<(), CallError> {
        let may_end = matches!(error.source, PostFailure::WouldBlock { .. }) || is_in_the_way(&error.source);
        if may_end { self.post(error.batch) } else { Err(error.source.into()) }
    }

    /// Starts persistent requests. Waits for room as a post does.
    pub(crate) fn start_all(&self, list: &mut [&mut dyn Request]) -> Result<(), CallError> {
        start(|| on!(self, stream => persistent::start_all(list, stream, patience())).map(drop))
    }

    /// As [`Self::start_all`], by one write of the trigger's word.
    pub(crate) fn start_all_by_trigger(
        &self,
        list: &mut [&mut dyn Request],
        trigger: &Trigger,
    ) -> Result<(), CallError> {
        start(|| {
            on!(self, stream => persistent::start_all_by_trigger(list, stream, trigger, patience())).map(drop)
        })
    }

    /// Returns false if the handle now names another stream.
    ///
    /// # Safety
    /// As [`find`].
    unsafe fn is_still(&self, stream: CUstream) -> bool {
        let StreamObject::Cuda(_, Some(number)) = self else { return true };
        // SAFETY: the caller passes a stream that is alive.
        *number == unsafe { number_of(stream) }
    }
}

/// Starts a list, and retries once if another stream was in the way.
fn start(mut start: impl FnMut() -> Result<(), ListError>) -> Result<(), CallError> {
    match start() {
        Err(ListError { source: PersistentError::Queue(error), .. }) if waits_for_a_stream(&error) => {}
        Err(ListError { source: PersistentError::Post(failure), .. }) if is_in_the_way(&failure) => {}
        done => return Ok(done?),
    }
    settle();
    Ok(start()?)
}

/// Returns whether another stream is in the way, which may have moved on since it was last polled.
fn is_in_the_way(failure: &PostFailure) -> bool {
    matches!(failure, PostFailure::Queue(error) if waits_for_a_stream(error))
}

/// As [`is_in_the_way`], for a queue's error.
pub(crate) fn waits_for_a_stream(error: &QueueError) -> bool {
    matches!(
        error,
        QueueError::Order(OrderError::OtherStream { .. } | OrderError::TriggerOnOtherStream { .. })
            | QueueError::Full(QueueFull::Stream(_))
    )
}

/// Returns the current context's default stream, which translates addresses for this thread's kernels. `None` without a driver or a
/// context.
pub(crate) fn current() -> Result<Option<Arc<StreamObject>>, CallError> {
    match name_of(std::ptr::null_mut()) {
        // SAFETY: the legacy default stream of the current context always exists.
        Ok(_) => unsafe { find(std::ptr::null_mut()) }.map(Some),
        Err(_) => Ok(None),
    }
}

/// Registers the library's memory with a GPU, and loads what posts need, if the GPU's context is current. A queue pair's creation does
/// this, as C has no call before a CUDA stream's first post.
pub(crate) fn prepare(gpu: c_int) {
    patience();
    if u32::try_from(gpu).is_ok_and(|gpu| current_gpu() == Some(gpu))
        && let Err(error) = current()
    {
        tracing::debug!(%error, gpu, "the context of the queue pair's GPU is left to the first post");
    }
}

/// Returns the GPU of the current context; `None` without a driver or a context.
pub(crate) fn current_gpu() -> Option<u32> {
    name_of(std::ptr::null_mut()).ok()?;
    let mut device = -1;
    // SAFETY: the driver is initialised and a context is current (`name_of`); `device` is valid for a write.
    let result = unsafe { sys::cuCtxGetDevice(&mut device) };
    (result == sys::CUresult::CUDA_SUCCESS).then(|| u32::try_from(device).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Arc<StreamObject> {
        Arc::new(StreamObject::Soft(Stream::new(SoftStream::new().unwrap()).unwrap()))
    }

    #[test]
    fn names_of_software_streams_are_none_of_cudas_and_never_come_again() {
        let names: Vec<usize> = (0..100).map(|_| soft_name()).collect();
        assert!(names.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(names.iter().all(|name| is_soft(std::ptr::without_provenance_mut(*name))));
        let cudas = [0, 1, 2, 0x7fff_0000_1000, 0x7fff_0000_1008, 0x7fff_0000_1004];
        assert!(cudas.iter().all(|name| !is_soft(std::ptr::without_provenance_mut(*name))));
    }

    #[test]
    fn of_two_threads_that_name_a_new_stream_the_first_one_enters_it() {
        let name = Name { handle: 1 << 62, scope: 0 };
        let (one, two, third) = (stream(), stream(), stream());
        assert!(Arc::ptr_eq(&first(name, one.clone(), |_| true), &one));
        // The first thread has remembered its stream, so that stays.
        assert!(Arc::ptr_eq(&first(name, two, |known| std::ptr::eq(known, &*one)), &one));
        assert!(Arc::ptr_eq(&first(name, third.clone(), |_| false), &third), "another one at its address");
        STREAMS.write().remove(&name);
    }

    #[test]
    fn a_stream_that_is_forgotten_while_it_is_looked_up_is_not_remembered() {
        let handle = create_soft().unwrap();
        let before = FORGOTTEN.load(Ordering::Acquire);
        let found = find_soft(handle).unwrap();
        forget(handle, true).unwrap();
        remember(handle, &found, before);
        // SAFETY: a software stream's handle.
        assert!(unsafe { remembered(handle) }.is_none());
    }
}
