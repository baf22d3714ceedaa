//! Having a stream wait for a list of requests.

use super::progress::Progress;
use super::{ListError, PersistentError, Request};
use crate::batch::{Batch, Descriptor};
use crate::memop::{Condition, MemOpStream, Named};
use crate::qp::PreparedWait;
use crate::queue::{Status, Writer};
use crate::stream::{Posted, Stream};
use gdsync_sys::pause::Pause;
use std::sync::Arc;
use std::time::Duration;

/// Has a stream wait, in one batch, until the newest start of each request of a list has completed, well or
/// not: one that has failed ends the wait for itself, and for others of its queue pair, whose work is
/// flushed. After receives that completed well, later operations of the stream find the messages in the
/// buffers. Waits on the CPU up to `timeout` while the stream has no room. Returns what the stream was
/// given.
///
/// # Errors
/// [`ListError`], which names the request, with [`PersistentError::Inactive`]; [`PersistentError::Post`]. The
/// requests do not count as waited for then.
pub fn wait_all<B: MemOpStream>(
    requests: &mut [&mut dyn Request],
    stream: &Stream<B>,
    timeout: Duration,
) -> Result<Posted, ListError> {
    let mut pause = Pause::new();
    let posted = loop {
        match wait_now(requests, stream) {
            Ok(posted) => break posted,
            Err(error) if error.source.is_lack_of_room() && pause.elapsed() < timeout => pause.pause(),
            Err(error) => return Err(error),
        }
    };
    for request in requests {
        request.core().awaited_on = Some(stream.timeline.clone());
    }
    Ok(posted)
}

fn wait_now<B: MemOpStream>(requests: &[&mut dyn Request], stream: &Stream<B>) -> Result<Posted, ListError> {
    let mut batch = Batch::with_capacity(requests.len());
    let mut words = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        let (core, ..) = request.parts();
        let claim = core.active.back().ok_or(PersistentError::Inactive).map_err(ListError::of(index))?;
        // Of work that has completed, the word is written.
        let wait = match claim.completion() {
            Some(_) => None,
            None => PreparedWait::of_claim(&core.queue_pair, &core.queue, claim),
        };
        match wait {
            Some(wait) => batch.push(Descriptor::WaitCq(wait)),
            None => {
                let place = claim.status.word().place();
                words.push(Descriptor::Wait32(place, Condition::And, Status::OK | Status::FAILED));
                // Before the post, which returns behind the wait where the CPU is the stream.
                if claim.completion().is_none() {
                    Arc::new(Progress::new(&core.queue, &core.queue_pair, claim)).watch();
                }
            }
        }
    }
    // Behind the others, which are one run.
    batch.descriptors.extend(words);
    let mut done = Posted { operations: 0, submissions: 0 };
    let posted = stream.post_whole(batch, &mut done);
    posted.map_err(|error| ListError { index: None, source: error.source.into() })?;
    Ok(done)
}
