//! Timelines of streams that were dropped with work outstanding: a GPU may forget memory only when
//! their work is done.

use super::timeline::{Timeline, TimelinePoint};
use parking_lot::Mutex;
use std::sync::Arc;

/// Timelines of streams that were dropped before they had passed their last submission, with the
/// point that ends it.
static LEFT_BEHIND: Mutex<Vec<(Arc<Timeline>, TimelinePoint)>> = Mutex::new(Vec::new());

/// Remembers that a stream was dropped with work outstanding, up to a point.
pub(crate) fn add(timeline: &Arc<Timeline>, end: TimelinePoint) {
    let mut left = LEFT_BEHIND.lock();
    left.retain(|(timeline, end)| !timeline.has_passed(*end));
    left.push((timeline.clone(), end));
}

/// True where a stream of that device was dropped with work that it has not passed yet.
pub(crate) fn any(device: u64) -> bool {
    let mut left = LEFT_BEHIND.lock();
    left.retain(|(timeline, end)| !timeline.has_passed(*end));
    left.iter().any(|(timeline, _)| timeline.device() == device)
}
