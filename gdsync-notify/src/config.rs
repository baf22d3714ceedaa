//! Options of a team.

use gdsync::{ConnectOptions, QueuePairConfig};
use std::time::Duration;

/// Defines a setter for each field of an options type.
macro_rules! setters {
    ($options:ident: $($field:ident: $value:ty),+ $(,)?) => {
        impl $options {
            $(
                #[doc = concat!("Sets [`Self::", stringify!($field), "`](#structfield.", stringify!($field), ").")]
                pub fn $field(mut self, $field: $value) -> Self {
                    self.$field = $field;
                    self
                }
            )+
        }
    };
}

pub(crate) use setters;

/// How the queues of a [`Team`](crate::Team) reach the ranks. All ranks choose the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectionKind {
    /// [`Self::Each`] up to 16 ranks; in larger teams [`Self::Dynamic`] if the card supports it, else [`Self::Each`].
    /// (With 32 ranks DC halves memory and the memory operations of a round of writes to all. A queue pair to each of
    /// 512 ranks takes 40 MiB per rank, more contexts than the card caches.)
    #[default]
    Auto,
    /// Each queue has an RC queue pair to each rank. Kernels can drive them.
    Each,
    /// Each queue has a few DC queue pairs ([`TeamConfig::initiators`]), and each rank has one DC target, to which all
    /// others write. Memory of queues does not grow with the team except for one address per rank. The card must
    /// support DC.
    ///
    /// Requests to ranks that share a queue pair wait for each other: a write to a dead rank delays the rest until it
    /// fails.
    Dynamic,
}

/// Ranks of the largest team that has a queue pair to each rank by default.
const MOST_WITH_EACH: u32 = 16;

/// The options of a [`Team`](crate::Team): its queues, its connections and its time-outs.
///
/// ```
/// use gdsync_notify::{ConnectionKind, TeamConfig};
/// let config = TeamConfig::default().queues(2).connections(ConnectionKind::Dynamic);
/// assert_eq!((config.queues, config.initiators), (2, 4));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TeamConfig {
    /// The number of queues, the same on all ranks. Default: 1. Give each stream that sends its own queue.
    pub queues: u32,
    /// The kind of connections. Default: [`ConnectionKind::Auto`].
    pub connections: ConnectionKind,
    /// Queue pairs of each queue with [`ConnectionKind::Dynamic`], at least 1. Default: 4.
    pub initiators: u32,
    /// Configuration of the queue pairs, with transport RC (DC queue pairs are made alike). Remote writes, reads and
    /// atomics are always allowed. Default: [`QueuePairConfig::default`] with one slice, 8 bytes inline and one
    /// receive, so that a request takes one block of the ring.
    pub queue_pair: QueuePairConfig<'static>,
    /// Options of the connections. `timeout` and `retry_count` decide when a rank counts as dead: within that time, or
    /// within 1.3 s if that is longer, whether or not anything is sent to it. Default: [`ConnectOptions::default`],
    /// which comes to 2.1 s. With a time-out of 0 no rank is found dead. `max_reads` limits the reads and atomics to a
    /// rank in flight, in the order of the queue; 0 refuses them.
    pub connect: ConnectOptions,
    /// How long a post waits for room in a queue. Default: 30 s.
    pub timeout: Duration,
}

impl Default for TeamConfig {
    fn default() -> Self {
        TeamConfig {
            queues: 1,
            connections: ConnectionKind::Auto,
            initiators: 4,
            queue_pair: QueuePairConfig::default().send_segments(1).inline(8).recv_depth(1).recv_segments(1),
            connect: ConnectOptions::default(),
            timeout: Duration::from_secs(30),
        }
    }
}

impl TeamConfig {
    /// Returns the kind of connections for a team of that size, on a card that supports all.
    pub(crate) fn kind_of(&self, size: u32) -> ConnectionKind {
        match self.connections {
            ConnectionKind::Auto if size > MOST_WITH_EACH => ConnectionKind::Dynamic,
            ConnectionKind::Auto => ConnectionKind::Each,
            told => told,
        }
    }
}

setters!(TeamConfig: queues: u32, connections: ConnectionKind, initiators: u32, queue_pair: QueuePairConfig<'static>, connect: ConnectOptions, timeout: Duration);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_teams_are_connected_dynamically_unless_told() {
        let kinds = |config: TeamConfig| [2, 16, 17].map(|size| config.kind_of(size));
        let (each, dynamic) = (ConnectionKind::Each, ConnectionKind::Dynamic);
        assert_eq!(kinds(TeamConfig::default()), [each, each, dynamic]);
        for told in [each, dynamic] {
            assert_eq!(kinds(TeamConfig::default().connections(told)), [told; 3]);
        }
    }
}
