//! Waits of asyncio: one thread looks for all of an event loop's, and a descriptor tells the loop that some have ended.

use crate::errors::{ExceptionClass, Failure};
use crate::interrupt::Limit;
use parking_lot::{Condvar, Mutex, MutexGuard};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The time between two looks; it grows while nothing ends.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(1);

/// The result of a wait, as a function that makes the Python object.
pub(crate) type Outcome = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

pub(crate) fn outcome<T: Send + 'static + for<'py> IntoPyObject<'py>>(value: T) -> Outcome {
    Box::new(|py| value.into_py_any(py))
}

pub(crate) fn nothing() -> Outcome {
    Box::new(|py| Ok(py.None()))
}

type Ended = Result<Outcome, Failure>;

/// A token, an outcome and an exception, for Python.
type Shown = (u64, Py<PyAny>, Option<PyErr>);

/// Looks without waiting. It is called on the thread, and takes the interpreter's lock only to fail.
type Look = Box<dyn FnMut() -> Result<Option<Outcome>, Failure> + Send>;

/// Makes the error after a time-out. It is called without the lock of the waits: it may ask other processes.
type Late = Arc<dyn Fn(Limit) -> Failure + Send + Sync>;

struct Wait {
    look: Look,
    limit: Limit,
    /// The error after the time-out.
    late: Late,
}

/// A wait that no event loop has taken yet.
#[pyclass(frozen)]
pub(crate) struct _Wait(Mutex<Option<Wait>>);

/// Returns an awaitable, which looks until there is an outcome or the time has passed (`_asyncio.py`).
pub(crate) fn awaitable<'py>(
    py: Python<'py>,
    timeout: Option<f64>,
    look: impl FnMut() -> Result<Option<Outcome>, Failure> + Send + 'static,
    late: impl Fn(Limit) -> Failure + Send + Sync + 'static,
) -> Result<Bound<'py, PyAny>, Failure> {
    static AWAITABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let wait = Wait { look: Box::new(look), limit: Limit::new(timeout)?, late: Arc::new(late) };
    let wait = Bound::new(py, _Wait(Mutex::new(Some(wait))))?;
    Ok(AWAITABLE.import(py, "gdsync._asyncio", "awaitable")?.call1((wait,))?)
}

/// Returns an awaitable for a blocking call, which runs on a separate thread. The call gets a function that tells whether it is
/// still awaited.
pub(crate) fn on_a_thread<'py>(
    py: Python<'py>,
    call: impl FnOnce(&dyn Fn() -> bool) -> Result<(), Failure> + Send + 'static,
) -> Result<Bound<'py, PyAny>, Failure> {
    let ended = Arc::new(Mutex::new(None));
    let of_thread = ended.clone();
    let run = move || {
        let result = call(&|| Arc::strong_count(&of_thread) > 1);
        *of_thread.lock() = Some(result);
    };
    let started = thread::Builder::new().name("gdsync-call".to_owned()).spawn(run);
    started.map_err(|error| Failure::Of(ExceptionClass::DeviceError, format!("no thread: {error}")))?;
    let look = move || ended.lock().take().transpose().map(|done| done.map(|()| nothing()));
    awaitable(py, None, look, |limit| limit.passed("the call"))
}

#[derive(Default)]
struct State {
    next: u64,
    waiting: Vec<(u64, Wait)>,
    ended: Vec<(u64, Ended)>,
    /// True if the descriptor is readable.
    is_told: bool,
    is_stopped: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    reader: PipeReader,
    writer: PipeWriter,
}

/// The waits of an event loop.
#[pyclass(frozen)]
pub(crate) struct _Waits(Arc<Shared>);

impl Shared {
    /// Looks until the waits are dropped.
    fn run(&self) {
        let (mut state, mut pause) = (self.state.lock(), SHORTEST);
        while !state.is_stopped {
            let now = &mut *state;
            let (mut past, mut late) = (Vec::new(), Vec::new());
            let mut at = 0;
            while let Some((token, wait)) = now.waiting.get_mut(at) {
                let found = match (wait.look)() {
                    Ok(None) => {
                        if wait.limit.has_passed() {
                            late.push((*token, wait.late.clone(), wait.limit));
                        }
                        at += 1;
                        continue;
                    }
                    Ok(Some(outcome)) => Ok(outcome),
                    Err(error) => Err(error),
                };
                let (token, wait) = now.waiting.swap_remove(at);
                now.ended.push((token, found));
                past.push(wait);
            }
            if !late.is_empty() {
                let errors = late.into_iter().map(|(token, late, limit)| (token, late(limit)));
                let errors: Vec<_> = MutexGuard::unlocked(&mut state, || errors.collect());
                for (token, error) in errors {
                    // It may have been given up meanwhile.
                    if let Some(at) = state.waiting.iter().position(|(known, _)| *known == token) {
                        past.push(state.waiting.swap_remove(at).1);
                        state.ended.push((token, Err(error)));
                    }
                }
            }
            let now = &mut *state;
            if !now.ended.is_empty() && !mem::replace(&mut now.is_told, true) {
                // One byte fits: the loop has read the last one.
                _ = (&self.writer).write(&[1]);
            }
            pause = if past.is_empty() { (pause * 2).min(LONGEST) } else { SHORTEST };
            if !past.is_empty() {
                // Without the lock: the last handle of a stream waits for the stream's functions, which need the interpreter.
                MutexGuard::unlocked(&mut state, || drop(past));
            } else if state.waiting.is_empty() {
                self.changed.wait(&mut state);
                pause = SHORTEST;
            } else {
                self.changed.wait_for(&mut state, pause);
            }
        }
    }
}

#[pymethods]
impl _Waits {
    #[new]
    fn new() -> Result<Self, Failure> {
        let failed =
            |error| Failure::Of(ExceptionClass::DeviceError, format!("no waits of asyncio: {error}"));
        let (reader, writer) = pipe().map_err(failed)?;
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), reader, writer });
        let own = shared.clone();
        thread::Builder::new().name("gdsync-asyncio".to_owned()).spawn(move || own.run()).map_err(failed)?;
        Ok(_Waits(shared))
    }

    /// Returns the descriptor that is readable while waits have ended.
    fn fileno(&self) -> i32 {
        self.0.reader.as_raw_fd()
    }

    /// Takes a wait. Returns its token.
    fn add(&self, py: Python<'_>, wait: &_Wait) -> Result<u64, Failure> {
        let taken = wait.0.lock().take();
        let wait =
            taken.ok_or_else(|| Failure::invalid("the wait was awaited before: call the method again"))?;
        Ok(py.detach(|| {
            let mut state = self.0.state.lock();
            state.next += 1;
            let token = state.next;
            state.waiting.push((token, wait));
            self.0.changed.notify_one();
            token
        }))
    }

    /// Takes the ended waits: their tokens, their outcomes, and their exceptions.
    fn ended(&self, py: Python<'_>) -> PyResult<Vec<Shown>> {
        let ended = py.detach(|| {
            let mut state = self.0.state.lock();
            if mem::take(&mut state.is_told) {
                _ = (&self.0.reader).read(&mut [0]);
            }
            mem::take(&mut state.ended)
        });
        ended.into_iter().map(|(token, ended)| shown(py, token, ended)).collect()
    }

    /// Gives a wait up. Returns it as [`Self::ended`] does if it has ended.
    fn cancel(&self, py: Python<'_>, token: u64) -> PyResult<Option<Shown>> {
        let (past, ended) = py.detach(|| {
            let mut state = self.0.state.lock();
            let waiting = state.waiting.iter().position(|(known, _)| *known == token);
            let ended = state.ended.iter().position(|(known, _)| *known == token);
            (waiting.map(|at| state.waiting.swap_remove(at)), ended.map(|at| state.ended.swap_remove(at)))
        });
        py.detach(|| drop(past));
        ended.map(|(token, ended)| shown(py, token, ended)).transpose()
    }
}

fn shown(py: Python<'_>, token: u64, ended: Ended) -> PyResult<Shown> {
    Ok(match ended {
        Ok(outcome) => (token, outcome(py)?, None),
        Err(failure) => (token, py.None(), Some(failure.into())),
    })
}

impl Drop for _Waits {
    fn drop(&mut self) {
        // Without the interpreter, which the thread may need while it looks.
        let stop = || {
            let mut state = self.0.state.lock();
            state.is_stopped = true;
            let past = mem::take(&mut state.waiting);
            drop(state);
            self.0.changed.notify_one();
            drop(past);
        };
        if Python::try_attach(|py| py.detach(stop)).is_none() {
            stop();
        }
    }
}
