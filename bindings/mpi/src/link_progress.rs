//! The links of the process: enqueues their messages on streams, waits for them, and has the thread that calls MPI progress them.

use crate::error::Failure;
use crate::link::{Ended, Enqueued, Message};
use crate::queue::Queue;
use crate::request::Request;
use crate::stream::{AnyStream, FINALIZE_TIMEOUT, ROOM_POLL};
use gdsync::Stream;
use gdsync::stream::Cpu;
use gdsync_sys::pause::Pause;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program waits for room in a link while no message completes.
const ROOM_TIMEOUT: Duration = Duration::from_millis(20);

static LINKS: Mutex<Vec<Weak<Request>>> = Mutex::new(Vec::new());

pub(crate) fn add(link: &Arc<Request>) {
    let mut links = LINKS.lock();
    links.retain(|known| known.strong_count() > 0);
    links.push(Arc::downgrade(link));
}

fn all() -> Vec<Arc<Request>> {
    LINKS.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Enqueues a message on a queue's stream. Returns false if the message is deferred to the thread, which the stream has to trigger.
///
/// # Errors
/// [`Link::enqueue`](crate::link::Link::enqueue)'s.
pub(crate) fn enqueue(link: &Request, queue: &Queue, message: &Arc<Message>) -> Result<bool, Failure> {
    let (mut completed, mut since) = (None, Instant::now());
    loop {
        let (given, now) = link.with_link(|link, connection| {
            let given = match &queue.stream {
                AnyStream::Soft(stream) => link.enqueue(message, connection.as_deref(), stream),
                AnyStream::Cuda(stream) => link.enqueue(message, connection.as_deref(), stream),
            };
            (given, link.completed())
        })?;
        match given? {
            Enqueued::Posted => return Ok(true),
            Enqueued::Deferred => return Ok(false),
            Enqueued::Full if completed != Some(now) => (completed, since) = (Some(now), Instant::now()),
            Enqueued::Full if since.elapsed() >= ROOM_TIMEOUT => {
                link.with_link(|link, _| link.stop_waiting_for_room())?;
            }
            Enqueued::Full => {}
        }
        thread::sleep(ROOM_POLL);
    }
}

/// Makes a queue's stream wait for messages that streams have posted.
pub(crate) fn enqueue_wait(queue: &Queue, messages: &[Arc<Message>]) -> Result<(), Failure> {
    Message::with_active(messages, |requests| queue.stream.wait(requests, &mut || {}))
}

/// Waits on the CPU until a message that a stream has posted has ended. Returns the bytes received.
///
/// # Errors
/// The failure of the message.
pub(crate) fn wait_on_cpu(link: &Request, message: &Message) -> Result<u64, Failure> {
    let mut pause = Pause::new();
    loop {
        link.with_link(|link, _| link.is_idle())?;
        if let Some(outcome) = message.outcome() {
            return outcome;
        }
        pause.pause();
    }
}

fn cpu() -> Result<&'static Stream<Cpu>, Failure> {
    static STREAM: OnceLock<Stream<Cpu>> = OnceLock::new();
    if let Some(known) = STREAM.get() {
        return Ok(known);
    }
    let made = Stream::new(Cpu::new())?;
    Ok(STREAM.get_or_init(|| made))
}

/// Does the thread's work for all links. Returns the ended messages to report, and the number of messages that need the thread.
pub(crate) fn progress() -> Result<(Vec<Ended>, usize), Failure> {
    let (mut ended, mut outstanding) = (Vec::new(), 0);
    for link in all() {
        let cpu = cpu()?;
        // A link that is freed and idle has no work any more.
        let gone = link.with_link(|link, connection| {
            let (each, number) = link.progress(connection, cpu);
            ended.extend(each);
            outstanding += number;
        });
        if let Err(error) = gone {
            tracing::trace!(%error, "a link has gone");
        }
    }
    Ok((ended, outstanding))
}

/// Ends all links, after the thread has ended: gives the cards a second, and then aborts outstanding messages. Returns the ended
/// messages to report.
pub(crate) fn finish() -> Result<Vec<Ended>, Failure> {
    let (links, mut ended) = (all(), Vec::new());
    let is_idle = |link: &Arc<Request>| link.with_link(|link, _| link.is_idle()).unwrap_or(true);
    for is_last in [false, true] {
        let mut pause = Pause::new();
        while pause.elapsed() < FINALIZE_TIMEOUT {
            ended.extend(progress()?.0);
            if links.iter().all(is_idle) {
                break;
            }
            pause.pause();
        }
        if is_last {
            break;
        }
        for link in links.iter().filter(|link| !is_idle(link)) {
            tracing::warn!("the library is finalized, and a link has messages: they are aborted");
            link.with_link(|link, _| link.finish())?;
            link.abort();
        }
    }
    Ok(ended)
}
