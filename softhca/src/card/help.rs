//! Work of a card on other threads of the process: a thread that has rung a doorbell, and threads that wait for the
//! card.

use super::bell::Served;
use super::device::Shared;
use super::engine::Engine;
use std::sync::OnceLock;
use std::time::Instant;

/// Maximum number of steps by a thread that has rung.
const STEPS: usize = 4;

/// Maximum number of queue pairs of a card that other threads help. Beyond it, one thread that serves all is faster
/// than threads that each do a step for one.
const QUEUE_PAIRS: usize = 64;

fn may_help(engine: &Engine) -> bool {
    !engine.rest.own_thread_only && engine.qps.len() <= QUEUE_PAIRS
}

/// Returns the maximum number of helpers: the number of cores, as each helper occupies one.
fn most_helpers() -> u32 {
    static MOST: OnceLock<u32> = OnceLock::new();
    *MOST.get_or_init(|| std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32))
}

impl Shared {
    fn wake(&self) {
        self.sleeper.wake();
        // Further doorbells need no wake-up.
        self.set_rests(false);
    }
}

impl Served for Shared {
    fn rung(&self, page: Option<u32>, lends_itself: bool) {
        page.into_iter().for_each(|page| self.told.push(page));
        if !lends_itself {
            return self.wake();
        }
        // The thread that holds the lock works, or is about to sleep.
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
        // A helper that holds the lock finds all work. A joining thread waits for one step at most.
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
                // Peers need not wake the card's thread while a helper works.
                engine.fabric.finish_sleep();
            }
        }
        self.step(&mut engine, Instant::now());
        self.deliver_events(engine);
        true
    }

    /// The last helper announces again that the card's own thread sleeps, or wakes that thread.
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
