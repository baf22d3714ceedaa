//! All-reduces: which schedule a buffer takes, and the memory that it works on.

use crate::collective::Collective;
use crate::collective::compute::{CudaComputer, Operand, Operands, gpu_for};
use crate::collective::sides;
use crate::connection::{Connection, Side};
use crate::error::{Class, Failure};
use crate::memory::{Buffer, Region};
use gdsync::cuda::GpuMemory;
use gdsync::cudarc::driver::CudaContext;
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{Access, MemoryRegion, ProtectionDomain};
use gdsync_notify::collective::rounds::{Schedule, all_reduce, doubling, ring};
use gdsync_notify::collective::{Element, Operation};
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    /// The input; none if it is in the output.
    pub(crate) source: Option<Buffer>,
    pub(crate) target: Buffer,
    pub(crate) element: Element,
    pub(crate) operation: Operation,
}

impl Reduction {
    /// The rounds of a rank. Ranks with the same length take the same algorithm.
    fn schedule(&self, rank: u32, size: u32) -> Schedule {
        let Reduction { target: Buffer { bytes, .. }, element, .. } = *self;
        all_reduce(rank, size, bytes, element.bytes())
    }

    /// The sides of the rounds' messages, and, without queue pairs, those of the other algorithm: by them ranks with different
    /// lengths detect the difference.
    pub(crate) fn sides(&self, rank: u32, size: u32) -> Vec<Side> {
        let mut all = sides(&self.schedule(rank, size));
        for other in [doubling(rank, size, 0), ring(rank, size, 0, 1)].iter().flat_map(sides) {
            if !all.contains(&other) {
                all.push(Side { has_queue_pair: false, ..other });
            }
        }
        all
    }
}

/// Allocates memory for arrivals, of the same kind as the output.
fn arrivals(
    pd: &ProtectionDomain,
    like: &Region,
    bytes: usize,
    gpu: Option<&Arc<CudaContext>>,
) -> Result<Region, Failure> {
    Ok(match like {
        Region::Empty => Region::Empty,
        Region::Host(_) => Region::Host(MemoryRegion::allocate(pd, bytes, Access::LOCAL_WRITE)?),
        Region::Gpu(_) => {
            let text = "a buffer in a GPU's memory is not aligned to its numbers: kernels take them at multiples of their length";
            let context = gpu.ok_or_else(|| Failure::new(Class::Buffer, text))?;
            let memory = GpuMemory::allocate(context, bytes).map_err(gdsync::Error::from)?;
            Region::Gpu(GpuMemoryRegion::register(pd, memory, Access::LOCAL_WRITE)?)
        }
    })
}

/// # Safety
/// As [`Collective::allreduce`].
unsafe fn operands(
    reduction: Reduction,
    (arrivals, bytes): (&Region, usize),
    gpu: Option<&Arc<CudaContext>>,
) -> Result<Operands, Failure> {
    let Reduction { source, target, element, operation } = reduction;
    // SAFETY: the caller keeps the buffers in place.
    let of = |buffer| unsafe { Operand::of(buffer, gpu) };
    let arrivals = match arrivals {
        Region::Host(region) => Operand::in_host(region.memory().clone(), gpu),
        Region::Gpu(region) => Operand::on_gpu(region.memory().address(), bytes),
        Region::Empty => return Err(Failure::new(Class::Buffer, "the buffer has no bytes")),
    };
    let what = (element, operation);
    Ok(Operands { what, source: source.map(of).transpose()?, target: of(target)?, arrivals })
}

impl Collective {
    /// An all-reduce. All ranks get the same bytes.
    ///
    /// # Safety
    /// As [`Region::register`], for both buffers, which do not overlap.
    pub(crate) unsafe fn allreduce(
        pd: &ProtectionDomain,
        reduction: Reduction,
        connections: &[(Side, &Connection)],
        (rank, size): (u32, u32),
    ) -> Result<Self, Failure> {
        let Reduction { source, target, element, operation } = reduction;
        let schedule = reduction.schedule(rank, size);
        let buffers = source.into_iter().chain([target]);
        // Kernels need numbers at multiples of their size.
        let is_aligned = buffers.clone().all(|buffer| buffer.address.is_multiple_of(element.bytes()));
        let on_gpu = buffers.map(|buffer| buffer.address).find(|address| *address != 0);
        let gpu = if is_aligned { gpu_for(on_gpu)? } else { None };
        // SAFETY: the caller keeps the buffer in place.
        let region = unsafe { Region::register(pd, target, Access::LOCAL_WRITE) }?;
        // An allocation needs a byte at least, even if nothing is reduced.
        let room = schedule.arrivals().max(element.bytes());
        let arrived = arrivals(pd, &region, room, gpu.as_ref())?;
        let operands = match &arrived {
            Region::Empty => None,
            // SAFETY: the caller keeps the buffers in place.
            arrived => Some(unsafe { operands(reduction, (arrived, room), gpu.as_ref()) }?),
        };
        let cuda = gpu.map(|gpu| CudaComputer::new(&gpu, Some((element, operation)))).transpose()?;
        Collective::new(&schedule, connections, (region, arrived), operands, cuda)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync_notify::collective::rounds::{SHORT, barrier};
    use std::collections::BTreeSet;

    fn of_bytes(bytes: usize) -> Reduction {
        let target = Buffer { address: 0, bytes };
        Reduction { source: None, target, element: Element::U8, operation: Operation::Sum }
    }

    #[test]
    fn every_leg_has_its_other_side_and_none_is_twice() {
        type Sides = fn(u32, u32) -> Vec<Side>;
        let kinds: [Sides; 5] = [
            |rank, size| sides(&barrier(rank, size)),
            |rank, size| sides(&doubling(rank, size, 1)),
            |rank, size| sides(&ring(rank, size, 1, 1)),
            |rank, size| of_bytes(SHORT).sides(rank, size),
            |rank, size| of_bytes(SHORT + 1).sides(rank, size),
        ];
        for size in 1..40 {
            for kind in kinds {
                let all: Vec<_> = (0..size)
                    .flat_map(|rank| kind(rank, size).into_iter().map(move |side| (rank, side)))
                    .collect();
                let pairs = |sends: bool| {
                    let of = all.iter().filter(move |(_, side)| side.sends == sends);
                    let pair = |(rank, side): &(u32, Side)| {
                        let ends = if sends { (*rank, side.rank) } else { (side.rank, *rank) };
                        (ends, side.has_queue_pair)
                    };
                    of.map(pair).collect::<Vec<_>>()
                };
                let (sends, receives) = (pairs(true), pairs(false));
                let distinct: BTreeSet<_> = sends.iter().map(|(ends, _)| *ends).collect();
                assert_eq!((distinct.len(), receives.len()), (sends.len(), sends.len()), "{size}");
                assert_eq!(BTreeSet::from_iter(sends), BTreeSet::from_iter(receives), "{size}");
            }
        }
    }

    #[test]
    fn lengths_that_differ_meet_on_every_leg() {
        for size in 1..40 {
            for rank in 0..size {
                let ends = |bytes| {
                    let sides = of_bytes(bytes).sides(rank, size);
                    BTreeSet::from_iter(sides.into_iter().map(|side| (side.rank, side.sends)))
                };
                assert_eq!(ends(SHORT), ends(SHORT + 1), "{rank} of {size}");
            }
        }
    }

    #[test]
    fn short_buffers_take_fewer_rounds() {
        let rounds = |bytes, rank, size| of_bytes(bytes).schedule(rank, size).rounds.len();
        assert_eq!([1, 2, 4, 8].map(|size| rounds(SHORT, 0, size)), [0, 1, 2, 3]);
        assert_eq!([1, 2, 4, 8].map(|size| rounds(SHORT + 1, 0, size)), [0, 2, 6, 14]);
        // Rank 0 of seven reduces the numbers of rank 4 first, and hands it the result last; rank 3 does not.
        assert_eq!([0, 3, 4].map(|rank| rounds(SHORT, rank, 7)), [4, 2, 1]);
    }
}
