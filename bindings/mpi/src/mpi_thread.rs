//! The thread that calls MPI on behalf of streams: it starts operations in the order in which streams trigger them, and has MPI
//! progress until they have completed. It sleeps while there are none.

use crate::error::{Class, Failure};
use crate::memory;
use crate::operation::LaunchWord;
use crate::operation::SequenceNumber;
use crate::operation::{Calls, Operation, Signal};
use crate::stream::{FINALIZE_TIMEOUT, PROBE_INTERVAL};
use gdsync::cuda::RelaxedCapture;
use gdsync::memop::Word32;
use gdsync_sys::contain::contain;
use gdsync_sys::pause::Pause;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Graphs that have triggered nothing for this long have ended.
const QUIET: Duration = Duration::from_millis(50);

struct MpiThread {
    state: Mutex<ThreadState>,
    /// Signals that there is work, or that the thread is to end.
    work: Condvar,
}

static THREAD: MpiThread = MpiThread { state: Mutex::new(ThreadState::new()), work: Condvar::new() };

struct ThreadState {
    thread: Option<(Calls, JoinHandle<()>)>,
    is_ending: bool,
    /// Operations that were not triggered when the thread last checked, in the order of the program's calls.
    waiting: VecDeque<(Arc<Operation>, SequenceNumber)>,
    /// Operations in graphs, until the graphs are destroyed.
    in_graphs: Vec<Arc<Operation>>,
    /// References that destroyed graphs held. The driver's callback cannot drop them, as it may not call CUDA.
    released: Vec<Arc<Operation>>,
    ended: Option<Calls>,
    is_busy: bool,
    wakes: u64,
    /// True if an idle thread calls the C part every [`PROBE_INTERVAL`].
    polls: bool,
}

impl ThreadState {
    const fn new() -> Self {
        ThreadState {
            thread: None,
            is_ending: false,
            waiting: VecDeque::new(),
            in_graphs: Vec::new(),
            released: Vec::new(),
            ended: None,
            is_busy: false,
            wakes: 0,
            polls: false,
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.in_graphs.is_empty() && !self.is_busy
    }

    /// Returns whether no operation is triggered, or can be without another launch of a graph.
    fn is_done(&self) -> bool {
        !self.is_busy && self.waiting.is_empty() && self.launched().next().is_none()
    }

    fn launched(&self) -> impl Iterator<Item = &Arc<Operation>> {
        self.in_graphs.iter().filter(|operation| operation.launch_word().is_ok_and(LaunchWord::is_triggered))
    }

    /// Removes the operations that no graph uses any more.
    fn take_retired(&mut self) -> Vec<Arc<Operation>> {
        let is_retired =
            |operation: &mut Arc<Operation>| operation.launch_word().is_ok_and(LaunchWord::is_retired);
        self.in_graphs.extract_if(.., is_retired).collect()
    }

    /// Takes the operations that streams and launches have triggered, in the order in which MPI has to see them.
    ///
    /// A launch's stream triggers nothing further until the thread has set the launch started (`graph`). So an operation that is
    /// seen together with a launch, on the same stream or on one that an event orders with it, was enqueued before the launch and
    /// comes first; launches that are seen together have no order. This requires that sequence words are read after the launch
    /// words and before a launch is set started.
    fn take_triggered(&mut self) -> Vec<Arc<Operation>> {
        let launched: Vec<_> = self.launched().cloned().collect();
        let mut taken = self.take_reached();
        launched
            .iter()
            .filter_map(|operation| operation.launch_word().ok())
            .for_each(LaunchWord::set_started);
        taken.extend(launched);
        taken
    }

    /// Removes the operations whose sequence numbers streams have reached.
    ///
    /// They are in the order of the program's calls, which is each stream's order and cannot contradict events between streams.
    /// This requires that all words are read at one moment: an operation after an event must not be seen without the one before
    /// the event. So the words are read until none has changed.
    fn take_reached(&mut self) -> Vec<Arc<Operation>> {
        let mut words: Vec<(&Word32, u32)> = Vec::new();
        for (_, number) in &self.waiting {
            if !words.iter().any(|(word, _)| word.addr() == number.word.addr()) {
                words.push((&number.word, number.word.load()));
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
        let is_reached = |number: &SequenceNumber| {
            let word = words.iter().find(|(word, _)| word.addr() == number.word.addr());
            word.is_some_and(|(_, value)| number.is_reached_at(*value))
        };
        let triggered: Vec<bool> = self.waiting.iter().map(|(_, number)| is_reached(number)).collect();
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
                if !state.polls {
                    self.work.wait(&mut state);
                } else if self.work.wait_for(&mut state, PROBE_INTERVAL).timed_out() {
                    break;
                }
            }
            if state.is_ending {
                return;
            }
            let (triggered, wakes) = (state.take_triggered(), state.wakes);
            let (retired, released) = (state.take_retired(), std::mem::take(&mut state.released));
            state.is_busy |= !triggered.is_empty();
            drop(state);
            drop(released);
            retired.iter().for_each(|operation| operation.retire(calls));
            // MPI may call CUDA functions that another thread's capture forbids.
            if relaxed.is_none() && !triggered.is_empty() && memory::has_driver() {
                relaxed = Some(RelaxedCapture::new());
            }
            triggered.iter().for_each(|operation| operation.start(calls, false));
            // SAFETY: the caller of `start` lets this thread call the function.
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
/// [`Class::Request`] if it runs; [`Class::Memory`] if no thread can be created.
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

/// Ends the thread. Streams get a second; operations that they have not triggered by then are given up. Outstanding operations stay
/// with the C part.
pub(crate) fn stop() {
    let mut pause = Pause::new();
    while !THREAD.state.lock().is_done() && pause.elapsed() < FINALIZE_TIMEOUT {
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

/// Ends the operations in graphs, after [`stop`] and after the C part has ended outstanding operations. Gives up what launches still
/// trigger, so that they pass their waits.
pub(crate) fn end_graphs() {
    let mut state = THREAD.state.lock();
    let Some(calls) = state.ended.take() else { return };
    let (mut pause, mut last) = (Pause::new(), Duration::ZERO);
    while !state.in_graphs.is_empty() && pause.elapsed() < FINALIZE_TIMEOUT && pause.elapsed() - last < QUIET
    {
        let launched: Vec<_> = state.launched().cloned().collect();
        drop(state);
        for operation in &launched {
            operation.launch_word().into_iter().for_each(LaunchWord::set_started);
            operation.start(calls, true);
            last = pause.elapsed();
        }
        pause.pause();
        state = THREAD.state.lock();
    }
    let (left, released) = (std::mem::take(&mut state.in_graphs), std::mem::take(&mut state.released));
    drop(state);
    drop(released);
    left.iter().for_each(|operation| operation.retire(calls));
}

/// Registers an operation before its stream gets the trigger: with its sequence number, or none if launches trigger it.
///
/// # Errors
/// [`Class::Request`] if the thread does not run.
pub(crate) fn register(operation: &Arc<Operation>, number: Option<SequenceNumber>) -> Result<(), Failure> {
    let mut state = THREAD.state.lock();
    if state.thread.is_none() {
        return Err(Failure::new(Class::Request, "the library is not initialized: call MPIX_Init first"));
    }
    match number {
        Some(number) => state.waiting.push_back((operation.clone(), number)),
        None => state.in_graphs.push(operation.clone()),
    }
    drop(state);
    THREAD.work.notify_all();
    Ok(())
}

/// Removes an operation whose trigger the stream or the graph has refused.
pub(crate) fn withdraw(operation: &Arc<Operation>) {
    let mut state = THREAD.state.lock();
    state.waiting.retain(|(waiting, _)| !Arc::ptr_eq(waiting, operation));
    state.in_graphs.retain(|other| !Arc::ptr_eq(other, operation));
}

/// Releases the reference of a destroyed graph. Calls no function of CUDA, and drops nothing.
pub(crate) fn release(operation: Arc<Operation>) {
    if let Signal::Launch(launch) = &operation.signal {
        launch.release();
    }
    THREAD.state.lock().released.push(operation);
}

/// Tells the thread that the C part has outstanding work that no stream triggers.
pub(crate) fn wake() {
    let mut state = THREAD.state.lock();
    state.is_busy = true;
    state.wakes += 1;
    drop(state);
    THREAD.work.notify_all();
}

/// Makes the thread call the C part periodically, even while it has no outstanding operations.
pub(crate) fn poll_periodically() {
    THREAD.state.lock().polls = true;
    THREAD.work.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Flag;
    use crate::operation::{DONE, TRIGGERED};
    use gdsync::PinnedMemory;

    fn operation(name: usize) -> Arc<Operation> {
        Arc::new(Operation { operation: name, signal: Signal::Flag(Flag::new().unwrap()) })
    }

    #[test]
    fn operations_are_taken_in_the_order_of_the_calls_as_far_as_their_streams_have_passed() {
        let memory = PinnedMemory::allocate(8).unwrap();
        let (one, other) = (Word32::new(&memory, 0).unwrap(), Word32::new(&memory, 4).unwrap());
        // Sequence numbers wrap.
        one.store(u32::MAX - 1);
        let mut state = ThreadState::new();
        let sequence = [(&one, u32::MAX), (&other, 1), (&one, 0), (&other, 2), (&one, 1)];
        for (name, (word, number)) in sequence.into_iter().enumerate() {
            let number = SequenceNumber { word: word.clone(), number };
            state.waiting.push_back((operation(name), number));
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
        let launch_word = LaunchWord::new().unwrap();
        let word = launch_word.word.clone();
        let repeated = Arc::new(Operation { operation: 0, signal: Signal::Launch(launch_word) });
        let launch_word = repeated.launch_word().unwrap();
        let mut state = ThreadState::new();
        let memory = PinnedMemory::allocate(4).unwrap();
        let number = SequenceNumber { word: Word32::new(&memory, 0).unwrap(), number: 1 };
        state.in_graphs.push(repeated.clone());
        state.waiting.push_back((operation(1), number.clone()));
        let taken = |state: &mut ThreadState| {
            state.take_triggered().iter().map(|each| each.operation).collect::<Vec<_>>()
        };
        for _launch in 0..3 {
            assert_eq!(taken(&mut state), [0usize; 0]);
            word.store(TRIGGERED);
            assert!(!state.is_done());
            assert_eq!(taken(&mut state), [0]);
            assert!(!repeated.signal.is_set());
            repeated.signal.set();
            assert!(repeated.signal.is_set() && word.load() == DONE);
        }
        // Two graphs hold it, and then none, while the last launch is in progress.
        launch_word.hold();
        word.store(TRIGGERED);
        number.word.store(1);
        // An operation that is seen together with a launch comes first, wherever it is in the list.
        assert_eq!(taken(&mut state), [1, 0]);
        assert!(state.is_done() && !state.is_idle());
        launch_word.release();
        launch_word.release();
        assert!(state.take_retired().is_empty());
        repeated.signal.set();
        assert_eq!(state.take_retired().len(), 1);
        assert!(state.is_idle());
        assert_eq!(operation(2).launch_word().unwrap_err().class, Class::Request);
    }

    #[test]
    fn nothing_is_registered_while_the_thread_does_not_run() {
        let memory = PinnedMemory::allocate(4).unwrap();
        let number = SequenceNumber { word: Word32::new(&memory, 0).unwrap(), number: 1 };
        let error = register(&operation(0), Some(number)).unwrap_err();
        assert!(error.text.contains("MPIX_Init"), "{error}");
    }
}
