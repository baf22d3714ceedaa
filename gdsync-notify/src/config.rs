//! How a team is made.

use gdsync::{ConnectOptions, QueuePairConfig};
use std::time::Duration;

/// Defines a setter for each field of an options type, of the field's name.
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

/// How the queues of a [`Team`](crate::Team) reach the ranks; the same on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectionKind {
    /// Up to 16 ranks [`Self::Each`]; in larger teams [`Self::Dynamic`], if the card has it, else [`Self::Each`], too.
    /// (With 32 ranks that halves the memory and the memory operations of a round of writes to all. A queue pair to each of
    /// 512 ranks takes 40 MiB a rank, and its card forgets those that it has not used for a while.)
    #[default]
    BySize,
    /// A queue has a queue pair (RC) to each rank. Kernels can drive them.
    Each,
    /// A queue has a few queue pairs ([`TeamConfig::initiators`]) of dynamically connected transport (DC),
    /// and a rank has one target, to which all others write. What a rank needs for its queues does not
    /// grow with the team but for an address of each rank. The card must have DC.
    ///
    /// Ranks that are reached by the same queue pair wait for each other: a write to a dead rank holds
    /// the others up until it is given up.
    Dynamic,
}

/// Ranks of the largest team that has a queue pair to each by default.
const MOST_WITH_EACH: u32 = 16;

/// How a [`Team`](crate::Team) is made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TeamConfig {
    /// Queues, each with connections to every rank; the same number on all ranks. By default 1.
    /// Give a stream that sends a queue of its own.
    pub queues: u32,
    /// What the connections of queues are. By default [`ConnectionKind::BySize`].
    pub connections: ConnectionKind,
    /// Of [`ConnectionKind::Dynamic`]: queue pairs of each queue, at least 1. By default 4.
    pub initiators: u32,
    /// Queue pairs, of transport RC (those of dynamic connections are made like it); remote writes, reads and atomics are always allowed. By default
    /// [`QueuePairConfig::default`] with what a team needs: one slice, 8 bytes inline, and one receive. So a request takes one block of the ring.
    pub queue_pair: QueuePairConfig<'static>,
    /// Connections: `timeout` and `retry_count` decide when a rank counts as dead: a rank whose
    /// card does not answer any more is found dead within that time, or within 1.3 s where that is
    /// longer, whether anything is sent to it or not. By default [`ConnectOptions::default`], which
    /// comes to 2.1 s. With a time-out of 0 no rank is found dead. `max_reads` is how many reads and atomics to a
    /// rank a card has under way at a time, in the order of the queue; with 0 they are refused.
    pub connect: ConnectOptions,
    /// How long a post waits for room in a queue. By default 30 s.
    pub timeout: Duration,
}

impl Default for TeamConfig {
    fn default() -> Self {
        TeamConfig {
            queues: 1,
            connections: ConnectionKind::BySize,
            initiators: 4,
            queue_pair: QueuePairConfig::default().send_segments(1).inline(8).recv_depth(1).recv_segments(1),
            connect: ConnectOptions::default(),
            timeout: Duration::from_secs(30),
        }
    }
}

impl TeamConfig {
    /// What a team of so many ranks has, on a card that has all.
    pub(crate) fn kind_of(&self, size: u32) -> ConnectionKind {
        match self.connections {
            ConnectionKind::BySize if size > MOST_WITH_EACH => ConnectionKind::Dynamic,
            ConnectionKind::BySize => ConnectionKind::Each,
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
