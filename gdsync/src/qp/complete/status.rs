//! Waits of streams at a completion queue, as the process's status ([`gdsync_status`]) shows it.

use crate::qp::complete::CompletionQueueInner;
use gdsync_status::{Kept, MOST_NAMED, Published, Source, Status, Wait};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long another thread may hold the queue's lock, which is long where it makes or destroys a queue pair.
const PATIENCE: Duration = Duration::from_millis(20);
/// Most open waits of a queue that are examined.
const MOST_WAITS: usize = 1024;

/// Publishes the queue's waits until the returned value is dropped.
pub(super) fn publish(queue: Weak<CompletionQueueInner>) -> Published {
    gdsync_status::publish(Arc::new(Waits(queue)))
}

struct Waits(Weak<CompletionQueueInner>);

impl Source for Waits {
    fn add_to(&self, status: &mut Status, kept: &mut Kept) {
        let Some(queue) = self.0.upgrade() else { return };
        let open = open_waits(&queue, kept.patience(PATIENCE));
        if !open.is_empty() {
            let number = queue.number();
            let mut queue_pairs =
                queue.queue_pairs.lock().iter().map(|(number, _)| *number).collect::<Vec<_>>();
            queue_pairs.truncate(MOST_NAMED);
            for (index, stream, mark) in open {
                let what = format!("completion {index} of queue {number:#x}");
                let queue_pairs = queue_pairs.clone();
                status.add_wait(stream, Wait { what, mark, time: None, queue_pairs });
            }
        }
        // This may be the last handle by now.
        kept.keep(queue);
    }
}

/// Returns entries, streams and points of the unmet waits; none if the queue stays locked.
fn open_waits(queue: &CompletionQueueInner, patience: Duration) -> Vec<(u32, u64, u64)> {
    let begin = Instant::now();
    let state = loop {
        match queue.try_lock() {
            Some(state) => break state,
            None if begin.elapsed() > patience => return Vec::new(),
            None => std::thread::yield_now(),
        }
    };
    let open = state.open_waits().take(MOST_WAITS);
    open.map(|(index, timeline, point)| (index, timeline.id(), point.0)).collect()
}
