//! All links of the process: their messages are given to streams, waited for, and looked after by the thread that calls
//! MPI.

use crate::error::Failure;
use crate::link::{Ended, Given, Message};
use crate::queue::Queue;
use crate::request::Request;
use crate::stream::{AHEAD, AnyStream, LAST};
use gdsync::Stream;
use gdsync::stream::Cpu;
use gdsync_sys::pause::Pause;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// A program that is ahead of its stream waits as long as messages complete, and this much longer.
const PATIENCE: Duration = Duration::from_millis(20);

static LINKS: Mutex<Vec<Weak<Request>>> = Mutex::new(Vec::new());

/// Has the thread look after a link.
pub(crate) fn add(link: &Arc<Request>) {
    let mut links = LINKS.lock();
    links.retain(|known| known.strong_count() > 0);
    links.push(Arc::downgrade(link));
}

fn all() -> Vec<Arc<Request>> {
    LINKS.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Gives a message to a queue's stream. Returns false where it is the thread's: then the stream is to trigger it.
///
/// # Errors
/// A failed link; what the card or the stream refuses for good.
pub(crate) fn enqueue(link: &Request, queue: &Queue, message: &Arc<Message>) -> Result<bool, Failure> {
    let (mut completed, mut since) = (None, Instant::now());
    loop {
        let (given, now) = link.with_link(|link, channel| {
            let given = match &queue.stream {
                AnyStream::Soft(stream) => link.give(message, channel.as_deref(), stream),
                AnyStream::Cuda(stream) => link.give(message, channel.as_deref(), stream),
            };
            (given, link.completed())
        })?;
        match given? {
            Given::ToStream => return Ok(true),
            Given::ToThread => return Ok(false),
            Given::Later if completed != Some(now) => (completed, since) = (Some(now), Instant::now()),
            Given::Later if since.elapsed() >= PATIENCE => {
                link.with_link(|link, _| link.lose_patience())?;
            }
            Given::Later => {}
        }
        thread::sleep(AHEAD);
    }
}

/// Has a queue's stream wait for messages that streams have posted.
pub(crate) fn wait(queue: &Queue, messages: &[Arc<Message>]) -> Result<(), Failure> {
    Message::with_active(messages, |requests| queue.stream.wait(requests, &mut || {}))
}

/// Waits on the CPU until a message has ended that a stream has posted: returns the bytes received.
///
/// # Errors
/// The failure of the message.
pub(crate) fn complete(link: &Request, message: &Message) -> Result<u64, Failure> {
    let mut pause = Pause::new();
    loop {
        link.with_link(|link, _| link.is_idle())?;
        if let Some(outcome) = message.outcome() {
            return outcome;
        }
        pause.pause();
    }
}

/// The thread's own stream.
fn cpu() -> Result<&'static Stream<Cpu>, Failure> {
    static STREAM: OnceLock<Stream<Cpu>> = OnceLock::new();
    if let Some(known) = STREAM.get() {
        return Ok(known);
    }
    let made = Stream::new(Cpu::new())?;
    Ok(STREAM.get_or_init(|| made))
}

/// What the thread does for all links. Returns the messages that have ended, and how many it has to look at.
pub(crate) fn go_on() -> Result<(Vec<Ended>, usize), Failure> {
    let (mut ended, mut outstanding) = (Vec::new(), 0);
    for link in all() {
        let cpu = cpu()?;
        // One that is freed and has nothing left is none any more.
        let gone = link.with_link(|link, channel| {
            let (each, number) = link.go_on(channel, cpu);
            ended.extend(each);
            outstanding += number;
        });
        if let Err(error) = gone {
            tracing::trace!(%error, "a link has gone");
        }
    }
    Ok((ended, outstanding))
}

/// The end of the library, after the thread's: gives the cards a second, and aborts what they have not completed then.
/// Returns the messages that have ended.
pub(crate) fn finish() -> Result<Vec<Ended>, Failure> {
    let (links, mut ended) = (all(), Vec::new());
    let is_idle = |link: &Arc<Request>| link.with_link(|link, _| link.is_idle()).unwrap_or(true);
    for is_last in [false, true] {
        let mut pause = Pause::new();
        while pause.elapsed() < LAST {
            ended.extend(go_on()?.0);
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
