//! Creates links and their messages, enqueues messages, and waits for them. Links match and are freed as other requests.

use super::operations::queue;
use super::requests::make;
use super::{RequestHandle, give, handle, length, null, store, take, with};
use crate::device::domain;
use crate::error::{Class, Failure, status};
use crate::link::{Ended, Message};
use crate::memory::{self, Buffer};
use crate::request::Request;
use crate::request::RequestKind;
use crate::{link_progress, mpi_thread};
use gdsync::Access;
use libc::{c_char, c_int, c_void};
use std::ffi::CString;
use std::slice;
use std::sync::Arc;

type MessageHandle = *const c_void;

/// Reports the end of a message: its operation, the class of its failure or 0, the failure's text, and the bytes received.
type EndedOfC = unsafe extern "C" fn(operation: *mut c_void, class: c_int, text: *const c_char, bytes: u64);

/// Makes a link that sends (`sends` is not 0) or receives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_link(sends: c_int, made: *mut RequestHandle) -> c_int {
    status(|| {
        // SAFETY: a link has no buffer; the caller passes a valid `made`.
        unsafe { make(RequestKind::Link { sends: sends != 0 }, made) }?;
        // SAFETY: stored above.
        link_progress::add(&unsafe { handle("the link", *made) }?);
        mpi_thread::poll_periodically();
        Ok(())
    })
}

/// Makes a message with a buffer of `bytes` bytes.
///
/// # Safety
/// The memory stays until the message has ended, and the program uses it only as MPI allows. `operation` is valid for the function of
/// [`gdsync_mpi_links_progress`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_message(
    link: RequestHandle,
    operation: *mut c_void,
    buffer: *mut c_void,
    bytes: u64,
    made: *mut MessageHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller passes handles that are null or not freed.
        let link: Arc<Request> = unsafe { handle("the link", link) }?;
        let domain = domain()?;
        let sends = link.with_link(|link, _| link.sends)?;
        if sends && bytes > domain.fragment_bytes {
            let most = domain.fragment_bytes;
            let text = format!(
                "the message has {bytes} bytes, and on a linked communicator at most {most} (GDSYNC_MPI_PART_BYTES): send it in pieces"
            );
            return Err(Failure::new(Class::Argument, text));
        }
        let buffer =
            Buffer { address: buffer.expose_provenance(), bytes: length(bytes.min(domain.fragment_bytes))? };
        let access = if sends { Access::empty() } else { Access::LOCAL_WRITE };
        // SAFETY: the caller keeps the memory, and no key leaves the process.
        let slices = unsafe { memory::register_message(&domain.cache, buffer, access) }?;
        let message = Message::new(operation.expose_provenance(), slices);
        // SAFETY: the caller passes a place that is null or valid for a write.
        unsafe { give(Arc::new(message), made) }
    })
}

/// Frees C's reference to a message. Its work continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_message_free(message: MessageHandle) -> c_int {
    // SAFETY: the caller passes a handle that is null or not freed, and does not use it again.
    status(|| unsafe { take::<Message>("the message", message) }.map(drop))
}

/// Runs the body of a C function with a link and a message of it.
unsafe fn with_message(
    link: RequestHandle,
    message: MessageHandle,
    act: impl FnOnce(&Arc<Request>, &Arc<Message>) -> Result<(), Failure>,
) -> c_int {
    // SAFETY: the caller passes handles that are null or not freed.
    unsafe { with("the link", link, |link| act(link, &handle("the message", message)?)) }
}

/// Enqueues a message. `by_stream` is 1 if the stream and the card do everything, and 0 if the message is deferred to the thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_message_enqueue(
    link: RequestHandle,
    kind: c_int,
    stream: *const *mut c_void,
    message: MessageHandle,
    by_stream: *mut c_int,
) -> c_int {
    let act = |link: &Arc<Request>, message: &Arc<Message>| {
        // SAFETY: the caller passes the place of a live stream of that kind.
        let queue = unsafe { queue(kind, stream) }?;
        let given = link_progress::enqueue(link, &queue, message)?;
        // SAFETY: the caller passes a place that is null or valid for a write.
        unsafe { store(by_stream, given.into()) }
    };
    // SAFETY: the caller passes handles that are null or not freed.
    unsafe { with_message(link, message, act) }
}

/// Lets the thread post a deferred message, which a stream has triggered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_message_trigger(link: RequestHandle, message: MessageHandle) -> c_int {
    let act = |link: &Arc<Request>, message: &Arc<Message>| link.with_link(|link, _| link.trigger(message));
    // SAFETY: the caller passes handles that are null or not freed.
    unsafe { with_message(link, message, act) }
}

/// Withdraws a deferred message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_message_withdraw(link: RequestHandle, message: MessageHandle) -> c_int {
    let act = |link: &Arc<Request>, message: &Arc<Message>| link.with_link(|link, _| link.withdraw(message));
    // SAFETY: the caller passes handles that are null or not freed.
    unsafe { with_message(link, message, act) }
}

/// Requests a report of the message's end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_message_watch(link: RequestHandle, message: MessageHandle) -> c_int {
    let act = |link: &Arc<Request>, message: &Arc<Message>| {
        link.with_link(|link, _| link.watch(message))?;
        mpi_thread::wake();
        Ok(())
    };
    // SAFETY: the caller passes handles that are null or not freed.
    unsafe { with_message(link, message, act) }
}

/// Waits on the CPU for a message that a stream has posted. `bytes` gets the bytes received.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_message_wait(
    link: RequestHandle,
    message: MessageHandle,
    bytes: *mut u64,
) -> c_int {
    let act = |link: &Arc<Request>, message: &Arc<Message>| {
        let received = link_progress::wait_on_cpu(link, message)?;
        // SAFETY: the caller passes a place that is null or valid for a write.
        unsafe { store(bytes, received) }
    };
    // SAFETY: the caller passes handles that are null or not freed.
    unsafe { with_message(link, message, act) }
}

/// Makes a stream wait for messages that streams have posted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_enqueue_message_waits(
    kind: c_int,
    stream: *const *mut c_void,
    number: usize,
    messages: *const MessageHandle,
) -> c_int {
    status(|| {
        if number == 0 {
            return Ok(());
        }
        // SAFETY: the caller passes the place of a live stream of that kind.
        let queue = unsafe { queue(kind, stream) }?;
        if messages.is_null() {
            return Err(null("the list of messages"));
        }
        // SAFETY: the caller passes as many handles as it says.
        let list = unsafe { slice::from_raw_parts(messages, number) };
        // SAFETY: the caller passes handles that are null or not freed.
        let list = list.iter().map(|each| unsafe { handle("a message", *each) });
        link_progress::enqueue_wait(&queue, &list.collect::<Result<Vec<_>, Failure>>()?)
    })
}

/// Does the thread's work for all links. `outstanding` gets the number of messages that need the thread.
///
/// # Safety
/// `ended` may be called once with the operation of each message that was triggered or is watched. No other thread calls this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_links_progress(
    ended: Option<EndedOfC>,
    outstanding: *mut c_int,
) -> c_int {
    status(|| {
        let (messages, number) = link_progress::progress()?;
        // SAFETY: the caller lets the function be called once for each message.
        unsafe { report(ended, messages) }?;
        // SAFETY: the caller passes a place that is null or valid for a write.
        unsafe { store(outstanding, number as c_int) }
    })
}

/// Gives messages a second to complete, and then ends them; after the thread has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_links_finish(ended: Option<EndedOfC>) -> c_int {
    // SAFETY: the caller lets the function be called once for each message.
    status(|| unsafe { report(ended, link_progress::finish()?) })
}

/// # Safety
/// As [`gdsync_mpi_links_progress`].
unsafe fn report(ended: Option<EndedOfC>, messages: Vec<Ended>) -> Result<(), Failure> {
    let ended = ended.ok_or_else(|| null("the function"))?;
    for (operation, outcome) in messages {
        let operation = std::ptr::with_exposed_provenance_mut(operation);
        let (class, text, bytes) = match outcome {
            Ok(bytes) => (0, CString::default(), bytes),
            // The library's texts have no zeros.
            Err(failure) => (failure.class as c_int, CString::new(failure.text).unwrap_or_default(), 0),
        };
        // SAFETY: the caller lets the function be called; the text lives until it returns.
        unsafe { ended(operation, class, text.as_ptr(), bytes) };
    }
    Ok(())
}
