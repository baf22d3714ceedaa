//! The thread that calls MPI in the place of streams: it starts operations when streams trigger them, in order, and
//! has MPI progress until they have completed. It sleeps while there are none.

use crate::error::{Class, Failure};
use crate::launches::Launches;
use crate::memory;
use crate::operation::{Calls, Operation, Signal};
use crate::stream::{LAST, PROBE_AFTER};
use crate::turn::Turn;
use gdsync::cuda::RelaxedCapture;
use gdsync::memop::Word32;
use gdsync_sys::contain::contain;
use gdsync_sys::pause::Pause;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Graphs that have triggered nothing for so long do not go on.
const QUIET: Duration = Duration::from_millis(50);

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
    /// Operations in graphs, until those are gone.
    in_graphs: Vec<Arc<Operation>>,
    /// Shares of graphs that are gone: what drops them may call no function of CUDA.
    released: Vec<Arc<Operation>>,
    /// The functions of a thread that has ended.
    ended: Option<Calls>,
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
            in_graphs: Vec::new(),
            released: Vec::new(),
            ended: None,
            is_busy: false,
            wakes: 0,
            looks: false,
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.in_graphs.is_empty() && !self.is_busy
    }

    /// Nothing is triggered, or will be unless a graph is launched again.
    fn is_done(&self) -> bool {
        !self.is_busy && self.waiting.is_empty() && self.launched().next().is_none()
    }

    /// Operations that a launch has triggered.
    fn launched(&self) -> impl Iterator<Item = &Arc<Operation>> {
        self.in_graphs.iter().filter(|operation| operation.launches().is_ok_and(Launches::is_triggered))
    }

    /// Takes out the operations that no graph names any more.
    fn take_gone(&mut self) -> Vec<Arc<Operation>> {
        let are_over = |operation: &mut Arc<Operation>| operation.launches().is_ok_and(Launches::are_over);
        self.in_graphs.extract_if(.., are_over).collect()
    }

    /// Takes the operations that streams and launches have triggered, in the order in which MPI is to see them.
    ///
    /// Nothing behind the trigger of a launch is triggered on its stream before that is taken here (`graph`). So what is seen
    /// together with it was enqueued earlier, if it is of the same stream, or of one that an event orders: turns come
    /// first. And launches that are seen together have no order. That holds as turns are read after launches, and before a
    /// launch is taken.
    fn take_triggered(&mut self) -> Vec<Arc<Operation>> {
        let launched: Vec<_> = self.launched().cloned().collect();
        let mut taken = self.take_turns();
        launched.iter().filter_map(|operation| operation.launches().ok()).for_each(Launches::take);
        taken.extend(launched);
        taken
    }

    /// Takes out the operations whose turns streams have come to.
    ///
    /// Of one stream, they are in its own order. Streams that the program orders by events have the order of the
    /// program's calls, which an event cannot go against. That holds where the words are read at one moment: an
    /// operation behind an event must not be seen without the one before it. So they are read until none has changed.
    fn take_turns(&mut self) -> Vec<Arc<Operation>> {
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
        let (mut pause, mut outstanding, mut relaxed) = (Pause::new(), 0, None);
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
            state.is_busy |= !triggered.is_empty();
            drop(state);
            drop(released);
            gone.iter().for_each(|operation| operation.gone(calls));
            // MPI may call what a capture of the program forbids other threads.
            if relaxed.is_none() && !triggered.is_empty() && memory::has_driver() {
                relaxed = Some(RelaxedCapture::new());
            }
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
    state.ended = Some(calls);
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

/// After [`stop`], and the C part's end of what was outstanding: gives up what launches still trigger, so that they pass
/// their waits, and ends the operations in graphs.
pub(crate) fn end_graphs() {
    let mut state = THREAD.state.lock();
    let Some(calls) = state.ended.take() else { return };
    let (mut pause, mut last) = (Pause::new(), Duration::ZERO);
    while !state.in_graphs.is_empty() && pause.elapsed() < LAST && pause.elapsed() - last < QUIET {
        let launched: Vec<_> = state.launched().cloned().collect();
        drop(state);
        for operation in &launched {
            operation.launches().into_iter().for_each(Launches::take);
            operation.start(calls, true);
            last = pause.elapsed();
        }
        pause.pause();
        state = THREAD.state.lock();
    }
    let (left, released) = (std::mem::take(&mut state.in_graphs), std::mem::take(&mut state.released));
    drop(state);
    drop(released);
    left.iter().for_each(|operation| operation.gone(calls));
}

/// Enters an operation, before its stream is given the trigger: with its turn, or none where launches trigger it.
///
/// # Errors
/// [`Class::Request`] where the thread does not run.
pub(crate) fn enter(operation: &Arc<Operation>, turn: Option<Turn>) -> Result<(), Failure> {
    let mut state = THREAD.state.lock();
    if state.thread.is_none() {
        return Err(Failure::new(Class::Request, "the library is not initialized: call MPIX_Init first"));
    }
    match turn {
        Some(turn) => state.waiting.push_back((operation.clone(), turn)),
        None => state.in_graphs.push(operation.clone()),
    }
    drop(state);
    THREAD.work.notify_all();
    Ok(())
}

/// Takes an operation back whose trigger the stream, or the graph, has refused.
pub(crate) fn take_back(operation: &Arc<Operation>) {
    let mut state = THREAD.state.lock();
    state.waiting.retain(|(waiting, _)| !Arc::ptr_eq(waiting, operation));
    state.in_graphs.retain(|other| !Arc::ptr_eq(other, operation));
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
    use crate::launches::{DONE, TRIGGERED};
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
            state.waiting.push_back((operation(name), turn));
        }
        let mut taken = || state.take_triggered().iter().map(|each| each.operation).collect::<Vec<_>>();
        assert_eq!(taken(), [0usize; 0]);
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
        state.in_graphs.push(repeated.clone());
        state.waiting.push_back((operation(1), turn.clone()));
        let taken =
            |state: &mut State| state.take_triggered().iter().map(|each| each.operation).collect::<Vec<_>>();
        for _launch in 0..3 {
            assert_eq!(taken(&mut state), [0usize; 0]);
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
        // What is seen together with a launch was enqueued earlier, wherever it is in the list.
        assert_eq!(taken(&mut state), [1, 0]);
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
        let turn = Turn { word: Word32::new(&memory, 0).unwrap(), number: 1 };
        let error = enter(&operation(0), Some(turn)).unwrap_err();
        assert!(error.text.contains("MPIX_Init"), "{error}");
    }
}
