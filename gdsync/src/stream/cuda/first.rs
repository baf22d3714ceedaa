//! What a context's first stream does once, so that no post does.
//!
//! The driver loads some things when a context first uses them: for batches of memory operations, for
//! copies, and for its allocator. So the first stream of a context has all of them made, on gdsync's
//! own stream and with memory of gdsync's own, and nothing waits for that.

use super::mem_ops;
use super::params::with_params;
use crate::cuda::{CudaError, GpuContext, GpuMemory, check};
use crate::memop::{Condition, MemOp};
use crate::memory::StreamAddr;
use crate::memory::arena::Block;
use cudarc::driver::sys;
use std::sync::Arc;

/// Bytes that the operations name: the words that stay 0, and a part that copies overwrite.
const LEN: usize = 64;
const COPIED: u64 = 32;

/// Has the driver load what posts use. Where that fails, the posts have it loaded, and report what
/// they are told.
pub(super) fn load(context: &Arc<GpuContext>) {
    let loaded = context.at_first_stream(|stream| {
        // Kept: the driver's allocator keeps its piece for the next small allocation, too.
        let memory = GpuMemory::unfilled(context, LEN)?;
        let no_memory =
            |error: std::io::Error| CudaError::NoHostMemory { len: LEN, reason: error.to_string() };
        let block = Block::holding(&[0; LEN]).map_err(no_memory)?;
        let at = context.translate(block.addr(), LEN)?;
        let done =
            submit(context, stream, at).and_then(|()| copy(stream, at.get() + COPIED, memory.address()));
        done.unwrap_or_else(left_to_posts);
        // Whatever was submitted may be outstanding.
        Ok((memory, block))
    });
    loaded.unwrap_or_else(left_to_posts);
}

fn left_to_posts(error: CudaError) {
    tracing::debug!(%error, "the driver loads what posts need when the first one is made");
}

/// Operations of each kind, which change nothing: words that are 0.
fn submit(context: &Arc<GpuContext>, stream: sys::CUstream, at: StreamAddr) -> Result<(), CudaError> {
    let caps = mem_ops(&context.capabilities);
    let addr = StreamAddr::new(at.get() + 8);
    let mut ops = vec![
        MemOp::Write32 { addr: at, value: 0 },
        MemOp::Wait32 { addr: at, condition: Condition::Geq, value: 0 },
    ];
    if caps.ops_64_bit {
        ops.push(MemOp::Write64 { addr, value: 0 });
        ops.push(MemOp::Wait64 { addr, condition: Condition::Geq, value: 0 });
    }
    with_params(&ops, |params| {
        let (count, params) = (params.len() as u32, params.as_mut_ptr());
        // SAFETY: the stream is gdsync's own and the array has `count` entries, which the driver
        // copies. The words are of a block that is kept as long as the context.
        check("cuStreamBatchMemOp", unsafe { sys::cuStreamBatchMemOp_v2(stream, count, params, 0) })
    })
}

/// Copies both ways, by the call that writes of bytes make.
fn copy(stream: sys::CUstream, host: u64, gpu: u64) -> Result<(), CudaError> {
    for (to, from) in [(gpu, host), (host, gpu)] {
        // SAFETY: the stream is gdsync's own. Both are memory of gdsync's own, which is kept as long
        // as the context, and from these places on more than so many bytes long.
        check("cuMemcpyAsync", unsafe { sys::cuMemcpyAsync(to, from, LEN - COPIED as usize, stream) })?;
    }
    Ok(())
}
