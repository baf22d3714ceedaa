//! Reductions of blocks in rank order, on the CPU and on GPUs, so that floating-point sums are bit-identical everywhere.

use crate::collective::element::{Element, Operation, combine};
use crate::collective::error::CollectiveError;
use crate::collective::kernel::{Blocks, Kernel};
use crate::error::NotifyError;
use crate::segment::Segment;
use gdsync::SoftStream;
use gdsync::memop::MemOpStream;
use gdsync::stream::{Cpu, CudaStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that the CPU reduces at a time.
const PIECE: usize = 32 * 1024;

#[derive(Debug)]
pub(crate) struct Reducer {
    pub(super) segment: Segment,
    pub(super) element: Element,
    pub(super) operation: Operation,
    pub(super) kernel: Option<Kernel>,
    /// True if a reduction by the CPU could not reach its memory.
    pub(super) has_failed: AtomicBool,
}

impl Reducer {
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    fn run(&self, blocks: Blocks) -> Result<(), NotifyError> {
        let Blocks { own, others, result, len: all, ranks, place } = blocks;
        let (mut sum, mut other) = (vec![0; PIECE.min(all)], vec![0; PIECE.min(all)]);
        for start in (0..all).step_by(PIECE) {
            let len = PIECE.min(all - start);
            let (sum, other) = (&mut sum[..len], &mut other[..len]);
            for rank in 0..ranks {
                let at = if rank == place { own } else { others.wrapping_add(rank as usize * all) };
                if rank == 0 {
                    self.segment.read(at + start, sum)?;
                } else {
                    self.segment.read(at + start, other)?;
                    combine(self.element, self.operation, sum, other);
                }
            }
            self.segment.write(result + start, sum)?;
        }
        Ok(())
    }

    /// Calls [`Self::run`] and records an error.
    fn run_noting(&self, blocks: Blocks) {
        if let Err(error) = self.run(blocks) {
            tracing::error!(%error, "a reduction could not reach its memory");
            self.has_failed.store(true, Ordering::Release);
        }
    }
}

/// Streams that can reduce: software streams and [`Cpu`] by the CPU, CUDA streams by a kernel.
pub trait CollectiveStream: MemOpStream {
    /// Refuses reductions that [`Self::reduce`] cannot perform.
    #[doc(hidden)]
    fn check_reduction(&self, _: &Reduction) -> Result<(), CollectiveError> {
        Ok(())
    }

    /// Reduces in the order of the stream. Returns true if a later operation of the stream must keep the segment.
    #[doc(hidden)]
    fn reduce(&self, reduction: &Reduction) -> Result<bool, CollectiveError>;
}

/// The reduction of a round.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Reduction {
    pub(crate) reducer: Arc<Reducer>,
    pub(crate) blocks: Blocks,
}

impl CollectiveStream for SoftStream {
    fn reduce(&self, reduction: &Reduction) -> Result<bool, CollectiveError> {
        let Reduction { reducer, blocks } = reduction.clone();
        self.launch(move || reducer.run_noting(blocks))?;
        Ok(false)
    }
}

impl CollectiveStream for Cpu {
    fn reduce(&self, reduction: &Reduction) -> Result<bool, CollectiveError> {
        reduction.reducer.run(reduction.blocks)?;
        Ok(false)
    }
}

impl CollectiveStream for CudaStream {
    fn check_reduction(&self, reduction: &Reduction) -> Result<(), CollectiveError> {
        let kernel = reduction.reducer.kernel.as_ref().ok_or(CollectiveError::NoKernel)?;
        kernel.check(self)
    }

    fn reduce(&self, reduction: &Reduction) -> Result<bool, CollectiveError> {
        let kernel = reduction.reducer.kernel.as_ref().ok_or(CollectiveError::NoKernel)?;
        kernel.launch(self, reduction.blocks)?;
        Ok(true)
    }
}
