//! Timelines: how the CPU learns of a stream's progress.
//!
//! A timeline is one 32-bit progress word in pinned memory. Each wait that is posted on the stream takes a *point*,
//! the timeline's next number, and the stream writes a point into the word after the waits that it covers. Points are
//! assigned and written in stream order, so a word that has reached a point proves that the stream has passed
//! everything posted up to that point.
//!
//! The CPU counts points in 64 bits, so that a passed point stays passed, however many follow. The word has the
//! lowest 32 bits. The upper bits come from the last value that the CPU has read: each read of the word advances it,
//! and a stream reads at least once in 2^31 points, as it retires its submissions in flight.

use crate::memory::HostAddr;
use crate::memory::arena::Block;
use crate::util::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::{fmt, io};

/// A position in a stream's order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TimelinePoint(pub(crate) u64);

impl TimelinePoint {
    /// The number that the stream writes: the lowest 32 bits of the position.
    pub fn get(self) -> u32 {
        self.0 as u32
    }

    pub(crate) fn next(self) -> TimelinePoint {
        self.after(1)
    }

    /// The point `points` after this one. 2^64 points take a stream longer than any machine runs.
    pub(crate) fn after(self, points: u32) -> TimelinePoint {
        TimelinePoint(self.0.wrapping_add(points.into()))
    }
}

#[derive(Debug)]
pub(crate) struct Timeline {
    id: u64,
    /// Id of the stream's device context.
    device: u64,
    line: Block,
    /// True if the stream will never access memory again, whatever the word says.
    dead: AtomicBool,
    /// The last point of a dropped stream that does not write it, and what tells that it has passed.
    end: OnceLock<(TimelinePoint, Arc<dyn EndProbe>)>,
    /// The furthest point that a read of the word has found.
    seen: AtomicU64,
}

/// Tells whether a stream has performed all that was submitted to it, also once the stream is gone. It does not block.
pub trait EndProbe: fmt::Debug + Send + Sync {
    /// Returns whether it has; any thread may ask.
    fn has_ended(&self) -> bool;
}

static NEXT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

impl Timeline {
    /// A timeline for a stream of that device.
    pub(crate) fn new(device: u64) -> io::Result<Arc<Timeline>> {
        Ok(Arc::new(Timeline {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            device,
            line: Block::new()?,
            dead: AtomicBool::new(false),
            end: OnceLock::new(),
            seen: AtomicU64::new(0),
        }))
    }

    /// Its number, unique in the process.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    pub(crate) fn word(&self) -> HostAddr {
        self.line.addr(0)
    }

    /// The last point that the stream wrote.
    ///
    /// Acquire: if a thread reuses memory because of this value, the stream's earlier operations must not see its
    /// writes, and it must see their effects.
    pub(crate) fn progress(&self) -> TimelinePoint {
        // Before the word: the thread that stored this had read the word at that point or later, so the word is not
        // older. If the stream advances meanwhile, the result is too small, never too large.
        let seen = self.seen.load(Ordering::Acquire);
        let further = self.line.word32().load(Ordering::Acquire).wrapping_sub(seen as u32);
        if further == 0 || further > i32::MAX as u32 {
            return TimelinePoint(seen);
        }
        let now = TimelinePoint(seen).after(further);
        // Release: a thread that reads this instead of the word synchronizes with the stream as this thread did.
        self.seen.fetch_max(now.0, Ordering::Release);
        now
    }

    /// True once the stream has passed the point, and from then on.
    pub(crate) fn has_passed(&self, point: TimelinePoint) -> bool {
        // Acquire: as in `progress`. A point seen before needs no read of the word.
        point.0 <= self.seen.load(Ordering::Acquire) || point.0 <= self.progress().0 || self.is_over(point)
    }

    /// Declares a point passed, for a stream that has drained, or that failed and will access nothing any more.
    pub(crate) fn declare_passed(&self, point: TimelinePoint) {
        self.line.word32().store(point.get(), Ordering::Release);
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Lets the last point of a dropped stream, which does not write it, count as passed once `probe` says that it has ended.
    pub(crate) fn end_by(&self, last: TimelinePoint, probe: Arc<dyn EndProbe>) {
        let _ = self.end.set((last, probe));
    }

    /// True if the stream does nothing more before the point, although its word says nothing of that.
    fn is_over(&self, point: TimelinePoint) -> bool {
        match self.end.get() {
            Some((last, probe)) if !self.is_dead() && point.0 <= last.0 && probe.has_ended() => {
                self.declare_passed(*last);
                true
            }
            _ => self.is_dead(),
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(crate) fn blocked_on(&self, point: TimelinePoint) -> Blocked {
        Blocked { timeline: self.id, point, progress: self.progress() }
    }
}

/// An obstacle: a stream that has not reached a point yet.
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
    use proptest::prelude::*;

    #[test]
    fn a_point_stays_passed_however_many_follow() {
        let timeline = Timeline::new(0).unwrap();
        assert!(timeline.has_passed(TimelinePoint(0)) && !timeline.has_passed(TimelinePoint(1)));
        // The word wraps around four times, a quarter at a time.
        for quarter in 1..=16u64 {
            let at = quarter << 30;
            timeline.declare_passed(TimelinePoint(at));
            for passed in [0, 1, at / 2, at - 1, at] {
                assert!(timeline.has_passed(TimelinePoint(passed)), "point {passed} at {at}");
            }
            for ahead in [at + 1, at + (1 << 31), at + (1 << 32)] {
                assert!(!timeline.has_passed(TimelinePoint(ahead)), "point {ahead} at {at}");
            }
        }
        assert_eq!(timeline.progress(), TimelinePoint(1 << 34));
    }

    proptest! {
        /// Compares with a 64-bit counter that is written whole.
        #[test]
        fn a_word_of_32_bits_counts_as_one_of_64(
            start in prop::sample::select(vec![0u64, (1 << 31) - 3, (1 << 32) - 3, u64::MAX / 2]),
            steps in proptest::collection::vec(prop_oneof![0u32..4, 0..=i32::MAX as u32], 1..40),
            lag in 0u64..1 << 33,
        ) {
            let timeline = Timeline::new(0).unwrap();
            timeline.seen.store(start, Ordering::Relaxed);
            timeline.declare_passed(TimelinePoint(start));
            let mut at = TimelinePoint(start);
            for step in steps {
                at = at.after(step);
                timeline.declare_passed(at);
                prop_assert!(timeline.has_passed(TimelinePoint(at.0.saturating_sub(lag))));
                prop_assert!(!timeline.has_passed(at.next()) && !timeline.has_passed(at.after(i32::MAX as u32)));
                prop_assert_eq!(timeline.progress(), at);
            }
        }
    }

    impl EndProbe for AtomicBool {
        fn has_ended(&self) -> bool {
            self.load(Ordering::Acquire)
        }
    }

    #[test]
    fn the_probe_of_a_dropped_stream_tells_that_it_has_passed_its_last_point() {
        let timeline = Timeline::new(0).unwrap();
        timeline.declare_passed(TimelinePoint(1));
        let has_ended = Arc::new(AtomicBool::new(false));
        timeline.end_by(TimelinePoint(3), has_ended.clone());
        let passed = || [1, 2, 3, 4].map(|point| timeline.has_passed(TimelinePoint(point)));
        assert_eq!(passed(), [true, false, false, false]);
        has_ended.store(true, Ordering::Release);
        assert_eq!(passed(), [true, true, true, false]);
        assert!(!timeline.is_dead(), "its sends were rung");
        assert_eq!(timeline.progress(), TimelinePoint(3));
    }

    #[test]
    fn a_dead_timeline_has_passed_everything() {
        let timeline = Timeline::new(0).unwrap();
        assert!(timeline.blocked_on(TimelinePoint(4)).to_string().contains("at point 0 and must reach 4"));
        timeline.kill();
        assert!(timeline.has_passed(TimelinePoint(4)));
    }
}
