//! Links and their messages: made, given to streams, waited for, and freed. A link is matched and freed as other requests
//! are.

use super::operations::queue;
use super::requests::make;
use super::{RequestHandle, handle, length, null, store, take};
use crate::device::domain;
use crate::error::{Class, Failure, status};
use crate::link::{Ended, Message};
use crate::memory::{self, Buffer};
use crate::plan::Plan;
use crate::request::Request;
use crate::{links, mpi_thread};
use gdsync::Access;
use libc::{c_char, c_int, c_void};
use std::ffi::CString;
use std::slice;
use std::sync::Arc;

/// An [`Arc`] of a message, as C has it.
type MessageHandle = *const c_void;

/// Learns how a message has ended: its operation, the class of its failure or 0, the text of that, and the bytes received.
type EndedOfC = unsafe extern "C" fn(operation: *mut c_void, class: c_int, text: *const c_char, bytes: u64);

/// Makes a link that sends (`sends` is not 0) or receives.
///
/// # Safety
/// `made` is a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_link(sends: c_int, made: *mut RequestHandle) -> c_int {
    status(|| {
        // SAFETY: a link has no memory of its own; the caller's.
        unsafe { make(Plan::Link { sends: sends != 0 }, made) }?;
        // SAFETY: the caller's; it was stored above.
        links::add(&unsafe { handle("the link", *made) }?);
        mpi_thread::look_now_and_then();
        Ok(())
    })
}

/// Makes a message of a buffer of `bytes` bytes.
///
/// # Safety
/// The memory stays until the message has ended, and the program uses it only as MPI allows. The link is as for
/// [`gdsync_mpi_request_free`](super::gdsync_mpi_request_free). `operation` is what is handed to the function of
/// [`gdsync_mpi_links_go_on`]. `made` is a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_message(
    link: RequestHandle,
    operation: *mut c_void,
    buffer: *mut c_void,
    bytes: u64,
    made: *mut MessageHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let link: Arc<Request> = unsafe { handle("the link", link) }?;
        let domain = domain()?;
        let sends = link.with_link(|link, _| link.sends)?;
        if sends && bytes > domain.part {
            let most = domain.part;
            let text = format!(
                "the message has {bytes} bytes, and on a linked communicator at most {most} (GDSYNC_MPI_PART_BYTES): send it in pieces"
            );
            return Err(Failure::new(Class::Argument, text));
        }
        let buffer = Buffer { address: buffer.expose_provenance(), bytes: length(bytes.min(domain.part))? };
        let access = if sends { Access::empty() } else { Access::LOCAL_WRITE };
        // SAFETY: the caller's. No key leaves the process.
        let slices = unsafe { memory::of_message(&domain.cache, buffer, access) }?;
        let message = Message::new(operation.expose_provenance(), slices);
        let raw = Arc::into_raw(Arc::new(message));
        // SAFETY: the caller's.
        unsafe { store(made, raw.cast()) }.inspect_err(|_| {
            // SAFETY: made above, and nothing else has it.
            drop(unsafe { Arc::from_raw(raw) });
        })
    })
}

/// Frees C's share of a message. Its work goes on.
///
/// # Safety
/// The message is null or was made by this library and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_message_free(message: MessageHandle) -> c_int {
    // SAFETY: the caller's.
    status(|| unsafe { take::<Message>("the message", message) }.map(drop))
}

/// A link and a message of it.
///
/// # Safety
/// As [`gdsync_mpi_message_enqueue`].
unsafe fn both(link: RequestHandle, message: MessageHandle) -> Result<(Arc<Request>, Arc<Message>), Failure> {
    // SAFETY: the caller's.
    unsafe { Ok((handle("the link", link)?, handle("the message", message)?)) }
}

/// Gives a message to a stream. `by_stream` gets 1 where the stream and the card do everything; with 0, the message is the
/// thread's.
///
/// # Safety
/// As [`gdsync_mpi_enqueue`](super::gdsync_mpi_enqueue) for the stream, [`gdsync_mpi_message_free`] for the message and
/// [`gdsync_mpi_request_free`](super::gdsync_mpi_request_free) for the link; `by_stream` is a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_message_enqueue(
    link: RequestHandle,
    kind: c_int,
    stream: *const *mut c_void,
    message: MessageHandle,
    by_stream: *mut c_int,
) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let (link, message) = unsafe { both(link, message) }?;
        // SAFETY: the caller's.
        let queue = unsafe { queue(kind, stream) }?;
        let given = links::enqueue(&link, &queue, &message)?;
        // SAFETY: the caller's.
        unsafe { store(by_stream, given.into()) }
    })
}

/// A stream has triggered a message of the thread's.
///
/// # Safety
/// As [`gdsync_mpi_message_enqueue`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_message_trigger(link: RequestHandle, message: MessageHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let (link, message) = unsafe { both(link, message) }?;
        link.with_link(|link, _| link.trigger(&message))
    })
}

/// A message of the thread's is not to be sent or received.
///
/// # Safety
/// As [`gdsync_mpi_message_enqueue`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_message_take_back(link: RequestHandle, message: MessageHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let (link, message) = unsafe { both(link, message) }?;
        link.with_link(|link, _| link.take_back(&message))
    })
}

/// The thread is to say how a message ends.
///
/// # Safety
/// As [`gdsync_mpi_message_enqueue`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_message_watch(link: RequestHandle, message: MessageHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let (link, message) = unsafe { both(link, message) }?;
        link.with_link(|link, _| link.watch(&message))?;
        mpi_thread::wake();
        Ok(())
    })
}

/// Waits on the CPU for a message that a stream has posted. `bytes` gets what was received.
///
/// # Safety
/// As [`gdsync_mpi_message_enqueue`]; `bytes` is a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_message_wait(
    link: RequestHandle,
    message: MessageHandle,
    bytes: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let (link, message) = unsafe { both(link, message) }?;
        let received = links::complete(&link, &message)?;
        // SAFETY: the caller's.
        unsafe { store(bytes, received) }
    })
}

/// Has a stream wait until messages have ended that streams have posted.
///
/// # Safety
/// As [`gdsync_mpi_message_enqueue`]; `messages` are `number` handles.
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
        // SAFETY: the caller's.
        let queue = unsafe { queue(kind, stream) }?;
        if messages.is_null() {
            return Err(null("the list of messages"));
        }
        // SAFETY: the caller's.
        let list = unsafe { slice::from_raw_parts(messages, number) };
        // SAFETY: the caller's.
        let list = list.iter().map(|each| unsafe { handle("a message", *each) });
        links::wait(&queue, &list.collect::<Result<Vec<_>, Failure>>()?)
    })
}

/// What the thread does for all links. `outstanding` gets how many messages it has to look at.
///
/// # Safety
/// `ended` may be called with the operations of messages that are the thread's, or are watched, once for each.
/// `outstanding` is a valid place. No other thread calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_links_go_on(ended: Option<EndedOfC>, outstanding: *mut c_int) -> c_int {
    status(|| {
        let (messages, number) = links::go_on()?;
        // SAFETY: the caller's.
        unsafe { report(ended, messages) }?;
        // SAFETY: the caller's.
        unsafe { store(outstanding, number as c_int) }
    })
}

/// Ends what a second does not complete. The thread has ended.
///
/// # Safety
/// As [`gdsync_mpi_links_go_on`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_links_finish(ended: Option<EndedOfC>) -> c_int {
    // SAFETY: the caller's.
    status(|| unsafe { report(ended, links::finish()?) })
}

/// # Safety
/// As [`gdsync_mpi_links_go_on`].
unsafe fn report(ended: Option<EndedOfC>, messages: Vec<Ended>) -> Result<(), Failure> {
    let ended = ended.ok_or_else(|| null("the function"))?;
    for (operation, outcome) in messages {
        let operation = std::ptr::with_exposed_provenance_mut(operation);
        let (class, text, bytes) = match outcome {
            Ok(bytes) => (0, CString::default(), bytes),
            // A text with a zero is none of this library's.
            Err(failure) => (failure.class as c_int, CString::new(failure.text).unwrap_or_default(), 0),
        };
        // SAFETY: the caller's; the text lives until the function returns.
        unsafe { ended(operation, class, text.as_ptr(), bytes) };
    }
    Ok(())
}
