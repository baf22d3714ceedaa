//! The thread that looks at memory in the place of streams. It sleeps while there is nothing to look at.

use crate::util::pause::{Pause, use_fine_timers};
use crate::verbs::error::Error;
use parking_lot::{Condvar, Mutex};

const NAME: &str = "gdsync-checked";

/// Something to look at until it has happened.
pub(crate) trait Watched: Send {
    /// Looks, and does what is to be done; true when that was all. Called by the one thread, with no lock held.
    fn look(&mut self) -> bool;
}

struct Watcher {
    state: Mutex<State>,
    /// Signalled when there is more to look at.
    work: Condvar,
}

struct State {
    started: bool,
    new: Vec<Box<dyn Watched>>,
}

static WATCHER: Watcher =
    Watcher { state: Mutex::new(State { started: false, new: Vec::new() }), work: Condvar::new() };

/// Starts the thread, where it does not run yet.
///
/// # Errors
/// [`Error::Thread`].
pub(crate) fn start() -> Result<(), Error> {
    let mut state = WATCHER.state.lock();
    if !state.started {
        std::thread::Builder::new()
            .name(NAME.to_owned())
            .spawn(|| WATCHER.run())
            .map_err(|source| Error::Thread { name: NAME, source })?;
        state.started = true;
    }
    Ok(())
}

/// Has the thread, which was started, look at something.
pub(crate) fn watch(watched: Box<dyn Watched>) {
    WATCHER.state.lock().new.push(watched);
    WATCHER.work.notify_one();
}

impl Watcher {
    fn run(&self) {
        use_fine_timers();
        let mut watched: Vec<Box<dyn Watched>> = Vec::new();
        let mut pause = Pause::new();
        loop {
            let mut state = self.state.lock();
            while watched.is_empty() && state.new.is_empty() {
                self.work.wait(&mut state);
            }
            if !state.new.is_empty() {
                watched.append(&mut state.new);
                pause = Pause::new();
            }
            drop(state);
            let before = watched.len();
            watched.retain_mut(|one| !one.look());
            if watched.len() == before {
                pause.pause();
            } else {
                pause = Pause::new();
            }
        }
    }
}
