//! What the program asks for with a request.

use crate::collective::{Reduction, Side, barrier};
use crate::memory::Buffer;
use crate::partitions::Layout;
use crate::parts::number_of;

/// Messages of a link that are on their way, at most; half of what its queue pair has room for.
const LINK_DEPTH: u64 = 128;

/// What the program asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    Transfer { sends: bool, buffer: Buffer },
    Partitioned { sends: bool, buffer: Buffer, layout: Layout },
    Link { sends: bool },
    Barrier { rank: u32, size: u32 },
    Allreduce { reduction: Reduction, rank: u32, size: u32 },
}

impl Plan {
    /// This side of each leg.
    pub(crate) fn sides(&self) -> Vec<Side> {
        match *self {
            // C knows the peer.
            Plan::Transfer { sends, .. } | Plan::Partitioned { sends, .. } | Plan::Link { sends } => {
                vec![Side { peer: 0, sends, carries: true }]
            }
            Plan::Barrier { rank, size } => barrier(rank, size).sides(),
            Plan::Allreduce { reduction, rank, size } => reduction.sides(rank, size),
        }
    }

    /// What both sides of a leg must agree on, in a word.
    pub(crate) fn shape(&self) -> String {
        match self {
            Plan::Transfer { .. } => "transfer".to_owned(),
            Plan::Link { .. } => "link".to_owned(),
            Plan::Partitioned { layout, .. } => {
                format!("partitions-{}-of-{}-bytes", layout.partitions, layout.bytes)
            }
            Plan::Barrier { size, .. } => format!("barrier-of-{size}"),
            Plan::Allreduce { reduction, size, .. } => {
                let Reduction { target, element, operation, .. } = reduction;
                format!("{operation}-of-{}-bytes-of-{element}-among-{size}", target.bytes)
            }
        }
    }

    /// Of a message.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Plan::Transfer { buffer, .. } | Plan::Partitioned { buffer, .. } => buffer.bytes as u64,
            Plan::Link { .. } | Plan::Barrier { .. } => 0,
            Plan::Allreduce { reduction, .. } => reduction.target.bytes as u64,
        }
    }
    /// Of a leg, by a start, with that many bytes a work request.
    pub(crate) fn work_requests(&self, part: u64) -> u64 {
        match self {
            Plan::Transfer { buffer, .. } => number_of(buffer.bytes as u64, part),
            Plan::Partitioned { layout, .. } => layout.work_requests(part),
            Plan::Link { .. } => LINK_DEPTH,
            // Each send is waited for before the next one, and a leg's receives are started a round ahead.
            Plan::Barrier { .. } | Plan::Allreduce { .. } => 2,
        }
    }
}
