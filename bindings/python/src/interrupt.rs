//! Blocking calls: they release the GIL and end when a signal handler raises, as for Ctrl-C.

use crate::errors::{ExceptionClass, Failure};
use pyo3::prelude::*;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time between two checks for signals.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// The shortest time-out whose error says the cause, in seconds: the libraries of C and Python have the same.
const EXPLAINED: f64 = 0.01;

/// A time-out in seconds; `None` is unlimited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    seconds: f64,
    deadline: Option<Instant>,
}

impl Limit {
    /// # Errors
    /// A negative number or NaN.
    pub(crate) fn new(timeout: Option<f64>) -> Result<Self, Failure> {
        let Some(seconds) = timeout else { return Ok(Limit { seconds: f64::INFINITY, deadline: None }) };
        if seconds.is_nan() || seconds < 0.0 {
            let text = format!("timeout is {seconds}: give seconds, 0 or more, or None for no limit");
            return Err(Failure::invalid(text));
        }
        // A time that overflows the clock is unlimited.
        let time = Duration::try_from_secs_f64(seconds).ok();
        Ok(Limit { seconds, deadline: time.and_then(|time| Instant::now().checked_add(time)) })
    }

    fn left(&self) -> Duration {
        self.deadline.map_or(SLICE, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Returns the time of a short wait.
    pub(crate) fn slice(&self) -> Duration {
        self.left().min(SLICE)
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Returns the error of a call that has timed out.
    pub(crate) fn passed(&self, what: &str) -> Failure {
        Failure::timed_out(what, self.seconds, None)
    }

    /// Returns the error of a wait that has timed out, with its cause, unless the program polls. `explain` may ask other
    /// processes, without the interpreter's lock.
    pub(crate) fn passed_because(
        &self,
        what: &str,
        explain: impl FnOnce() -> Option<String> + Send,
    ) -> Failure {
        let cause = if self.seconds < EXPLAINED {
            None
        } else {
            Python::try_attach(|py| py.detach(explain)).flatten()
        };
        Failure::timed_out(what, self.seconds, cause)
    }

    /// Returns the time for calls that take one; a year if unlimited.
    pub(crate) fn duration(&self) -> Duration {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
        Duration::try_from_secs_f64(self.seconds).map_or(YEAR, |time| time.min(YEAR))
    }
}

/// Repeats a short wait until it has a result; `None` after the time-out. Checks signals in between.
///
/// # Errors
/// Those of the wait; an exception of a signal handler.
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

/// Makes a call that cannot be split into short waits on a separate thread. If a signal handler raises, the call
/// continues there and its result is dropped.
///
/// # Errors
/// Those of the call; an exception of a signal handler; a thread that cannot be started.
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
