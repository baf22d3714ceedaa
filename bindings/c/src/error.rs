//! Translates errors and panics to errno values.

use crate::log;
use crate::words::of_c;
use gdsync::batch::WriteError;
use gdsync::cuda::{CudaError, DriverError};
use gdsync::memop::{StreamError, WordError};
use gdsync::persistent::{ListError, PersistentError};
use gdsync::queue::{OrderError, PollError, QueueFull, RequestError, StateError, Syndrome, WorkError};
use gdsync::stream::PostFailure;
use gdsync::verbs::{OpenError, PortError, QueuePairError};
use gdsync::{Error, QueueError};
use gdsync_notify::NotifyError;
use gdsync_notify::bootstrap::BootstrapError;
use gdsync_sys::contain::contain;
use libc::c_int;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("{what} is a null pointer: pass a valid one")]
    Null { what: &'static str },
    #[error("{what} is {value}, but {limit}")]
    Bad { what: &'static str, value: i64, limit: Cow<'static, str> },
    #[error("{what} is {value:#x}, but {limit}")]
    BadBits { what: &'static str, value: i64, limit: Cow<'static, str> },
    #[error("the {what} has objects left, {}", name_left(.left))]
    Left { what: &'static str, left: String },
    #[error("{what} {value:#x} {why}: {remedy}")]
    Stale { what: &'static str, value: u64, why: &'static str, remedy: &'static str },
    #[error("{what}: {remedy}")]
    Unsupported { what: &'static str, remedy: &'static str },
    #[error("{words} words are appended to this wait already: post another wait")]
    NoRoom { words: u32 },
    #[error("the stream has not come to its end within {timeout_ms} ms{}", because(.cause))]
    TimedOut { timeout_ms: u64, cause: Option<String> },
    #[error("the stream has {outstanding} submissions outstanding: call gdsync_stream_synchronize before")]
    InUse { outstanding: usize },
    #[error("the request has not completed within {timeout_ms} ms{}", because(.cause))]
    NotCompleted { timeout_ms: u64, cause: Option<String> },
    #[error(
        "request {index} is used by another thread, or is in the list twice: use it in one call at a time"
    )]
    RequestInUse { index: usize },
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error(transparent)]
    Word(#[from] WordError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Post(PostFailure),
    #[error("the work has failed: {0}")]
    Work(#[from] WorkError),
    #[error(transparent)]
    Persistent(#[from] ListError),
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(transparent)]
    Gdsync(#[from] Error),
    #[error(transparent)]
    Notify(#[from] NotifyError),
    #[error("the queue was not flushed within {timeout_ms} ms{}", because(.cause))]
    NotFlushed { timeout_ms: u64, cause: Option<String> },
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error("length is {length} here, but rank {rank} has given {theirs}: give all ranks the same")]
    OtherLength { length: usize, rank: usize, theirs: usize },
    #[error(
        "a stream has not passed work with the segment's memory within 2 s: keep the memory until it has, or call gdsync_stream_synchronize before"
    )]
    MemoryInUse,
    #[error("no notification of those was set within {timeout_ms} ms{}", because(.cause))]
    NotNotified { timeout_ms: u64, cause: Option<String> },
    #[error("{call}: {source}")]
    Verbs { call: &'static str, source: std::io::Error },
    #[error("{call}: {why}")]
    Explained { call: &'static str, why: String, source: std::io::Error },
    #[error("a panic inside gdsync, which is a defect: please report it ({message})")]
    Panic { message: String },
}

/// An error for a number that exceeds its limit.
pub(crate) fn bad(
    what: &'static str,
    value: impl Into<i64>,
    limit: impl Into<Cow<'static, str>>,
) -> CallError {
    CallError::Bad { what, value: value.into(), limit: limit.into() }
}

/// An error for flags, or an address, that cannot be.
pub(crate) fn bad_bits(
    what: &'static str,
    value: impl Into<i64>,
    limit: impl Into<Cow<'static, str>>,
) -> CallError {
    CallError::BadBits { what, value: value.into(), limit: limit.into() }
}

fn name_left(left: &str) -> String {
    if left.is_empty() {
        return "of libibverbs, or for work that a stream has not passed: destroy them, and synchronize streams, before"
            .to_owned();
    }
    format!("which are to be destroyed before: {left}")
}

/// An error for a handle or a number that names no object.
#[cold]
pub(crate) fn stale(what: &'static str, value: usize, why: &'static str, remedy: &'static str) -> CallError {
    CallError::Stale { what, value: value as u64, why, remedy }
}

/// Checks the result of a verbs call, which is 0, a positive errno, or -1 with `errno` set.
pub(crate) fn check(call: &'static str, code: c_int) -> Result<(), CallError> {
    let source = match code {
        0 => return Ok(()),
        code if code > 0 => std::io::Error::from_raw_os_error(code),
        _ => std::io::Error::last_os_error(),
    };
    Err(CallError::Verbs { call, source })
}

/// Checks the result of a verbs call, which is a pointer, or null with `errno` set.
pub(crate) fn made<T>(call: &'static str, pointer: *mut T) -> Result<*mut T, CallError> {
    if pointer.is_null() {
        Err(CallError::Verbs { call, source: std::io::Error::last_os_error() })
    } else {
        Ok(pointer)
    }
}

/// As [`check`]; a refusal of an argument says why, if `explain` knows.
pub(crate) fn check_explained(
    call: &'static str,
    code: c_int,
    explain: impl FnOnce() -> Option<String>,
) -> Result<(), CallError> {
    check(call, code).map_err(|error| error.explained(explain))
}

fn because(cause: &Option<String>) -> String {
    cause.as_ref().map_or_else(String::new, |cause| format!(": {cause}"))
}

/// The shortest time-out whose error says the cause. A program that waits for less polls, and does not wait for what other processes
/// know.
const EXPLAINED: Duration = Duration::from_millis(10);

/// Asks for the cause of a time-out, unless the program polls.
pub(crate) fn cause_of(timeout: Duration, explain: impl FnOnce() -> Option<String>) -> Option<String> {
    if timeout >= EXPLAINED { explain() } else { None }
}

impl From<PostFailure> for CallError {
    fn from(failure: PostFailure) -> Self {
        match failure {
            PostFailure::Queue(error) => CallError::Queue(error),
            PostFailure::Stream(error) => CallError::Stream(error),
            other => CallError::Post(other),
        }
    }
}

fn of_queue(error: &QueueError) -> c_int {
    match error {
        QueueError::Full(QueueFull::Stream(_)) => libc::EAGAIN,
        QueueError::Full(_) => libc::ENOMEM,
        QueueError::Order(OrderError::OtherStream { .. } | OrderError::TriggerOnOtherStream { .. }) => {
            libc::EBUSY
        }
        QueueError::State(StateError::Failed { .. } | StateError::CompletionQueueLost { .. })
        | QueueError::Poll(PollError::BadCompletion { .. }) => libc::EIO,
        QueueError::Request(RequestError::NotOnTransport { .. } | RequestError::NotOnDevice { .. }) => {
            libc::EOPNOTSUPP
        }
        _ => libc::EINVAL,
    }
}

fn of_post(failure: &PostFailure) -> c_int {
    match failure {
        PostFailure::Queue(error) => of_queue(error),
        PostFailure::Stream(error) => of_stream(error),
        PostFailure::WouldBlock { .. } => libc::EAGAIN,
        _ => libc::EIO,
    }
}

fn of_work(error: WorkError) -> c_int {
    match error.kind() {
        Some(Syndrome::RetryExceeded) => libc::EHOSTDOWN,
        Some(Syndrome::WrFlush) => libc::ECANCELED,
        _ => libc::EIO,
    }
}

fn of_persistent(error: &PersistentError) -> c_int {
    match error {
        PersistentError::Active => libc::EBUSY,
        PersistentError::Queue(error) => of_queue(error),
        PersistentError::Post(failure) => of_post(failure),
        PersistentError::Resources(_) => libc::ENOMEM,
        _ => libc::EINVAL,
    }
}

fn of_stream(error: &StreamError) -> c_int {
    match error {
        StreamError::Unregistered { .. } | StreamError::Unreachable { .. } | StreamError::OtherGpu { .. } => {
            libc::EFAULT
        }
        StreamError::Unsupported { .. } => libc::EOPNOTSUPP,
        StreamError::Stopped { rank: Some(_), .. } => libc::EHOSTDOWN,
        StreamError::NoMemory { .. } => libc::ENOMEM,
        StreamError::NoThread { .. } => libc::EAGAIN,
        StreamError::Cuda(error) => of_cuda(error),
        _ => libc::EIO,
    }
}

fn of_cuda(error: &CudaError) -> c_int {
    match error {
        CudaError::Driver(DriverError::NoDriver | DriverError::NoDevice { .. }) => libc::ENODEV,
        CudaError::Unreachable { .. } | CudaError::NoPeerAccess { .. } => libc::EFAULT,
        CudaError::OtherThread | CudaError::Capturing => libc::EINVAL,
        _ => libc::EIO,
    }
}

fn of_system(error: &std::io::Error) -> c_int {
    error.raw_os_error().filter(|code| *code > 0).unwrap_or(libc::EIO)
}

fn of_gdsync(error: &Error) -> c_int {
    match error {
        Error::Verbs { source, .. } => of_system(source),
        Error::Memory { .. } => libc::ENOMEM,
        Error::Open(OpenError::NoDevice { .. } | OpenError::NotMlx5 { .. } | OpenError::Load(_)) => {
            libc::ENODEV
        }
        Error::QueuePair(
            QueuePairError::NoTransport { .. }
            | QueuePairError::NoCardWaits { .. }
            | QueuePairError::NoMasters { .. },
        ) => libc::EOPNOTSUPP,
        Error::Port(PortError::NotActive { .. } | PortError::NoGid { .. }) => libc::ENETDOWN,
        Error::Cuda(error) => of_cuda(error),
        _ => libc::EINVAL,
    }
}

fn of_notify(error: &NotifyError) -> c_int {
    match error {
        NotifyError::PeerDead { .. } => libc::EHOSTDOWN,
        NotifyError::Expelled { .. } | NotifyError::Ended => libc::ESHUTDOWN,
        NotifyError::TimedOut { .. } => libc::ETIMEDOUT,
        NotifyError::Failed { .. } | NotifyError::FailedOnRank { .. } => libc::EIO,
        NotifyError::Consistency { .. } | NotifyError::NoReads => libc::EOPNOTSUPP,
        NotifyError::Unreachable(error) => of_stream(error),
        NotifyError::Memory(_) => libc::ENOMEM,
        NotifyError::Post { source, .. } | NotifyError::LocalQueue(source) => of_queue(source),
        NotifyError::Device(error) => of_gdsync(error),
        NotifyError::Cuda(error) => of_cuda(error),
        NotifyError::Bootstrap(error) => of_bootstrap(error),
        _ => libc::EINVAL,
    }
}

fn of_bootstrap(error: &BootstrapError) -> c_int {
    match error {
        BootstrapError::Late { .. } | BootstrapError::Connect { .. } => libc::ETIMEDOUT,
        BootstrapError::Gone { .. } => libc::EHOSTDOWN,
        BootstrapError::Listen { source, .. } | BootstrapError::Connection { source, .. } => {
            of_system(source)
        }
        BootstrapError::Refused { .. } | BootstrapError::OtherKey { .. } => libc::EACCES,
        BootstrapError::Protocol { .. } | BootstrapError::Program { .. } | BootstrapError::Broken => {
            libc::EPROTO
        }
        _ => libc::EINVAL,
    }
}

impl CallError {
    fn errno(&self) -> c_int {
        match self {
            CallError::Null { .. }
            | CallError::Bad { .. }
            | CallError::BadBits { .. }
            | CallError::Stale { .. }
            | CallError::OtherLength { .. }
            | CallError::Word(_)
            | CallError::Write(_) => libc::EINVAL,
            CallError::Unsupported { .. } => libc::EOPNOTSUPP,
            CallError::NoRoom { .. } => libc::ENOMEM,
            CallError::TimedOut { .. }
            | CallError::NotCompleted { .. }
            | CallError::NotNotified { .. }
            | CallError::NotFlushed { .. } => libc::ETIMEDOUT,
            CallError::RequestInUse { .. }
            | CallError::InUse { .. }
            | CallError::MemoryInUse
            | CallError::Left { .. } => libc::EBUSY,
            CallError::Queue(error) => of_queue(error),
            CallError::Post(failure) => of_post(failure),
            CallError::Work(error) => of_work(*error),
            CallError::Persistent(error) => of_persistent(&error.source),
            CallError::Stream(error) => of_stream(error),
            CallError::Cuda(error) => of_cuda(error),
            CallError::Verbs { source, .. } | CallError::Explained { source, .. } => of_system(source),
            CallError::Gdsync(error) => of_gdsync(error),
            CallError::Notify(error) => of_notify(error),
            CallError::Bootstrap(error) => of_bootstrap(error),
            CallError::Panic { .. } => libc::EIO,
        }
    }

    /// Adds the reason to a verbs call's refusal of an argument, if `explain` knows it.
    pub(crate) fn explained(self, explain: impl FnOnce() -> Option<String>) -> Self {
        let CallError::Verbs { call, source } = self else { return self };
        let is_refusal = matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EFAULT));
        match is_refusal.then(explain).flatten() {
            Some(why) => CallError::Explained { call, why, source },
            None => CallError::Verbs { call, source },
        }
    }

    /// Returns whether this is a lack of room, which fast programs meet and retry.
    fn is_fullness(&self) -> bool {
        matches!(self.errno(), libc::ENOMEM | libc::EAGAIN | libc::ETIMEDOUT)
    }
}

thread_local! {
    static TEXT: RefCell<CString> = RefCell::new(CString::default());
}

/// Returns the text of this thread's last [`CallError`], for `gdsync_error_text`.
pub(crate) fn text() -> *const c_char {
    const NONE: &CStr = c"";
    TEXT.try_with(|text| text.borrow().as_ptr()).unwrap_or(NONE.as_ptr())
}

#[cold]
#[inline(never)]
fn report(call: &'static str, error: &CallError) -> c_int {
    log::start();
    let errno = error.errno();
    let text = of_c(error.to_string());
    if error.is_fullness() {
        tracing::debug!(call, errno, "{text}");
    } else {
        tracing::error!(call, errno, "{text}");
    }
    let said = CString::new(format!("{call}: {text}").replace('\0', "?")).unwrap_or_default();
    // The thread-local is gone while the thread ends.
    let _gone_while_the_thread_ends = TEXT.try_with(|text| *text.borrow_mut() = said);
    errno
}

/// Runs the body of a C function, and returns a panic as an error.
#[inline]
fn attempt<T>(body: impl FnOnce() -> Result<T, CallError>) -> Result<T, CallError> {
    contain(body).unwrap_or_else(|message| Err(CallError::Panic { message }))
}

/// Tries a fast path without reporting errors. After a panic it returns `None`, and the general path reports the panic.
#[inline(always)]
pub(crate) fn quietly<T>(body: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(body)).ok().flatten()
}

/// Runs a C function that returns 0 or a positive errno.
#[inline]
pub(crate) fn status(call: &'static str, body: impl FnOnce() -> Result<(), CallError>) -> c_int {
    match attempt(body) {
        Ok(()) => 0,
        Err(error) => report(call, &error),
    }
}

/// Runs a C function that returns a number, or -1 and `errno`.
pub(crate) fn count(call: &'static str, body: impl FnOnce() -> Result<c_int, CallError>) -> c_int {
    attempt(body).unwrap_or_else(|error| {
        set_errno(report(call, &error));
        -1
    })
}

/// Runs a C function that returns a pointer, or null and `errno`.
pub(crate) fn pointer<T>(call: &'static str, body: impl FnOnce() -> Result<*mut T, CallError>) -> *mut T {
    attempt(body).unwrap_or_else(|error| {
        set_errno(report(call, &error));
        std::ptr::null_mut()
    })
}

fn set_errno(code: c_int) {
    // SAFETY: the C library's pointer to this thread's `errno` is always valid.
    unsafe { *libc::__errno_location() = code };
}

/// Refuses a null pointer.
#[inline]
pub(crate) fn non_null<T>(what: &'static str, pointer: *const T) -> Result<*const T, CallError> {
    if pointer.is_null() { Err(CallError::Null { what }) } else { Ok(pointer) }
}

/// Refuses a null pointer.
#[inline]
pub(crate) fn non_null_mut<T>(what: &'static str, pointer: *mut T) -> Result<*mut T, CallError> {
    if pointer.is_null() { Err(CallError::Null { what }) } else { Ok(pointer) }
}

/// Returns an array of the program.
///
/// # Safety
/// `list` is null, or an array of `number`.
#[inline(always)]
pub(crate) unsafe fn list<'a, T>(
    what: &'static str,
    number: usize,
    list: *const T,
) -> Result<&'a [T], CallError> {
    if number == 0 {
        return Ok(&[]);
    }
    let list = non_null(what, list)?;
    // SAFETY: the caller passes an array of that length.
    Ok(unsafe { std::slice::from_raw_parts(list, number) })
}

pub(crate) fn no_flags(flags: c_int) -> Result<(), CallError> {
    if flags == 0 { Ok(()) } else { Err(bad_bits("flags", flags, "must be 0")) }
}
