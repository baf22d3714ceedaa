//! All-reduces: their schedule, and the memory that they work on.

use crate::channel::Channel;
use crate::collective::Chain;
use crate::collective::ring::ring;
use crate::collective::schedule::{Schedule, Side};
use crate::error::{Class, Failure};
use crate::lane::{self, CudaLane, Operands, Place};
use crate::memory::{Buffer, Region};
use gdsync::cuda::GpuMemory;
use gdsync::cudarc::driver::CudaContext;
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{Access, MemoryRegion, ProtectionDomain};
use gdsync_notify::collective::{Element, Operation};
use std::sync::Arc;

/// An all-reduce as the program asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    /// The input: none where the output has it.
    pub(crate) source: Option<Buffer>,
    pub(crate) target: Buffer,
    pub(crate) element: Element,
    pub(crate) operation: Operation,
}

impl Reduction {
    /// The rounds of a rank.
    pub(crate) fn schedule(&self, rank: u32, size: u32) -> Schedule {
        ring(rank, size, self.target.bytes, self.element.bytes())
    }

    /// The sides of the rounds' messages.
    pub(crate) fn sides(&self, rank: u32, size: u32) -> Vec<Side> {
        self.schedule(rank, size).sides()
    }
}

/// Memory for what arrives, of the kind that the output has.
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
/// As [`Chain::allreduce`].
unsafe fn operands(
    reduction: Reduction,
    (arrivals, bytes): (&Region, usize),
    gpu: Option<&Arc<CudaContext>>,
) -> Result<Operands, Failure> {
    let Reduction { source, target, element, operation } = reduction;
    // SAFETY: the caller's.
    let of = |buffer| unsafe { Place::of(buffer, gpu) };
    let arrivals = match arrivals {
        Region::Host(region) => Place::in_host(region.memory().clone(), gpu),
        Region::Gpu(region) => Place::on_gpu(region.memory().address(), bytes),
        Region::Empty => return Err(Failure::new(Class::Buffer, "the buffer has no bytes")),
    };
    let what = (element, operation);
    Ok(Operands { what, source: source.map(of).transpose()?, target: of(target)?, arrivals })
}

impl Chain {
    /// An all-reduce. All ranks get the same bytes.
    ///
    /// # Safety
    /// As [`Region::register`], for both buffers, which do not overlap.
    pub(crate) unsafe fn allreduce(
        pd: &ProtectionDomain,
        reduction: Reduction,
        channels: &[(Side, &Channel)],
        (rank, size): (u32, u32),
    ) -> Result<Self, Failure> {
        let Reduction { source, target, element, operation } = reduction;
        let schedule = reduction.schedule(rank, size);
        let buffers = source.into_iter().chain([target]);
        // A kernel takes numbers at their multiples only.
        let is_aligned = buffers.clone().all(|buffer| buffer.address.is_multiple_of(element.bytes()));
        let on_gpu = buffers.map(|buffer| buffer.address).find(|address| *address != 0);
        let gpu = if is_aligned { lane::gpu_for(on_gpu)? } else { None };
        // SAFETY: the caller's.
        let region = unsafe { Region::register(pd, target, Access::LOCAL_WRITE) }?;
        // Memory has bytes, also where nothing is reduced.
        let room = schedule.arrivals().max(element.bytes());
        let arrived = arrivals(pd, &region, room, gpu.as_ref())?;
        let operands = match &arrived {
            Region::Empty => None,
            // SAFETY: the caller's.
            arrived => Some(unsafe { operands(reduction, (arrived, room), gpu.as_ref()) }?),
        };
        let cuda = gpu.map(|gpu| CudaLane::new(&gpu, Some((element, operation)))).transpose()?;
        Chain::new(&schedule, channels, (region, arrived), operands, cuda)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::barrier::barrier;
    use std::collections::BTreeSet;

    #[test]
    fn every_leg_has_its_other_side_and_none_is_twice() {
        type Sides = fn(u32, u32) -> Vec<Side>;
        let kinds: [Sides; 2] =
            [|rank, size| barrier(rank, size).sides(), |rank, size| ring(rank, size, 1, 1).sides()];
        for size in 1..40 {
            for sides in kinds {
                let all: Vec<_> = (0..size)
                    .flat_map(|rank| sides(rank, size).into_iter().map(move |side| (rank, side)))
                    .collect();
                let pairs = |sends: bool| {
                    let of = all.iter().filter(move |(_, side)| side.sends == sends);
                    let pair = |(rank, side): &(u32, Side)| {
                        let ends = if sends { (*rank, side.peer) } else { (side.peer, *rank) };
                        (ends, side.carries)
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
}
