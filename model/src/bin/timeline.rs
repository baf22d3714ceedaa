//! Model of timelines and points: memory that a stream has passed belongs to the CPU again.

#![allow(dead_code, reason = "the library uses more of its files than the models do")]

#[path = "../../../gdsync/src/memory/timeline.rs"]
mod timeline;
pub(crate) mod util {
    pub(crate) use gdsync_model::sync;
}

mod memory {
    //! A loom word instead of pinned memory.

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct HostAddr(pub(crate) u64);

    pub(crate) mod arena {
        use super::HostAddr;
        use loom::sync::atomic::AtomicU32;

        #[derive(Debug)]
        pub(crate) struct Block(AtomicU32);

        /// Arena lines behave like any other memory.
        #[derive(Debug)]
        pub(crate) struct Arena;

        impl Block {
            pub(crate) fn of(_: &std::sync::Arc<Arena>) -> std::io::Result<Self> {
                Self::new()
            }

            pub(crate) fn new() -> std::io::Result<Self> {
                Ok(Block(AtomicU32::new(0)))
            }

            pub(crate) fn addr(&self, offset: usize) -> HostAddr {
                HostAddr(offset as u64)
            }

            pub(crate) fn word32(&self) -> &AtomicU32 {
                &self.0
            }
        }
    }
}

use gdsync_model::{breaks, holds};
use timeline::{Timeline, TimelinePoint};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// A timeline, and memory used by each of two submissions.
struct World {
    timeline: Arc<Timeline>,
    memory: [UnsafeCell<u32>; 2],
}

impl World {
    fn new(before: TimelinePoint) -> Arc<World> {
        let timeline = Timeline::new(0).unwrap();
        // The CPU reads it at least once in 2^31 points.
        for point in (0..=before.0).step_by(1 << 30).chain([before.0]) {
            timeline.declare_passed(TimelinePoint(point));
            timeline.progress();
        }
        Arc::new(World { timeline, memory: [UnsafeCell::new(0), UnsafeCell::new(0)] })
    }

    /// Performs a submission, or reclaims its memory.
    fn touch(&self, which: usize) {
        // SAFETY: loom reports concurrent accesses.
        self.memory[which].with_mut(|memory| unsafe { *memory += 1 });
    }

    fn reap(&self, points: [TimelinePoint; 2]) {
        for (which, point) in points.into_iter().enumerate() {
            if self.timeline.has_passed(point) {
                self.touch(which);
            }
        }
    }
}

/// Performs two submissions as a stream, and writes their points or only the last.
fn perform(before: TimelinePoint, both: bool) -> impl Fn() {
    move || {
        let world = World::new(before);
        let (one, two) = (before.next(), before.next().next());
        let other = world.clone();
        let stream = thread::spawn(move || {
            other.touch(0);
            if both {
                // A stream's write releases everything before it, as this does.
                other.timeline.declare_passed(one);
            }
            other.touch(1);
            other.timeline.declare_passed(two);
        });
        world.reap([one, two]);
        stream.join().unwrap();
        assert!(world.timeline.has_passed(one) && world.timeline.has_passed(two));
    }
}

fn main() {
    let start = TimelinePoint::default();
    let last = (0..3).fold(start, |point, _| point.next());
    holds("memory is taken back when its point is written", perform(start, true));
    holds("one point covers the submissions before it", perform(last, false));
    let wrapping = TimelinePoint(u32::MAX.into());
    holds("the word goes around", perform(wrapping, true));
    holds("what one thread has seen, another need not look for", move || {
        let world = World::new(start);
        let (stream, other) = (world.clone(), world.clone());
        let stream = thread::spawn(move || {
            stream.touch(0);
            stream.timeline.declare_passed(start.next());
            stream.touch(1);
            stream.timeline.declare_passed(start.next().next());
        });
        // This thread reads but reclaims nothing.
        let looker = thread::spawn(move || {
            other.timeline.progress();
        });
        world.reap([start.next(), start.next().next()]);
        stream.join().unwrap();
        looker.join().unwrap();
        assert!(world.timeline.has_passed(start.next().next()));
    });
    breaks("memory is taken back without looking", move || {
        let world = World::new(start);
        let other = world.clone();
        let stream = thread::spawn(move || {
            other.touch(0);
            other.timeline.declare_passed(start.next());
        });
        world.touch(0);
        stream.join().unwrap();
    });
    holds("a dead timeline's last access is over", move || {
        let world = World::new(start);
        let other = world.clone();
        let stream = thread::spawn(move || {
            other.touch(0);
            other.timeline.kill();
        });
        world.reap([start.next(), start]);
        stream.join().unwrap();
        assert!(world.timeline.has_passed(start.next()));
    });
}
