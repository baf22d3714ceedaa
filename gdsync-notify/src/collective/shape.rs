//! The collectives, and the memory and notifications of their plans.

use crate::collective::element::{Element, Operation};
use crate::collective::error::CollectiveError;
use crate::collective::schedule::{self, Algorithm};
use crate::collective::step::{Area, Program};
use std::fmt;

/// Largest block: one message of a card.
const MOST: usize = 1 << 30;
/// Alignment of a plan's areas: a cache line.
pub(crate) const ALIGNMENT: usize = 64;
/// Smallest number of ranks at which Bruck's algorithms carry small blocks.
const RANKS_BY_STEPS: u32 = 16;
/// Size of the largest small block.
const BYTES_BY_STEPS: usize = 1024;

/// A collective of all ranks of a [`Plan`](crate::collective::Plan). Lengths are in bytes; blocks are in the order of
/// [`Team::members`](crate::Team::members). The [module](crate::collective) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Collective {
    /// No stream passes it before the streams of all ranks have reached it.
    Barrier,
    /// Each rank's block goes to all. The output has a block for each rank; this rank's is the input.
    AllGather {
        /// The size of a rank's block.
        block: usize,
    },
    /// A block from each rank to each: block `j` of rank `i`'s input becomes block `i` of rank `j`'s output.
    AllToAll {
        /// The size of a block from one rank to another.
        block: usize,
    },
    /// Blocks from each rank to each are reduced, number by number: the output of rank `j` is the sum, or another
    /// [`Operation`], of the blocks `j` of all ranks' inputs, in rank order.
    ReduceScatter {
        /// The size of a block: a multiple of a number's.
        block: usize,
        /// The type of the numbers.
        element: Element,
        /// The operation.
        operation: Operation,
    },
    /// The numbers of all ranks are reduced, number by number, and all ranks get the result, with the same bits. Input and output are the
    /// same memory. The schedule is that of the MPI library ([`rounds`](crate::collective::rounds)).
    AllReduce {
        /// The number of bytes: a multiple of a number's.
        len: usize,
        /// The type of the numbers.
        element: Element,
        /// The operation.
        operation: Operation,
    },
    /// One rank's bytes go to all. The input of that rank is its output.
    Broadcast {
        /// The sending rank.
        root: u32,
        /// The number of bytes.
        len: usize,
    },
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Collective::Barrier => write!(f, "barrier"),
            Collective::AllGather { block } => write!(f, "all-gather of {block} bytes"),
            Collective::AllToAll { block } => write!(f, "all-to-all of {block} bytes"),
            Collective::ReduceScatter { block, element, operation } => {
                write!(f, "reduce-scatter of {block} bytes by {operation} of {element}")
            }
            Collective::AllReduce { len, element, operation } => {
                write!(f, "all-reduce of {len} bytes by {operation} of {element}")
            }
            Collective::Broadcast { root, len } => write!(f, "broadcast of {len} bytes from rank {root}"),
        }
    }
}

impl Collective {
    /// Returns the bytes of a segment that a plan takes on each of so many ranks, or [`usize::MAX`] if it is more. A
    /// plan begins at a multiple of 64.
    pub fn bytes(&self, ranks: u32) -> usize {
        Layout::new(self, ranks, 0).end
    }

    /// Returns the notifications of a segment that a plan takes on each of so many ranks.
    pub fn notifications(&self, ranks: u32) -> u32 {
        2 * self.algorithm(ranks).words(ranks)
    }

    /// The size of a block. The blocks of an all-reduce are its numbers.
    pub(crate) fn block(&self) -> usize {
        match *self {
            Collective::Barrier => 0,
            Collective::AllReduce { element, .. } => element.bytes(),
            Collective::AllGather { block }
            | Collective::AllToAll { block }
            | Collective::ReduceScatter { block, .. } => block,
            Collective::Broadcast { len, .. } => len,
        }
    }

    pub(crate) fn algorithm(&self, ranks: u32) -> Algorithm {
        let by_steps = ranks >= RANKS_BY_STEPS && self.block() <= BYTES_BY_STEPS;
        match self {
            Collective::Barrier => Algorithm::Dissemination,
            Collective::AllGather { .. } if by_steps => Algorithm::BruckGather,
            Collective::AllGather { .. } => Algorithm::DirectGather,
            Collective::AllToAll { .. } if by_steps => Algorithm::BruckExchange,
            Collective::AllToAll { .. } => Algorithm::DirectExchange,
            Collective::ReduceScatter { .. } if by_steps => Algorithm::BruckReduce,
            Collective::ReduceScatter { .. } => Algorithm::DirectReduce,
            Collective::Broadcast { .. } => Algorithm::BinomialTree,
            Collective::AllReduce { len, element, .. } => {
                let each = element.bytes();
                Algorithm::AllReduce { numbers: len / each, each: each as u32 }
            }
        }
    }

    /// The type and the operation of a reduction.
    pub(crate) fn reduction(&self) -> Option<(Element, Operation)> {
        match *self {
            Collective::ReduceScatter { element, operation, .. }
            | Collective::AllReduce { element, operation, .. } => Some((element, operation)),
            _ => None,
        }
    }

    pub(crate) fn program(&self, members: &[u32], own: u32) -> Program {
        let root = match self {
            Collective::Broadcast { root, .. } => members.iter().position(|rank| rank == root),
            _ => None,
        };
        schedule::program(
            self.algorithm(members.len() as u32),
            members.len() as u32,
            own,
            root.unwrap_or(0) as u32,
        )
    }

    /// Refuses collectives for which no plan can be created.
    pub(crate) fn check(&self, members: &[u32]) -> Result<(), CollectiveError> {
        let bytes = match *self {
            Collective::AllReduce { len, .. } => len,
            _ => self.block(),
        };
        if bytes > MOST {
            return Err(CollectiveError::TooLong { bytes, limit: MOST });
        }
        if let Some((element, operation)) = self.reduction() {
            if !bytes.is_multiple_of(element.bytes()) {
                return Err(CollectiveError::Element { bytes, element });
            }
            if !operation.is_defined_for(element) {
                return Err(CollectiveError::Undefined { operation, element });
            }
        }
        match *self {
            Collective::Broadcast { root, .. } if !members.contains(&root) => {
                Err(CollectiveError::Root { root, ranks: members.len() as u32 })
            }
            _ => Ok(()),
        }
    }
}

/// The layout of a plan's areas in a segment. Each area exists twice, for alternate rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    block: usize,
    /// By [`Area`], its start and the size of one copy.
    areas: [(usize, usize); Area::COUNT],
    pub(crate) end: usize,
}

impl Layout {
    /// Lays the areas out from `start`, a multiple of [`ALIGNMENT`].
    pub(crate) fn new(collective: &Collective, ranks: u32, start: usize) -> Self {
        let (block, algorithm) = (collective.block(), collective.algorithm(ranks));
        let mut end = start;
        let areas = Area::ALL.map(|area| {
            let bytes = algorithm.blocks(area, ranks).saturating_mul(block);
            let half = bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX);
            let first = end;
            end = first.saturating_add(half.saturating_mul(2));
            (first, half)
        });
        Layout { block, areas, end }
    }

    pub(crate) fn at(&self, area: Area, round: u64, block: u32) -> usize {
        let (first, half) = self.areas[area as usize];
        first + (round % 2) as usize * half + block as usize * self.block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(block: usize, element: Element) -> [Collective; 6] {
        let operation = Operation::Sum;
        [
            Collective::Barrier,
            Collective::AllGather { block },
            Collective::AllToAll { block },
            Collective::ReduceScatter { block, element, operation },
            Collective::AllReduce { len: block, element, operation },
            Collective::Broadcast { root: 0, len: block },
        ]
    }

    /// Any length, and often one near which sums and products overflow, or a short one.
    fn lengths() -> impl Strategy<Value = usize> {
        let near = |end: usize| (0..4096usize).prop_map(move |before| end - before);
        prop_oneof![0..4096usize, any::<usize>(), near(usize::MAX), near(usize::MAX / 2), near(1 << 35)]
    }

    proptest! {
        #[test]
        fn a_plan_has_room_for_both_halves_of_its_output_or_takes_more_than_there_is(
            block in lengths(),
            element in prop::sample::select(&[Element::I32, Element::F64][..]),
            ranks in 0u32..=40,
        ) {
            for collective in all(block, element) {
                let blocks = match collective {
                    _ if ranks == 0 => 0,
                    Collective::Barrier => 0,
                    Collective::AllGather { .. } | Collective::AllToAll { .. } => ranks as usize,
                    _ => 1,
                };
                // An all-reduce has whole numbers.
                let output = match collective {
                    Collective::AllReduce { .. } => block - block % element.bytes(),
                    _ => block,
                };
                let (bytes, least) = (collective.bytes(ranks), output.saturating_mul(blocks).saturating_mul(2));
                prop_assert!(bytes >= least, "{} of {} ranks: {}, not {}", collective, ranks, bytes, least);
                let is_aligned = bytes.is_multiple_of(2 * ALIGNMENT);
                prop_assert!(is_aligned || bytes == usize::MAX, "{}: {}", collective, bytes);
                if ranks == 0 {
                    prop_assert_eq!((bytes, collective.notifications(ranks)), (0, 0), "{}", collective);
                }
                if block > MOST && collective != Collective::Barrier {
                    let is_of = |error: &_| {
                        matches!(error, CollectiveError::TooLong { bytes, limit: MOST } if *bytes == block)
                    };
                    prop_assert!(collective.check(&[0]).is_err_and(|error| is_of(&error)), "{}", collective);
                }
            }
        }
    }
}
