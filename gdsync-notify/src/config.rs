//! How a team is made.

use crate::options::setters;
use gdsync::{ConnectOptions, QueuePairConfig};
use std::time::Duration;

/// How a [`Team`](crate::Team) is made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TeamConfig {
    /// Queues, each with a queue pair to every rank; the same number on all ranks. By default 1.
    /// Give a stream that sends a queue of its own.
    pub queues: u32,
    /// Queue pairs, of transport RC; remote writes are always allowed. By default
    /// [`QueuePairConfig::default`] with one receive.
    pub queue_pair: QueuePairConfig<'static>,
    /// Connections: `timeout` and `retry_count` decide when a rank counts as dead: a rank whose
    /// card does not answer any more is found dead within that time, or within 1.3 s where that is
    /// longer, whether anything is sent to it or not. By default [`ConnectOptions::default`], which
    /// comes to 2.1 s. With a time-out of 0 no rank is found dead.
    pub connect: ConnectOptions,
    /// How long a post waits for room in a queue. By default 30 s.
    pub timeout: Duration,
}

impl Default for TeamConfig {
    fn default() -> Self {
        TeamConfig {
            queues: 1,
            queue_pair: QueuePairConfig::default().recv_depth(1),
            connect: ConnectOptions::default(),
            timeout: Duration::from_secs(30),
        }
    }
}

setters!(TeamConfig: queues: u32, queue_pair: QueuePairConfig<'static>, connect: ConnectOptions, timeout: Duration);
