//! Reductions: of a block from each rank one is made. The order is that of the ranks, on the CPU and on GPUs, so that sums of
//! floating-point numbers are the same everywhere, bit for bit.

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

/// The reduction of a plan.
#[derive(Debug)]
pub(crate) struct Reducer {
    segment: Segment,
    element: Element,
    operation: Operation,
    /// Bytes of a block.
    block: usize,
    ranks: u32,
    /// The place of this rank among them.
    own: u32,
    kernel: Option<Kernel>,
    /// A reduction of the CPU could not reach the memory.
    has_failed: AtomicBool,
}

impl Reducer {
    pub(crate) fn new(
        segment: Segment,
        (element, operation): (Element, Operation),
        block: usize,
        (ranks, own): (u32, u32),
        kernel: Option<Kernel>,
    ) -> Self {
        Reducer { segment, element, operation, block, ranks, own, kernel, has_failed: AtomicBool::new(false) }
    }

    /// Whether a reduction of the CPU could not reach its memory.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    fn run(&self, blocks: Blocks) -> Result<(), NotifyError> {
        let (mut sum, mut other) = (vec![0; PIECE.min(self.block)], vec![0; PIECE.min(self.block)]);
        for start in (0..self.block).step_by(PIECE) {
            let len = PIECE.min(self.block - start);
            let (sum, other) = (&mut sum[..len], &mut other[..len]);
            for rank in 0..self.ranks {
                let at =
                    if rank == self.own { blocks.own } else { blocks.others + rank as usize * self.block };
                if rank == 0 {
                    self.segment.read(at + start, sum)?;
                } else {
                    self.segment.read(at + start, other)?;
                    combine(self.element, self.operation, sum, other);
                }
            }
            self.segment.write(blocks.result + start, sum)?;
        }
        Ok(())
    }

    /// [`Self::run`] where no caller takes the error.
    fn run_noting(&self, blocks: Blocks) {
        if let Err(error) = self.run(blocks) {
            tracing::error!(%error, "a reduction could not reach its memory");
            self.has_failed.store(true, Ordering::Release);
        }
    }
}

/// Streams that can reduce: software streams and [`Cpu`] by the CPU, CUDA's by a kernel.
pub trait CollectiveStream: MemOpStream {
    /// Refuses what [`Self::reduce`] cannot do.
    #[doc(hidden)]
    fn check_reduction(&self, _: &Reduction) -> Result<(), CollectiveError> {
        Ok(())
    }

    /// Reduces, in the order of the stream. Returns whether something of the stream has to name the segment behind it, so that
    /// the memory is kept until then.
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
        let Reducer { block, ranks, own, .. } = *reduction.reducer;
        kernel.launch(self, reduction.blocks, block, (ranks, own))?;
        Ok(true)
    }
}
