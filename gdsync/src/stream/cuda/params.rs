//! Memory operations in the form of `cuStreamBatchMemOp`.

use crate::cuda::CudaError;
use crate::memop::{Condition, MemOp};
use crate::memory::StreamAddr;
use cudarc::driver::sys;

/// Most memory operations that are assembled on the stack.
const FEW: usize = 4;

/// Calls `call` with memory operations in the form of `cuStreamBatchMemOp` and batch nodes of graphs. A flush
/// directly after a wait becomes a flag of the wait, so there may be fewer entries than operations. Does nothing
/// for no operations.
///
/// For a program's own graphs, whose nodes have the same values at each launch.
///
/// # Errors
/// The call's.
#[inline]
pub fn with_params(
    ops: &[MemOp],
    call: impl FnOnce(&mut [sys::CUstreamBatchMemOpParams]) -> Result<(), CudaError>,
) -> Result<(), CudaError> {
    let empty = sys::CUstreamBatchMemOpParams { pad: [0; 6] };
    if ops.len() <= FEW {
        let mut few = [empty; FEW];
        let count = fill(ops, &mut few);
        return if count == 0 { Ok(()) } else { call(&mut few[..count]) };
    }
    let mut many = vec![empty; ops.len()];
    let count = fill(ops, &mut many);
    call(&mut many[..count])
}

/// Fills in the operations; returns the number of entries. A flush after a wait is a flag of that wait.
#[inline]
fn fill(ops: &[MemOp], params: &mut [sys::CUstreamBatchMemOpParams]) -> usize {
    let mut places = params.iter_mut();
    let mut count = 0;
    let mut unflushed: Option<&mut sys::CUstreamBatchMemOpParams> = None;
    for op in ops {
        if let (MemOp::FlushRemote, Some(wait)) = (op, unflushed.take()) {
            // SAFETY: it was made a wait just before.
            unsafe {
                wait.waitValue.flags |= sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_FLUSH as u32
            };
            continue;
        }
        let Some(place) = places.next() else { break };
        *place = param(op);
        count += 1;
        unflushed = op.is_wait().then_some(place);
    }
    count
}

#[inline]
fn param(op: &MemOp) -> sys::CUstreamBatchMemOpParams {
    use sys::CUstreamBatchMemOpType as Type;
    // Every bit is defined, also of the union's longer members: the driver reads the one that `operation` names.
    let mut params = sys::CUstreamBatchMemOpParams { pad: [0; 6] };
    match *op {
        MemOp::Write32 { addr, value } => {
            params.writeValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
                operation: Type::CU_STREAM_MEM_OP_WRITE_VALUE_32,
                address: addr.get(),
                __bindgen_anon_1: WriteValue { value64: value.into() },
                flags: 0,
                alias: 0,
            };
        }
        MemOp::Write64 { addr, value } => {
            params.writeValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
                operation: Type::CU_STREAM_MEM_OP_WRITE_VALUE_64,
                address: addr.get(),
                __bindgen_anon_1: WriteValue { value64: value },
                flags: 0,
                alias: 0,
            };
        }
        MemOp::Wait32 { addr, condition, value } => {
            params.waitValue = wait(Type::CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, condition, value.into());
        }
        MemOp::Wait64 { addr, condition, value } => {
            params.waitValue = wait(Type::CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, condition, value);
        }
        MemOp::Barrier => {
            params.memoryBarrier = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpMemoryBarrierParams_st {
                operation: Type::CU_STREAM_MEM_OP_BARRIER,
                flags: sys::CUstreamMemoryBarrier_flags::CU_STREAM_MEMORY_BARRIER_TYPE_SYS as u32,
            };
        }
        MemOp::FlushRemote => {
            params.flushRemoteWrites =
                sys::CUstreamBatchMemOpParams_union_CUstreamMemOpFlushRemoteWritesParams_st {
                    operation: Type::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES,
                    flags: 0,
                };
        }
    }
    params
}

use sys::{
    CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st as WaitParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 as WaitValue,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as WriteValue,
};

/// The 32-bit value is the low half of the 64-bit one: the union's members share their place, and the GPU's hosts
/// are little endian.
fn wait(
    operation: sys::CUstreamBatchMemOpType,
    addr: StreamAddr,
    condition: Condition,
    value: u64,
) -> WaitParams {
    use sys::CUstreamWaitValue_flags as Flags;
    let condition = match condition {
        Condition::Geq => Flags::CU_STREAM_WAIT_VALUE_GEQ,
        Condition::Eq => Flags::CU_STREAM_WAIT_VALUE_EQ,
        Condition::And => Flags::CU_STREAM_WAIT_VALUE_AND,
        Condition::Nor => Flags::CU_STREAM_WAIT_VALUE_NOR,
    };
    WaitParams {
        operation,
        address: addr.get(),
        __bindgen_anon_1: WaitValue { value64: value },
        flags: condition as u32,
        alias: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of an entry, as laid out in `cuda.h`: operation, padding, address, value, flags, padding,
    /// alias.
    fn bytes(params: &sys::CUstreamBatchMemOpParams) -> Vec<u64> {
        // SAFETY: all bits of the entry are defined.
        unsafe { params.pad }.to_vec()
    }

    #[test]
    fn operations_are_laid_out_as_cuda_h_says() {
        let addr = StreamAddr::new(0x7000);
        let low = |word: u64| word & 0xffff_ffff;
        let entries = |ops: &[MemOp]| {
            let mut params = vec![sys::CUstreamBatchMemOpParams { pad: [u64::MAX; 6] }; ops.len()];
            let count = fill(ops, &mut params);
            params[..count].iter().map(bytes).collect::<Vec<_>>()
        };
        let wait = MemOp::Wait32 { addr, condition: Condition::Nor, value: 0xfeff_ffff };
        let found =
            entries(&[MemOp::Write32 { addr, value: 5 }, MemOp::Write64 { addr, value: 1 << 40 }, wait]);
        // CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2, WRITE_VALUE_64 = 5, WAIT_VALUE_32 = 1; NOR = 3.
        assert_eq!((low(found[0][0]), found[0][1], low(found[0][2]), low(found[0][3])), (2, 0x7000, 5, 0));
        assert_eq!((low(found[1][0]), found[1][2]), (5, 1 << 40));
        assert_eq!((low(found[2][0]), low(found[2][2]), low(found[2][3])), (1, 0xfeff_ffff, 3));
        // BARRIER = 6; FLUSH_REMOTE_WRITES = 3, WAIT_VALUE_64 = 4, and a flush after a wait is bit 30 of its flags.
        let wait = MemOp::Wait64 { addr, condition: Condition::And, value: 9 };
        let found =
            entries(&[MemOp::FlushRemote, MemOp::Barrier, wait, MemOp::FlushRemote, MemOp::FlushRemote]);
        assert_eq!(found.iter().map(|entry| low(entry[0])).collect::<Vec<_>>(), [3, 6, 4, 3]);
        assert_eq!(low(found[2][3]), 2 | 1 << 30);
    }

    #[test]
    fn no_operations_are_no_call_and_many_are_one() {
        with_params(&[], |_| Err(gdsync_gdr::driver::DriverError::NoDriver.into())).unwrap();
        let ops = vec![MemOp::Barrier; 255];
        let mut seen = 0;
        with_params(&ops, |params| {
            seen = params.len();
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, 255);
    }
}
