//! Threads of this process that do a card's work in the place of its own thread: one that has rung, and one that waits
//! for what the card does.

use super::bell::Served;
use super::device::Shared;
use super::engine::Engine;
use std::sync::OnceLock;
use std::time::Instant;

/// Steps that a thread which has rung does at most.
const STEPS: usize = 4;

/// Most queue pairs of a card that other threads help. With many, one thread that takes the work of all together does it
/// sooner than threads that each do a step for one.
const QUEUE_PAIRS: usize = 64;

fn may_help(engine: &Engine) -> bool {
    !engine.rest.own_thread_only && engine.qps.len() <= QUEUE_PAIRS
}

/// A helper occupies a core.
fn most_helpers() -> u32 {
    static MOST: OnceLock<u32> = OnceLock::new();
    *MOST.get_or_init(|| std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32))
}

impl Shared {
    fn wake(&self) {
        self.sleeper.wake();
        // Rings that follow need not.
        self.set_rests(false);
    }
}

impl Served for Shared {
    fn rung(&self, page: Option<u32>, lends_itself: bool) {
        page.into_iter().for_each(|page| self.told.push(page));
        if !lends_itself {
            return self.wake();
        }
        // Who holds the lock works, or is about to sleep.
        let Some(mut engine) = self.engine.try_lock() else { return self.wake() };
        if !may_help(&engine) {
            drop(engine);
            return self.wake();
        }
        let now = Instant::now();
        let all = (0..STEPS).any(|_| !self.step(&mut engine, now));
        self.deliver_events(engine);
        if !all {
            self.wake();
        }
    }

    fn serve(&self, helps: bool) -> bool {
        // Another helper that works now finds what there is. One that joins waits for a step at most.
        let mut engine = match self.engine.try_lock() {
            Some(engine) => engine,
            None if helps => return true,
            None => self.engine.lock(),
        };
        if !may_help(&engine) {
            engine.rest.helpers -= u32::from(helps);
            return false;
        }
        if !helps {
            if engine.rest.helpers >= most_helpers() {
                return false;
            }
            engine.rest.helpers += 1;
            if engine.rest.helpers == 1 && engine.rest.asleep {
                // Peers need not wake the thread.
                engine.fabric.finish_sleep();
            }
        }
        self.step(&mut engine, Instant::now());
        self.deliver_events(engine);
        true
    }

    /// The last one announces once more that the card's own thread sleeps, or wakes it.
    fn leave(&self) {
        let mut engine = self.engine.lock();
        engine.rest.helpers -= 1;
        if engine.rest.helpers == 0 && engine.rest.asleep {
            let sleeps_on = !engine.rest.own_thread_only && self.prepare_sleep(&mut engine, Instant::now());
            if !sleeps_on {
                self.sleeper.raise();
            }
        }
        self.deliver_events(engine);
    }
}
