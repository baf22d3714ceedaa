//! The thread that calls MPI in the place of streams: it starts operations when streams trigger them, in order, and
//! has MPI progress until they have completed. It sleeps while there are none.

use crate::error::{Class, Failure};
use crate::flag::Flag;
use crate::stream::{LAST, PROBE_AFTER};
use crate::turn::Turn;
use gdsync::memop::Word32;
use gdsync_sys::contain::contain;
use gdsync_sys::pause::Pause;
use libc::{c_int, c_void};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

/// What the C part does with MPI: `struct gdsync_mpi_calls` of `c/engine.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// Starts an operation that a stream has triggered, or gives it up: then `is_given_up` is not 0.
    pub start: unsafe extern "C" fn(operation: *mut c_void, is_given_up: c_int),
    /// Has MPI progress. Returns how much is outstanding.
    pub progress: unsafe extern "C" fn() -> c_int,
}

/// An operation of the C part.
#[derive(Debug)]
pub(crate) struct Operation {
    /// The C part's name of it.
    operation: usize,
    /// It has completed.
    pub(crate) flag: Flag,
}

impl Operation {
    /// # Safety
    /// `operation` is what [`Calls::start`] takes, and stays valid until that was called with it.
    pub(crate) unsafe fn new(operation: *mut c_void) -> Result<Self, Failure> {
        Ok(Operation { operation: operation.expose_provenance(), flag: Flag::new()? })
    }

    /// Waits on the CPU until it has completed.
    pub(crate) fn wait(&self) {
        let mut pause = Pause::new();
        while !self.flag.is_set() {
            pause.pause();
        }
    }

    fn start(&self, calls: Calls, is_given_up: bool) {
        let operation = std::ptr::with_exposed_provenance_mut(self.operation);
        // SAFETY: the promise of `new`; each operation is taken out of the list once.
        unsafe { (calls.start)(operation, is_given_up.into()) }
    }
}

struct MpiThread {
    state: Mutex<State>,
    /// There is work, or the thread is to end.
    work: Condvar,
}

static THREAD: MpiThread = MpiThread { state: Mutex::new(State::new()), work: Condvar::new() };

struct State {
    thread: Option<(Calls, JoinHandle<()>)>,
    is_ending: bool,
    /// Operations that were not triggered when the thread looked last, in the order of the program's calls.
    waiting: VecDeque<(Arc<Operation>, Turn)>,
    /// The C part has something outstanding.
    is_busy: bool,
    /// Counts what has made it busy.
    wakes: u64,
    /// An idle thread looks all the same, every [`PROBE_AFTER`].
    looks: bool,
}

impl State {
    const fn new() -> Self {
        State {
            thread: None,
            is_ending: false,
            waiting: VecDeque::new(),
            is_busy: false,
            wakes: 0,
            looks: false,
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.is_busy
    }

    /// Takes out the operations that streams have triggered, in the order in which MPI is to see them.
    ///
    /// Of one stream, that is its own order. Streams that the program orders by events have the order of the
    /// program's calls, which an event cannot go against. That holds where the words are read at one moment: an
    /// operation behind an event must not be seen without the one before it. So they are read until none has changed.
    fn take_triggered(&mut self) -> Vec<Arc<Operation>> {
        let mut words: Vec<(&Word32, u32)> = Vec::new();
        for (_, turn) in &self.waiting {
            if !words.iter().any(|(word, _)| word.addr() == turn.word.addr()) {
                words.push((&turn.word, turn.word.load()));
            }
        }
        loop {
            let mut is_stable = true;
            for (word, value) in &mut words {
                let now = word.load();
                is_stable &= std::mem::replace(value, now) == now;
            }
            if is_stable {
                break;
            }
        }
        let is_reached = |turn: &Turn| {
            let word = words.iter().find(|(word, _)| word.addr() == turn.word.addr());
            word.is_some_and(|(_, value)| turn.is_reached_at(*value))
        };
        let triggered: Vec<bool> = self.waiting.iter().map(|(_, turn)| is_reached(turn)).collect();
        if !triggered.contains(&true) {
            return Vec::new();
        }
        let (mut taken, mut rest) = (Vec::new(), VecDeque::new());
        for (waiting, is_triggered) in self.waiting.drain(..).zip(triggered) {
            if is_triggered {
                taken.push(waiting.0);
            } else {
                rest.push_back(waiting);
            }
        }
        self.waiting = rest;
        taken
    }
}

impl MpiThread {
    fn run(&self, calls: Calls) {
        let (mut pause, mut outstanding) = (Pause::new(), 0);
        loop {
            let mut state = self.state.lock();
            while state.is_idle() && !state.is_ending {
                pause = Pause::new();
                if !state.looks {
                    self.work.wait(&mut state);
                } else if self.work.wait_for(&mut state, PROBE_AFTER).timed_out() {
                    break;
                }
            }
            if state.is_ending {
                return;
            }
            let (triggered, wakes) = (state.take_triggered(), state.wakes);
            drop(state);
            triggered.iter().for_each(|operation| operation.start(calls, false));
            // SAFETY: the C part's function, which may be called by this thread at any time.
            let now = unsafe { (calls.progress)() };
            let mut state = self.state.lock();
            state.is_busy = now > 0 || state.wakes != wakes;
            drop(state);
            if triggered.is_empty() && now == outstanding {
                pause.pause();
            } else {
                pause = Pause::new();
            }
            outstanding = now;
        }
    }
}

/// Starts the thread.
///
/// # Errors
/// [`Class::Request`] where it runs; [`Class::Memory`] where there is no thread to be had.
///
/// # Safety
/// The functions may be called by another thread until [`stop`].
pub(crate) unsafe fn start(calls: Calls) -> Result<(), Failure> {
    let mut state = THREAD.state.lock();
    if state.thread.is_some() {
        return Err(Failure::new(Class::Request, "the library is initialized: call MPIX_Init once"));
    }
    state.is_ending = false;
    let run = move || {
        if let Err(message) = contain(|| THREAD.run(calls)) {
            tracing::error!(message, "the thread that calls MPI has ended, which is a defect");
        }
    };
    let thread = std::thread::Builder::new().name("gdsync-mpi".to_owned()).spawn(run);
    let thread =
        thread.map_err(|error| Failure::new(Class::Memory, format!("a thread that calls MPI: {error}")))?;
    state.thread = Some((calls, thread));
    Ok(())
}

/// Ends the thread: gives the streams a second, and gives up what they have not triggered by then. What the C part has
/// outstanding is left to that.
pub(crate) fn stop() {
    let mut pause = Pause::new();
    while !THREAD.state.lock().is_idle() && pause.elapsed() < LAST {
        pause.pause();
    }
    let mut state = THREAD.state.lock();
    state.is_ending = true;
    let Some((calls, thread)) = state.thread.take() else { return };
    let waiting = std::mem::take(&mut state.waiting);
    state.is_busy = false;
    drop(state);
    THREAD.work.notify_all();
    if thread.join().is_err() {
        tracing::error!("the thread that calls MPI has panicked");
    }
    if !waiting.is_empty() {
        tracing::warn!(operations = waiting.len(), "operations that no stream has triggered are given up");
    }
    waiting.iter().for_each(|(operation, _)| operation.start(calls, true));
}

/// Enters an operation, before its stream is given the trigger.
///
/// # Errors
/// [`Class::Request`] where the thread does not run.
pub(crate) fn enter(operation: &Arc<Operation>, turn: Turn) -> Result<(), Failure> {
    let mut state = THREAD.state.lock();
    if state.thread.is_none() {
        return Err(Failure::new(Class::Request, "the library is not initialized: call MPIX_Init first"));
    }
    state.waiting.push_back((operation.clone(), turn));
    drop(state);
    THREAD.work.notify_all();
    Ok(())
}

/// Takes an operation back whose trigger the stream has refused.
pub(crate) fn take_back(operation: &Arc<Operation>) {
    THREAD.state.lock().waiting.retain(|(waiting, _)| !Arc::ptr_eq(waiting, operation));
}

/// The C part has something outstanding that no stream has triggered.
pub(crate) fn wake() {
    let mut state = THREAD.state.lock();
    state.is_busy = true;
    state.wakes += 1;
    drop(state);
    THREAD.work.notify_all();
}

/// There are messages which the thread has to look at now and then, while nothing of its own is outstanding.
pub(crate) fn look_now_and_then() {
    THREAD.state.lock().looks = true;
    THREAD.work.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync::PinnedMemory;

    fn operation(name: usize) -> Arc<Operation> {
        Arc::new(Operation { operation: name, flag: Flag::new().unwrap() })
    }

    #[test]
    fn operations_are_taken_in_the_order_of_the_calls_as_far_as_their_streams_have_passed() {
        let memory = PinnedMemory::allocate(8).unwrap();
        let (one, other) = (Word32::new(&memory, 0).unwrap(), Word32::new(&memory, 4).unwrap());
        // The numbers of a stream wrap.
        one.store(u32::MAX - 1);
        let mut state = State::new();
        let turns = [(&one, u32::MAX), (&other, 1), (&one, 0), (&other, 2), (&one, 1)];
        for (name, (word, number)) in turns.into_iter().enumerate() {
            state.waiting.push_back((operation(name), Turn { word: word.clone(), number }));
        }
        let mut taken = || state.take_triggered().iter().map(|each| each.operation).collect::<Vec<_>>();
        assert_eq!(taken(), []);
        other.store(1);
        one.store(0);
        assert_eq!(taken(), [0, 1, 2]);
        one.store(1);
        other.store(2);
        assert_eq!(taken(), [3, 4]);
        assert!(state.is_idle());
    }

    #[test]
    fn nothing_is_entered_while_the_thread_does_not_run() {
        let memory = PinnedMemory::allocate(4).unwrap();
        let turn = Turn { word: Word32::new(&memory, 0).unwrap(), number: 1 };
        let error = enter(&operation(0), turn).unwrap_err();
        assert!(error.text.contains("MPIX_Init"), "{error}");
    }
}
