//! Helpers of the unit tests of queue pairs.

use crate::qp::CompletionQueue;
use crate::queue::Completion;
use std::time::{Duration, Instant};

/// No wait of these tests takes longer, however busy the machine is.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) fn poll(queue: &CompletionQueue) -> Completion {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(completion) = queue.poll().unwrap() {
            return completion;
        }
        assert!(Instant::now() < deadline, "no completion came");
        std::thread::yield_now();
    }
}
