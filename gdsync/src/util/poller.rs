//! Threads that poll memory on behalf of streams and kernels.
//!
//! Some events reach the process only as a changed word of memory: a completion entry that the card writes, a
//! doorbell that a stream writes into a mailbox. A [`Poller`] is a thread that polls such words. Each purpose has a
//! separate poller with its name, so that purposes do not delay each other.

mod stepped;

pub use stepped::Simulation;
pub(crate) use stepped::{CallWait, now};

use crate::util::contain::{drop_contained, log};
use gdsync_sys::contain::contain;
use gdsync_sys::pause::{Pause, use_fine_timers};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::{io, thread};

/// Something to poll until it is done.
pub(crate) trait Task: Send + Sync {
    /// Reads the memory once, and acts on a change. The poller's thread calls it, and holds no lock.
    fn poll(&self) -> Polled;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    /// Nothing new.
    Nothing,
    /// Something new, and more may follow.
    Progress,
    /// The task is complete. The poller drops it.
    Done,
}

/// A polling thread, and its tasks.
///
/// The thread starts when it is first needed, and then lasts as long as the process. It sleeps while it has no task.
/// Otherwise it polls all tasks in turn, with pauses that grow while none makes progress.
pub(crate) struct Poller {
    pub(crate) name: &'static str,
    state: Mutex<PollerState>,
    /// Signalled when there is a new task.
    added: Condvar,
}

struct PollerState {
    started: bool,
    /// Tasks that the thread has not taken over yet.
    new: Vec<Arc<dyn Task>>,
}

impl Poller {
    /// A poller whose thread has not started.
    pub(crate) const fn new(name: &'static str) -> Self {
        let state = PollerState { started: false, new: Vec::new() };
        Poller { name, state: Mutex::new(state), added: Condvar::new() }
    }

    /// Starts the thread, unless it runs. After an error, the next call tries again.
    pub(crate) fn start(&'static self) -> io::Result<()> {
        if stepped::is_simulated() {
            return Ok(());
        }
        self.start_as(thread::Builder::new())
    }

    fn start_as(&'static self, builder: thread::Builder) -> io::Result<()> {
        let mut state = self.state.lock();
        if !state.started {
            builder.name(self.name.to_owned()).spawn(|| self.run())?;
            state.started = true;
        }
        Ok(())
    }

    /// Makes the thread poll a task. Polling begins once [`Self::start`] has succeeded.
    pub(crate) fn add(&self, task: Arc<dyn Task>) {
        let Some(task) = stepped::keep(task) else { return };
        self.state.lock().new.push(task);
        self.added.notify_one();
    }

    fn run(&self) {
        use_fine_timers();
        let mut tasks: Vec<Arc<dyn Task>> = Vec::new();
        let mut pause = Pause::new();
        loop {
            let mut state = self.state.lock();
            while tasks.is_empty() && state.new.is_empty() {
                self.added.wait(&mut state);
            }
            let mut progress = !state.new.is_empty();
            tasks.append(&mut state.new);
            // Unlocked: tasks take locks, and may hold the last handle of a queue pair, whose drop takes locks.
            drop(state);
            let mut next = 0;
            while let Some(task) = tasks.get(next) {
                let polled = poll(self.name, &**task);
                progress |= polled != Polled::Nothing;
                if polled == Polled::Done {
                    // It may hold the last handle of the program's memory.
                    drop_contained(tasks.swap_remove(next), "what a polling task held");
                } else {
                    next += 1;
                }
            }
            if progress {
                pause = Pause::new();
            } else {
                pause.pause();
            }
        }
    }
}

/// Polls once. A task that panics ends, and the thread goes on with the others.
fn poll(thread: &str, task: &dyn Task) -> Polled {
    contain(|| task.poll()).unwrap_or_else(|panic| {
        log(|| tracing::error!(thread, panic, "a polling task panicked: what waits for it is not woken"));
        Polled::Done
    })
}

#[cfg(test)]
mod tests;
