//! Common parts of measurements on a GPU.

use super::pair::Pair;
use gdsync::cudarc::driver::CudaContext;
use gdsync::memop::{MemOpStream, Word32, Word64};
use gdsync::memory::StreamAddr;
use gdsync::{CudaStream, PinnedMemory, Stream, cuda};
use gdsync_cli::failure::Failure;
use gdsync_sys::shared::SharedU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The shared word that the stream waits for, and the one that it writes last.
pub(super) const START: usize = 0;
pub(super) const END: usize = 1;

/// A GPU, a stream of it, and words shared with the CPU.
pub(super) struct Gpu {
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Stream<CudaStream>,
    words: PinnedMemory,
}

impl Gpu {
    pub(super) fn new(ordinal: u32) -> Result<Self, Failure> {
        let context = cuda::context(ordinal)?;
        let stream = Stream::new(CudaStream::new(context.new_stream()?)?)?;
        Ok(Gpu { context, stream, words: PinnedMemory::allocate(4096)? })
    }

    pub(super) fn name(&self) -> Result<String, Failure> {
        Ok(self.context.name()?)
    }

    /// Returns the GPU's name, and how doorbells reach the card.
    pub(super) fn described(&self, pair: &Pair) -> Result<(String, String), Failure> {
        Ok((self.name()?, self.stream.doorbells(&pair.left)?.to_string()))
    }

    /// Returns the word of a cache line, which holds one word.
    pub(super) fn word(&self, line: usize) -> &SharedU32 {
        &self.words.words32()[line * 16]
    }

    pub(super) fn handle(&self, line: usize) -> Result<Word32, Failure> {
        Ok(Word32::new(&self.words, line * 64)?)
    }

    /// Returns the stream's address of that word.
    pub(super) fn addr(&self, line: usize) -> Result<StreamAddr, Failure> {
        Ok(self.stream.translate(Word64::new(&self.words, line * 64)?.addr(), 8)?)
    }

    pub(super) fn await_word(&self, line: usize, value: u32) -> Result<(), Failure> {
        let mut looks = 0u32;
        while self.word(line).load(Ordering::Acquire) != value {
            looks = looks.wrapping_add(1);
            // A failed GPU writes nothing any more.
            if looks.is_multiple_of(1 << 24) {
                self.stream.query()?;
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Flips the word that the stream waits for, after giving the stream `rest` to reach it. Returns the time, in µs,
    /// until the CPU sees the stream's last write.
    pub(super) fn flip(&self, value: u32, rest: Duration) -> Result<f64, Failure> {
        std::thread::sleep(rest);
        let start = Instant::now();
        self.word(START).store(value, Ordering::Release);
        self.await_word(END, value)?;
        let time = super::micros_since(start);
        self.synchronize()?;
        Ok(time)
    }

    pub(super) fn synchronize(&self) -> Result<(), Failure> {
        Ok(self.stream.synchronize()?)
    }
}

/// Operations as a program would write them by hand, for references.
pub(super) mod by_hand {
    use gdsync::cudarc::driver::sys;
    use gdsync::cudarc::driver::sys::{
        CUstreamBatchMemOpParams as Params,
        CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st as Wait,
        CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 as WaitValue,
        CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as Write,
        CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as WriteValue,
        CUstreamBatchMemOpType as Type, CUstreamWaitValue_flags as Flags,
    };
    use gdsync::memop::{Condition, MemOp, MemOpStream};
    use gdsync::memory::StreamAddr;
    use gdsync::{CudaStream, SoftStream};
    use gdsync_cli::failure::Failure;

    /// A stream that takes operations without the library in between.
    pub(in crate::bench) trait Bare: MemOpStream + Sized {
        /// An operation in the form of the stream's driver.
        type Op: Copy;

        fn write32(addr: StreamAddr, value: u32) -> Self::Op;
        fn write64(addr: StreamAddr, value: u64) -> Self::Op;
        fn wait32(addr: StreamAddr, condition: Condition, value: u32) -> Self::Op;

        /// Enqueues operations.
        ///
        /// # Safety
        /// Every address is valid for the stream, and aligned, until the stream has passed the operation. No other
        /// thread submits to it.
        unsafe fn enqueue(&self, ops: &mut [Self::Op]) -> Result<(), Failure>;
    }

    impl Bare for SoftStream {
        type Op = MemOp;

        fn write32(addr: StreamAddr, value: u32) -> MemOp {
            MemOp::Write32 { addr, value }
        }

        fn write64(addr: StreamAddr, value: u64) -> MemOp {
            MemOp::Write64 { addr, value }
        }

        fn wait32(addr: StreamAddr, condition: Condition, value: u32) -> MemOp {
            MemOp::Wait32 { addr, condition, value }
        }

        unsafe fn enqueue(&self, ops: &mut [MemOp]) -> Result<(), Failure> {
            // SAFETY: the caller's promise; the addresses were translated by the stream.
            Ok(unsafe { self.submit(ops) }?)
        }
    }

    fn write(operation: Type, addr: StreamAddr, value64: u64) -> Params {
        let (address, __bindgen_anon_1) = (addr.get(), WriteValue { value64 });
        let mut params = Params { pad: [0; 6] };
        params.writeValue = Write { operation, address, __bindgen_anon_1, flags: 0, alias: 0 };
        params
    }

    impl Bare for CudaStream {
        type Op = Params;

        fn write32(addr: StreamAddr, value: u32) -> Params {
            write(Type::CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value.into())
        }

        fn write64(addr: StreamAddr, value: u64) -> Params {
            write(Type::CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value)
        }

        fn wait32(addr: StreamAddr, condition: Condition, value: u32) -> Params {
            let flags = match condition {
                Condition::Geq => Flags::CU_STREAM_WAIT_VALUE_GEQ,
                Condition::Eq => Flags::CU_STREAM_WAIT_VALUE_EQ,
                Condition::And => Flags::CU_STREAM_WAIT_VALUE_AND,
                Condition::Nor => Flags::CU_STREAM_WAIT_VALUE_NOR,
            };
            let mut params = Params { pad: [0; 6] };
            params.waitValue = Wait {
                operation: Type::CU_STREAM_MEM_OP_WAIT_VALUE_32,
                address: addr.get(),
                __bindgen_anon_1: WaitValue { value64: value.into() },
                flags: flags as u32,
                alias: 0,
            };
            params
        }

        /// Makes one call of the driver, and nothing else.
        unsafe fn enqueue(&self, params: &mut [Params]) -> Result<(), Failure> {
            let (count, at) = (u32::try_from(params.len())?, params.as_mut_ptr());
            // SAFETY: the stream is alive, and the array has `count` entries; the addresses in it are the caller's
            // promise.
            unsafe { sys::cuStreamBatchMemOp_v2(self.raw(), count, at, 0) }.result()?;
            Ok(())
        }
    }
}
