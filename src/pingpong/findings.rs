//! What a side finds out while it runs: its first error, and its times.

use super::timing::Timing;
use crate::Failure;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first error of a side; what fails after it is its consequence.
#[derive(Clone, Default)]
pub(super) struct FirstError(Arc<Mutex<Option<String>>>);

impl FirstError {
    pub(super) fn set(&self, error: impl FnOnce() -> String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(error);
    }

    pub(super) fn check(&self) -> Result<(), Failure> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.clone().into()),
            None => Ok(()),
        }
    }
}

/// What the kernels of a side tell, wherever they run. Clones name the same findings.
#[derive(Clone)]
pub(super) struct Findings {
    pub(super) error: FirstError,
    timing: Arc<Mutex<Timing>>,
}

impl Findings {
    pub(super) fn new(warmup: u64) -> Self {
        Findings { error: FirstError::default(), timing: Arc::new(Mutex::new(Timing::new(warmup))) }
    }

    pub(super) fn timing(&self) -> MutexGuard<'_, Timing> {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Message `sequence` has a wrong byte.
    pub(super) fn wrong(&self, sequence: u64, at: u64) {
        self.error.set(|| format!("message {sequence} is wrong at byte {at}"));
    }
}
