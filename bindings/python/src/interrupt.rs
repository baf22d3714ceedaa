//! Calls that block: without the GIL, and ended by a signal that Python answers, such as Ctrl-C.

use crate::errors::{ExceptionClass, Failure};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a wait stays away from Python's signals.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// A time that the caller gives in seconds; `None` is without a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    seconds: f64,
    deadline: Option<Instant>,
}

impl Limit {
    /// # Errors
    /// A number that is negative, or none.
    pub(crate) fn new(timeout: Option<f64>) -> Result<Self, Failure> {
        let Some(seconds) = timeout else { return Ok(Limit { seconds: f64::INFINITY, deadline: None }) };
        if seconds.is_nan() || seconds < 0.0 {
            let text = format!("timeout is {seconds}: give seconds, 0 or more, or None for no limit");
            return Err(Failure::invalid(text));
        }
        // What no clock reaches is no limit.
        let time = Duration::try_from_secs_f64(seconds).ok();
        Ok(Limit { seconds, deadline: time.and_then(|time| Instant::now().checked_add(time)) })
    }

    fn left(&self) -> Duration {
        self.deadline.map_or(SLICE, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// The error of a call that has used up the time.
    pub(crate) fn passed(&self, what: &str) -> Failure {
        Failure::timed_out(what, self.seconds)
    }

    /// For calls that take a time themselves: a year in the place of none.
    pub(crate) fn duration(&self) -> Duration {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
        self.deadline.map_or(YEAR, |_| self.left()).min(YEAR)
    }
}

/// Repeats a short wait until it has a result; `None` once the limit has passed. Signals are answered in between.
///
/// # Errors
/// Those of the wait; what the handler of a signal raises.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    limit: Limit,
    mut once: impl FnMut(Duration) -> Result<Option<T>, Failure> + Send,
) -> Result<Option<T>, Failure> {
    loop {
        let left = limit.left();
        let found = py.detach(|| once(left.min(SLICE)))?;
        py.check_signals()?;
        if found.is_some() || limit.left().is_zero() {
            return Ok(found);
        }
    }
}

/// Makes a call that cannot be cut into short waits on a thread of its own. After a signal that
/// raises, the call goes on there, and its result is dropped.
///
/// # Errors
/// Those of the call; what the handler of a signal raises; a thread that cannot be started.
pub(crate) fn on_a_thread<T, E>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Failure>
where
    T: Send + 'static,
    E: Into<Failure> + Send + 'static,
{
    let (sender, mut receiver) = mpsc::channel();
    let run = move || {
        // The caller may have been interrupted.
        let _ = sender.send(call());
    };
    thread::Builder::new()
        .name("gdsync-call".to_owned())
        .spawn(run)
        .map_err(|error| Failure::Of(ExceptionClass::DeviceError, format!("no thread: {error}")))?;
    loop {
        let result;
        (receiver, result) = py.detach(move || {
            let result = receiver.recv_timeout(SLICE);
            (receiver, result)
        });
        match result {
            Ok(result) => return result.map_err(Into::into),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::Of(ExceptionClass::Error, "the call panicked".to_owned()));
            }
        }
    }
}

/// The same wait for asyncio: `call(*args, timeout)`, on threads of the event loop (`_asyncio.py`).
pub(crate) fn awaitable<'py>(
    call: Bound<'py, PyAny>,
    args: impl IntoPyObject<'py>,
    timeout: Option<f64>,
) -> PyResult<Bound<'py, PyAny>> {
    static AWAITABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = call.py();
    let args = args.into_bound_py_any(py)?;
    AWAITABLE.import(py, "gdsync._asyncio", "awaitable")?.call1((call, args, timeout))
}
