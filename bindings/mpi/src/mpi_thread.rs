//! The thread that calls MPI in the place of streams: it starts operations when streams trigger them, in order, and
//! has MPI progress until they have completed. It sleeps while there are none.

use crate::error::{Class, Failure};
use crate::operation::{Calls, Operation, Signal, Trigger};
use crate::stream::{LAST, PROBE_AFTER};
use gdsync::memop::Word32;
use gdsync_sys::contain::contain;
use gdsync_sys::pause::Pause;
use libc::c_void;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

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
    /// Those in graphs stay.
    waiting: VecDeque<(Arc<Operation>, Trigger)>,
    /// Shares of graphs that are gone: what drops them may call no function of CUDA.
    released: Vec<Arc<Operation>>,
    /// Those in graphs, of a thread that has ended.
    left: Vec<Arc<Operation>>,
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
            released: Vec::new(),
            left: Vec::new(),
            is_busy: false,
            wakes: 0,
            looks: false,
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.is_busy
    }

    /// Nothing is triggered, or will be unless a graph is launched again.
    fn is_done(&self) -> bool {
        let waits = |(_, trigger): &(_, Trigger)| match trigger {
            Trigger::Turn(_) => true,
            Trigger::Launches(word) => trigger.is_reached_at(word.load()),
        };
        !self.is_busy && !self.waiting.iter().any(waits)
    }

    /// Takes out the operations that no graph names any more.
    fn take_gone(&mut self) -> Vec<Arc<Operation>> {
        let mut gone = Vec::new();
        self.waiting.retain(|(operation, _)| {
            let are_over = matches!(&operation.signal, Signal::Launches(launches) if launches.are_over());
            if are_over {
                gone.push(operation.clone());
            }
            !are_over
        });
        gone
    }

    /// Takes out the operations that streams have triggered, in the order in which MPI is to see them.
    ///
    /// Of one stream, that is its own order. Streams that the program orders by events have the order of the
    /// program's calls, which an event cannot go against. That holds where the words are read at one moment: an
    /// operation behind an event must not be seen without the one before it. So they are read until none has changed.
    fn take_triggered(&mut self) -> Vec<Arc<Operation>> {
        let mut words: Vec<(&Word32, u32)> = Vec::new();
        for (_, trigger) in &self.waiting {
            if !words.iter().any(|(word, _)| word.addr() == trigger.word().addr()) {
                words.push((trigger.word(), trigger.word().load()));
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
        let is_reached = |trigger: &Trigger| {
            let word = words.iter().find(|(word, _)| word.addr() == trigger.word().addr());
            word.is_some_and(|(_, value)| trigger.is_reached_at(*value))
        };
        let triggered: Vec<bool> = self.waiting.iter().map(|(_, trigger)| is_reached(trigger)).collect();
        if !triggered.contains(&true) {
            return Vec::new();
        }
        let (mut taken, mut rest) = (Vec::new(), VecDeque::new());
        for (waiting, is_triggered) in self.waiting.drain(..).zip(triggered) {
            match &waiting.0.signal {
                Signal::Flag(_) if is_triggered => taken.push(waiting.0),
                Signal::Launches(launches) if is_triggered => {
                    launches.take();
                    taken.push(waiting.0.clone());
                    rest.push_back(waiting);
                }
                _ => rest.push_back(waiting),
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
            let (gone, released) = (state.take_gone(), std::mem::take(&mut state.released));
            drop(state);
            drop(released);
            gone.iter().for_each(|operation| operation.gone(calls));
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
    while !THREAD.state.lock().is_done() && pause.elapsed() < LAST {
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
    let (in_graphs, once): (Vec<_>, Vec<_>) =
        waiting.into_iter().partition(|(_, trigger)| matches!(trigger, Trigger::Launches(_)));
    if !once.is_empty() {
        tracing::warn!(operations = once.len(), "operations that no stream has triggered are given up");
    }
    once.iter().for_each(|(operation, _)| operation.start(calls, true));
    for (operation, trigger) in in_graphs {
        // A launch goes on: its graph passes its waits.
        if trigger.is_reached_at(trigger.word().load()) {
            operation.start(calls, true);
        }
        THREAD.state.lock().left.push(operation);
    }
}

/// After [`stop`], and the C part's end of what was outstanding: ends the operations in graphs.
pub(crate) fn end_graphs(gone: unsafe extern "C" fn(operation: *mut c_void)) {
    let left = std::mem::take(&mut THREAD.state.lock().left);
    for operation in left {
        // SAFETY: the promise of `Operation::new`; it was taken out of the list.
        unsafe { gone(std::ptr::with_exposed_provenance_mut(operation.operation)) };
    }
}

/// Enters an operation, before its stream is given the trigger.
///
/// # Errors
/// [`Class::Request`] where the thread does not run.
pub(crate) fn enter(operation: &Arc<Operation>, trigger: Trigger) -> Result<(), Failure> {
    let mut state = THREAD.state.lock();
    if state.thread.is_none() {
        return Err(Failure::new(Class::Request, "the library is not initialized: call MPIX_Init first"));
    }
    state.waiting.push_back((operation.clone(), trigger));
    drop(state);
    THREAD.work.notify_all();
    Ok(())
}

/// Takes an operation back whose trigger the stream has refused.
pub(crate) fn take_back(operation: &Arc<Operation>) {
    THREAD.state.lock().waiting.retain(|(waiting, _)| !Arc::ptr_eq(waiting, operation));
}

/// A graph that named an operation's word is gone. Calls no function of CUDA, and drops nothing.
pub(crate) fn release(operation: Arc<Operation>) {
    if let Signal::Launches(launches) = &operation.signal {
        launches.release();
    }
    THREAD.state.lock().released.push(operation);
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
    use crate::flag::Flag;
    use crate::launches::{DONE, Launches, TRIGGERED};
    use crate::turn::Turn;
    use gdsync::PinnedMemory;

    fn operation(name: usize) -> Arc<Operation> {
        Arc::new(Operation { operation: name, signal: Signal::Flag(Flag::new().unwrap()) })
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
            let turn = Turn { word: word.clone(), number };
            state.waiting.push_back((operation(name), Trigger::Turn(turn)));
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
    fn launches_trigger_an_operation_until_its_graphs_are_gone() {
        let launches = Launches::new().unwrap();
        let word = launches.word.clone();
        let repeated = Arc::new(Operation { operation: 0, signal: Signal::Launches(launches) });
        let launches = repeated.launches().unwrap();
        let mut state = State::new();
        let memory = PinnedMemory::allocate(4).unwrap();
        let turn = Turn { word: Word32::new(&memory, 0).unwrap(), number: 1 };
        state.waiting.push_back((repeated.clone(), Trigger::Launches(word.clone())));
        state.waiting.push_back((operation(1), Trigger::Turn(turn.clone())));
        let taken =
            |state: &mut State| state.take_triggered().iter().map(|each| each.operation).collect::<Vec<_>>();
        for _launch in 0..3 {
            assert_eq!(taken(&mut state), []);
            word.store(TRIGGERED);
            assert!(!state.is_done());
            assert_eq!(taken(&mut state), [0]);
            assert!(!repeated.signal.is_set());
            repeated.signal.set();
            assert!(repeated.signal.is_set() && word.load() == DONE);
        }
        // Two graphs have it, and then none; the last launch goes on.
        launches.hold();
        word.store(TRIGGERED);
        turn.word.store(1);
        assert_eq!(taken(&mut state), [0, 1]);
        assert!(state.is_done() && !state.is_idle());
        launches.release();
        launches.release();
        assert!(state.take_gone().is_empty());
        repeated.signal.set();
        assert_eq!(state.take_gone().len(), 1);
        assert!(state.is_idle());
        assert_eq!(operation(2).launches().unwrap_err().class, Class::Request);
    }

    #[test]
    fn nothing_is_entered_while_the_thread_does_not_run() {
        let memory = PinnedMemory::allocate(4).unwrap();
        let turn = Trigger::Turn(Turn { word: Word32::new(&memory, 0).unwrap(), number: 1 });
        let error = enter(&operation(0), turn).unwrap_err();
        assert!(error.text.contains("MPIX_Init"), "{error}");
    }
}
