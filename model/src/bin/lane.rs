//! Lanes and tickets: memory that a stream has passed is the CPU's again.

#![allow(dead_code, reason = "the library uses more of its files than the models do")]

#[path = "../../../gdsync/src/lane.rs"]
mod lane;
pub(crate) use gdsync_model::sync;

mod memory {
    //! In the place of pinned memory: a word of loom's.

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct HostAddr(pub(crate) u64);

    pub(crate) mod arena {
        use super::HostAddr;
        use loom::sync::atomic::AtomicU32;

        #[derive(Debug)]
        pub(crate) struct Line(AtomicU32);

        /// Lines of an arena are like any other.
        #[derive(Debug)]
        pub(crate) struct Arena;

        impl Line {
            pub(crate) fn of(_: &std::sync::Arc<Arena>) -> std::io::Result<Self> {
                Self::new()
            }

            pub(crate) fn new() -> std::io::Result<Self> {
                Ok(Line(AtomicU32::new(0)))
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
use lane::{Lane, Ticket};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// A lane, and memory that each of two submissions names.
struct World {
    lane: Arc<Lane>,
    memory: [UnsafeCell<u32>; 2],
}

impl World {
    fn new(before: Ticket) -> Arc<World> {
        let lane = Lane::new(0).unwrap();
        lane.declare_passed(before);
        Arc::new(World { lane, memory: [UnsafeCell::new(0), UnsafeCell::new(0)] })
    }

    /// Whoever performs a submission, or takes its memory back.
    fn touch(&self, which: usize) {
        // SAFETY: loom reports who accesses it at the same time.
        self.memory[which].with_mut(|memory| unsafe { *memory += 1 });
    }

    fn reap(&self, tickets: [Ticket; 2]) {
        for (which, ticket) in tickets.into_iter().enumerate() {
            if self.lane.has_passed(ticket) {
                self.touch(which);
            }
        }
    }
}

/// A stream performs two submissions, and writes their tickets or only the last.
fn perform(before: Ticket, both: bool) -> impl Fn() {
    move || {
        let world = World::new(before);
        let (one, two) = (before.next(), before.next().next());
        let other = world.clone();
        let stream = thread::spawn(move || {
            other.touch(0);
            if both {
                // A stream's write is a release of everything before it, as this is.
                other.lane.declare_passed(one);
            }
            other.touch(1);
            other.lane.declare_passed(two);
        });
        world.reap([one, two]);
        stream.join().unwrap();
        assert!(world.lane.has_passed(one) && world.lane.has_passed(two));
    }
}

fn main() {
    let start = Ticket::default();
    let last = (0..3).fold(start, |ticket, _| ticket.next());
    holds("memory is taken back when its ticket is written", perform(start, true));
    holds("one ticket covers the submissions before it", perform(last, false));
    let wrapping = Ticket(u32::MAX);
    holds("tickets wrap around", perform(wrapping, true));
    breaks("memory is taken back without looking", move || {
        let world = World::new(start);
        let other = world.clone();
        let stream = thread::spawn(move || {
            other.touch(0);
            other.lane.declare_passed(start.next());
        });
        world.touch(0);
        stream.join().unwrap();
    });
    holds("a dead lane's last access is over", move || {
        let world = World::new(start);
        let other = world.clone();
        let stream = thread::spawn(move || {
            other.touch(0);
            other.lane.kill();
        });
        world.reap([start.next(), start]);
        stream.join().unwrap();
        assert!(world.lane.has_passed(start.next()));
    });
}
