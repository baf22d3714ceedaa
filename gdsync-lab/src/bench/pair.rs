//! Connected queue pairs within the process.

use gdsync::{CompletionQueue, ConnectOptions, ProtectionDomain, QueuePair, QueuePairConfig};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::{self, Hca};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns two new queue pairs, connected with each other.
pub(super) fn connected(
    pd: &ProtectionDomain,
    config: QueuePairConfig<'_>,
) -> Result<(QueuePair, QueuePair), Failure> {
    let (left, right) = (QueuePair::new(pd, config)?, QueuePair::new(pd, config)?);
    left.connect(&right.endpoint()?, ConnectOptions::default())?;
    right.connect(&left.endpoint()?, ConnectOptions::default())?;
    Ok((left, right))
}

pub(super) fn collect(queue: &CompletionQueue, count: u64) -> Result<(), Failure> {
    let (mut left, mut waiting) = (count, None);
    while left > 0 {
        match queue.poll()? {
            Some(completion) => {
                completion.status?;
                left -= 1;
            }
            None if waiting.get_or_insert_with(Instant::now).elapsed() > PATIENCE => {
                return Err(format!("{left} of {count} completions have not come within {PATIENCE:?}").into());
            }
            None => std::thread::yield_now(),
        }
    }
    Ok(())
}

pub(super) struct Pair {
    pub(super) pd: ProtectionDomain,
    pub(super) left: QueuePair,
    pub(super) right: QueuePair,
}

impl Pair {
    /// Creates queues deep enough for every batch of the measurements.
    pub(super) fn new(hca: Option<&Hca>) -> Result<Self, Failure> {
        Self::with(hca, QueuePairConfig::default().send_depth(512).recv_depth(512))
    }

    /// The port is that of `hca`, not that of `config`.
    pub(super) fn with(hca: Option<&Hca>, config: QueuePairConfig<'_>) -> Result<Self, Failure> {
        let (device, port) = hca::open(hca)?;
        let pd = ProtectionDomain::new(&device)?;
        let (left, right) = connected(&pd, config.port(port))?;
        Ok(Pair { pd, left, right })
    }

    /// Waits for the completions of `count` sends of the left queue pair, and of the right one's receives.
    pub(super) fn collect(&self, count: u64) -> Result<(), Failure> {
        collect(&self.left.send_cq(), count)?;
        collect(&self.right.recv_cq(), count)
    }
}
