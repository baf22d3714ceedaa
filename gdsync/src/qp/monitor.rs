//! What threads have to do with a queue pair that another thread owns.

use super::QueuePairInner;
use crate::queue::FailureCause;
use crate::verbs::Error;
use std::sync::{Arc, Weak};

/// Asks about a queue pair that another thread owns, and aborts it. It does not keep the queue pair: once
/// that is dropped, there is no failure, and nothing to abort.
///
/// ```
/// # use gdsync::{Device, ProtectionDomain, QueuePair};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = ProtectionDomain::new(&Device::software()?)?;
/// let queue_pair = QueuePair::new(&pd, Default::default())?.into_owned()?;
/// let monitor = queue_pair.monitor();
/// std::thread::spawn(move || monitor.abort()).join().unwrap()?;
/// assert!(queue_pair.failure().is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct QueuePairMonitor {
    inner: Weak<QueuePairInner>,
    number: u32,
}

impl QueuePairMonitor {
    pub(super) fn new(inner: &Arc<QueuePairInner>) -> Self {
        QueuePairMonitor { inner: Arc::downgrade(inner), number: inner.number }
    }

    /// The number of the queue pair.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// As [`QueuePair::failure`](crate::QueuePair::failure).
    pub fn failure(&self) -> Option<FailureCause> {
        self.inner.upgrade().and_then(|inner| inner.known_failure())
    }

    /// As [`QueuePair::abort`](crate::QueuePair::abort).
    ///
    /// # Errors
    /// As [`QueuePair::abort`](crate::QueuePair::abort).
    pub fn abort(&self) -> Result<(), Error> {
        self.inner.upgrade().map_or(Ok(()), |inner| inner.abort())
    }
}
