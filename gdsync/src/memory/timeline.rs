//! Timelines: how the CPU learns what a stream has passed.
//!
//! Every stream has a timeline, one 32-bit progress word in pinned memory. Each wait that is posted
//! on the stream takes a *point*, the timeline's next number, and the stream writes a point into
//! the word after the waits it covers. Points are handed out and written in stream order, so a word
//! that has reached a point proves that everything posted up to that point is past. Comparisons are
//! cyclic: at most 2^31 points may be outstanding.

use crate::memory::HostAddr;
use crate::memory::arena::{Arena, Line};
use crate::util::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::{fmt, io};

/// A position in a stream's order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TimelinePoint(pub(crate) u32);

impl TimelinePoint {
    /// The number that the stream writes.
    pub fn get(self) -> u32 {
        self.0
    }

    pub(crate) fn next(self) -> TimelinePoint {
        TimelinePoint(self.0.wrapping_add(1))
    }
}

/// The progress word of one stream.
#[derive(Debug)]
pub(crate) struct Timeline {
    id: u64,
    /// Number of the device context that the stream belongs to.
    device: u64,
    line: Line,
    /// Set when the stream will never touch memory again, whatever the word says.
    dead: AtomicBool,
    /// The last point that the stream was given to write, or is about to be.
    expected: AtomicU32,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Timeline {
    /// The timeline of a stream of that device.
    pub(crate) fn new(device: u64) -> io::Result<Arc<Timeline>> {
        Ok(Self::on(device, Line::new()?))
    }

    /// A timeline with its word in that arena.
    pub(crate) fn of(device: u64, arena: &Arc<Arena>) -> io::Result<Arc<Timeline>> {
        Ok(Self::on(device, Line::of(arena)?))
    }

    fn on(device: u64, line: Line) -> Arc<Timeline> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Arc::new(Timeline { id, device, line, dead: AtomicBool::new(false), expected: AtomicU32::new(0) })
    }

    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    pub(crate) fn word(&self) -> HostAddr {
        self.line.addr(0)
    }

    /// The last point that the stream wrote.
    ///
    /// Acquire: a thread that reuses memory because of this value must not have its writes seen by
    /// the stream's earlier operations, nor miss their effects.
    pub(crate) fn progress(&self) -> TimelinePoint {
        TimelinePoint(self.line.word32().load(Ordering::Acquire))
    }

    pub(crate) fn has_passed(&self, point: TimelinePoint) -> bool {
        let distance = self.progress().0.wrapping_sub(point.0);
        distance <= i32::MAX as u32 || self.is_dead()
    }

    /// Says that a point is about to be posted, before it is.
    pub(crate) fn expect(&self, point: TimelinePoint) {
        self.expected.store(point.0, Ordering::Release);
    }

    /// The stream has passed all that was posted: to be asked where each submission writes its
    /// point.
    pub(crate) fn is_quiet(&self) -> bool {
        self.has_passed(TimelinePoint(self.expected.load(Ordering::Acquire)))
    }

    /// Declares everything passed. For a stream that has drained, or that failed and will touch
    /// nothing any more.
    pub(crate) fn declare_passed(&self, point: TimelinePoint) {
        self.line.word32().store(point.0, Ordering::Release);
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// The stream will never touch memory again.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(crate) fn blocked_on(&self, point: TimelinePoint) -> Blocked {
        Blocked { timeline: self.id, point, progress: self.progress() }
    }
}

/// What stands in the way: a stream that has not reached a point yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Number of the stream's timeline, unique in the process.
    pub timeline: u64,
    /// The point it has to reach.
    pub point: TimelinePoint,
    /// The point it had reached.
    pub progress: TimelinePoint,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "timeline {} is at point {} and must reach {}",
            self.timeline, self.progress.0, self.point.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_compare_cyclically() {
        let timeline = Timeline::new(0).unwrap();
        assert!(timeline.has_passed(TimelinePoint(0)) && !timeline.has_passed(TimelinePoint(1)));
        timeline.declare_passed(TimelinePoint(u32::MAX));
        assert!(
            timeline.has_passed(TimelinePoint(u32::MAX - 5))
                && !timeline.has_passed(TimelinePoint(0))
                && !timeline.has_passed(TimelinePoint(9))
        );
        timeline.declare_passed(TimelinePoint(2));
        assert!(
            timeline.has_passed(TimelinePoint(u32::MAX))
                && timeline.has_passed(TimelinePoint(2))
                && !timeline.has_passed(TimelinePoint(3))
        );
    }

    #[test]
    fn a_timeline_is_quiet_once_it_has_passed_what_is_expected_of_it() {
        let timeline = Timeline::new(0).unwrap();
        assert!(timeline.is_quiet());
        timeline.expect(TimelinePoint(2));
        timeline.declare_passed(TimelinePoint(1));
        assert!(!timeline.is_quiet());
        timeline.declare_passed(TimelinePoint(2));
        assert!(timeline.is_quiet());
    }

    #[test]
    fn a_dead_timeline_has_passed_everything() {
        let timeline = Timeline::new(0).unwrap();
        assert!(timeline.blocked_on(TimelinePoint(4)).to_string().contains("at point 0 and must reach 4"));
        timeline.kill();
        assert!(timeline.has_passed(TimelinePoint(4)));
    }
}
