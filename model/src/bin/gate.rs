//! Model of the gate between submissions and calls that wait for the GPU.
//!
//! `membarrier(2)` is part of the kernel: the models use the equivalent gate that fences on both sides.

#![allow(dead_code, reason = "the library uses more of its files than the models do")]

#[path = "../../../gdsync/src/cuda/gate.rs"]
mod gate;
pub(crate) mod util {
    pub(crate) use gdsync_model::sync;
}

use gate::{Busy, Gate};
use gdsync_model::{breaks, holds};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// State that submissions and the other calls must not access concurrently.
struct World {
    gate: Gate,
    busy: [Busy; 2],
    gpu: [UnsafeCell<u32>; 2],
}

impl World {
    fn new(fenced_by_system: bool) -> Arc<World> {
        let gpu = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Arc::new(World { gate: Gate::fenced(fenced_by_system), busy: Default::default(), gpu })
    }

    fn submit(&self, stream: usize) {
        let _submitting = self.gate.enter(&self.busy[stream]);
        // SAFETY: loom reports concurrent accesses.
        self.gpu[stream].with_mut(|gpu| unsafe { *gpu += 1 });
    }

    /// Accesses every stream's part, while no thread submits.
    fn collect(&self) {
        let Some(_closed) = self.gate.try_close() else { return };
        if self.busy.iter().any(Busy::is_set) {
            return;
        }
        for gpu in &self.gpu {
            // SAFETY: as above.
            gpu.with_mut(|gpu| unsafe { *gpu += 1 });
        }
    }
}

fn submit_and_collect(fenced_by_system: bool) -> impl Fn() {
    move || {
        let world = World::new(fenced_by_system);
        let other = world.clone();
        let submitter = thread::spawn(move || other.submit(0));
        world.collect();
        submitter.join().unwrap();
    }
}

fn main() {
    holds("no thread submits while the gate is closed", submit_and_collect(false));
    breaks("the submitting side without its fence", submit_and_collect(true));
    holds("a stream submits twice, one thread collects", || {
        let world = World::new(false);
        let other = world.clone();
        let submitter = thread::spawn(move || {
            other.submit(0);
            other.submit(0);
        });
        world.collect();
        submitter.join().unwrap();
    });
    // (Without a submitter: one that repeatedly finds the gate closed makes loom's paths endless.)
    holds("two threads collect, one at a time", || {
        let world = World::new(false);
        let other = world.clone();
        let thread = thread::spawn(move || other.collect());
        world.collect();
        thread.join().unwrap();
    });
}
