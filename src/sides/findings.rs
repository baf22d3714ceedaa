//! What a side finds out while it runs: its first error, and its times.

use super::timing::Timing;
use crate::failure::Failure;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first error of a side; what fails after it is its consequence.
#[derive(Clone, Default)]
pub(crate) struct FirstError(Arc<Mutex<Errors>>);

#[derive(Default)]
struct Errors {
    cause: Option<String>,
    /// What a failure of unknown cause has led to: flushed work, or a failure of the other side
    /// that is no cause either.
    consequence: Option<String>,
    /// A wrong message. It may itself be a consequence: a work request that fails wakes the stream,
    /// too, which then finds no message where it looks.
    wrong: Option<String>,
}

impl FirstError {
    fn lock(&self) -> MutexGuard<'_, Errors> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, error: impl FnOnce() -> String) {
        self.lock().cause.get_or_insert_with(error);
    }

    /// Something that follows a failure, and tells nothing of its cause.
    pub(crate) fn consequence(&self, error: impl FnOnce() -> String) {
        self.lock().consequence.get_or_insert_with(error);
    }

    /// Whether the cause of the failure is known.
    pub(crate) fn has_cause(&self) -> bool {
        self.lock().cause.is_some()
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        let errors = self.lock();
        let first = errors.cause.as_ref().or(errors.consequence.as_ref()).or(errors.wrong.as_ref());
        first.map_or(Ok(()), |error| Err(error.clone().into()))
    }

    /// The first error; `failure`, which may be its consequence, if there is none.
    pub(crate) fn or(&self, failure: Failure) -> Failure {
        self.check().err().unwrap_or(failure)
    }
}

/// What the kernels of a side report, wherever they run. Clones name the same findings.
#[derive(Clone)]
pub(crate) struct Findings {
    pub(crate) error: FirstError,
    timing: Arc<Mutex<Timing>>,
}

impl Findings {
    pub(crate) fn new(timing: Timing) -> Self {
        Findings { error: FirstError::default(), timing: Arc::new(Mutex::new(timing)) }
    }

    pub(crate) fn timing(&self) -> MutexGuard<'_, Timing> {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Message `sequence` has a wrong byte.
    pub(crate) fn wrong(&self, sequence: u64, at: u64) {
        let text = || format!("message {sequence} is wrong at byte {at}");
        self.error.lock().wrong.get_or_insert_with(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_told_and_a_cause_before_its_consequences() {
        let findings = Findings::new(Timing::new(0, 2));
        assert!(findings.error.check().is_ok());
        findings.wrong(3, 1);
        findings.wrong(4, 2);
        let told = || findings.error.check().unwrap_err().to_string();
        assert_eq!(told(), "message 3 is wrong at byte 1");
        findings.error.consequence(|| "flushed".to_owned());
        assert_eq!((told().as_str(), findings.error.has_cause()), ("flushed", false));
        findings.error.set(|| "a work request failed".to_owned());
        findings.error.set(|| "another failed".to_owned());
        assert_eq!(told(), "a work request failed");
    }
}
