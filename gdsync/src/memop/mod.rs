//! Memory operations: what a stream can do, what it can name, and the trait of what performs them.

#[deny(unsafe_code)]
mod place;

pub use place::{GpuWord32, GpuWord64, MemoryKind, StreamMemory, StreamWord, Word32, Word64};
pub(crate) use place::{Named, Place, Site};

use crate::cuda::{Gpu, GpuMemory};
use crate::memory::{HostAddr, StreamAddr};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// When a wait is satisfied, as CUDA defines it (`CUstreamWaitValue_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// Cyclic "greater or equal": the signed difference `word - value` is not negative.
    Geq,
    /// `word == value`.
    Eq,
    /// `word & value != 0`.
    And,
    /// `!(word | value) != 0`.
    Nor,
}

/// What a condition says of words of one width.
macro_rules! of_width {
    ($word:ty, $signed:ty, $satisfier:ident, $holds:ident) => {
        impl Condition {
            /// A value of the word that meets the condition; `None` where no value does.
            pub fn $satisfier(self, value: $word) -> Option<$word> {
                match self {
                    Condition::Geq | Condition::Eq => Some(value),
                    Condition::And => (value != 0).then_some(value),
                    Condition::Nor => (value != <$word>::MAX).then_some(0),
                }
            }

            /// True if a word with that content meets the condition.
            pub(crate) fn $holds(self, word: $word, value: $word) -> bool {
                match self {
                    Condition::Geq => word.wrapping_sub(value) as $signed >= 0,
                    Condition::Eq => word == value,
                    Condition::And => word & value != 0,
                    Condition::Nor => !(word | value) != 0,
                }
            }
        }
    };
}

of_width!(u32, i32, satisfier32, holds32);
of_width!(u64, i64, satisfier64, holds64);

/// One operation of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemOp {
    /// Writes 32 bits.
    Write32 {
        /// Where, aligned to 4 bytes.
        addr: StreamAddr,
        /// What.
        value: u32,
    },
    /// Writes 64 bits, in one piece.
    Write64 {
        /// Where, aligned to 8 bytes.
        addr: StreamAddr,
        /// What.
        value: u64,
    },
    /// Waits for a 32-bit word.
    Wait32 {
        /// Where, aligned to 4 bytes.
        addr: StreamAddr,
        /// When it is satisfied.
        condition: Condition,
        /// The value compared with.
        value: u32,
    },
    /// Waits for a 64-bit word.
    Wait64 {
        /// Where, aligned to 8 bytes.
        addr: StreamAddr,
        /// When it is satisfied.
        condition: Condition,
        /// The value compared with.
        value: u64,
    },
    /// Everything before is visible to everybody before anything after.
    Barrier,
    /// What cards wrote before the last wait was satisfied is visible to whatever comes after.
    FlushRemote,
}

impl MemOp {
    pub(crate) fn is_wait(&self) -> bool {
        matches!(self, MemOp::Wait32 { .. } | MemOp::Wait64 { .. })
    }
}

/// What a backend can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemOpCaps {
    /// Most operations of one submission.
    pub max_ops: usize,
    /// Most submissions that may be outstanding: one more could block the submitting thread.
    pub max_outstanding: usize,
    /// 64-bit writes and waits.
    pub ops_64_bit: bool,
    /// [`Condition::Nor`].
    pub wait_nor: bool,
    /// Every write is visible no earlier than everything before it, without a barrier.
    pub writes_are_fenced: bool,
    /// Waits need [`MemOp::FlushRemote`] after them, and the backend has it.
    pub flush_after_wait: bool,
    /// [`MemOp::FlushRemote`], asked for by [`crate::Batch::flush`].
    pub flush_remote: bool,
    /// Atomic operations of kernels beside it, on host memory, are one step for the CPU and for
    /// cards, too.
    pub host_atomics: bool,
}

impl MemOpCaps {
    /// Everything, within the limits measured on an H200 with CUDA 13 (255 operations, 1021 blocked
    /// submissions), so that a program that runs on a software stream runs on a GPU.
    pub const FULL: MemOpCaps = MemOpCaps {
        max_ops: 255,
        max_outstanding: 1021,
        ops_64_bit: true,
        wait_nor: true,
        writes_are_fenced: true,
        flush_after_wait: false,
        flush_remote: true,
        host_atomics: true,
    };
}

/// What a backend keeps bytes in until it has copied them; nothing, where it needs nothing.
pub type Staged = Option<Box<dyn Any + Send + Sync>>;

/// A backend: something that performs memory operations in the order of submission.
///
/// A [`Stream`](crate::Stream) owns its backend, or owns it in a `Box`: no other stream submits to it.
///
/// ```compile_fail,E0277
/// use gdsync::{Stream, stream::Cpu};
/// use std::sync::Arc;
///
/// let shared = Arc::new(Cpu::new());
/// let (first, second) = (Stream::new(shared.clone()), Stream::new(shared));
/// ```
///
/// # Safety
/// Streams give memory back because of what a backend says. So an implementation keeps what its
/// methods promise, the safe ones too:
/// - An address of [`Self::translate`] is where the backend reaches that host memory, until
///   [`Self::epoch`] changes; [`Self::reaches`] and [`Self::owns`] are true of its GPU memory.
/// - Operations are performed in the order of their submission, each once, and not at all after an
///   error as [`Self::submit`] says.
/// - After [`Self::wait_idle`] has returned true, nothing that was submitted before is performed.
/// - What [`Self::caps`] says of fences, it does.
pub unsafe trait MemOpStream: Send + Sync {
    /// What it can do. Constant for one backend.
    fn caps(&self) -> MemOpCaps;

    /// The stream's address of host memory, `len` bytes from `addr` on.
    ///
    /// # Errors
    /// [`StreamError::Unregistered`] where the stream cannot reach it.
    fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError>;

    /// A number that has changed whenever a translation given earlier may not hold any more, so
    /// that a cache of translations can be checked. Constant for a backend that reaches everything
    /// always.
    fn epoch(&self) -> u64 {
        0
    }

    /// The stream signals after every submission ([`crate::stream::StreamOptions::always_signal`]):
    /// `probe` says whether it has performed all. A backend that does not own its stream asks this
    /// in the stream's place, as the program may have destroyed it.
    fn idle_probe(&self, quiet: Arc<dyn Fn() -> bool + Send + Sync>) {
        let _ = quiet;
    }

    /// True where [`Self::submit`] performs the operations before it returns, and so may wait as
    /// long as they do. [`crate::Stream`] answers other threads meanwhile, which takes
    /// [`Self::wait_idle`] to say that the backend is not idle.
    fn is_synchronous(&self) -> bool {
        false
    }

    /// Number of the device context that performs, 0 for the CPU.
    fn device(&self) -> u64 {
        0
    }

    /// Submits operations, at most [`MemOpCaps::max_ops`].
    ///
    /// # Errors
    /// After [`StreamError::Failed`] the backend touches no memory any more, and it is not known
    /// which of the operations it performed. After any other error it has performed, and will
    /// perform, none of them.
    ///
    /// # Safety
    /// Every address comes from [`Self::translate`] of this backend, is aligned to its operation,
    /// and stays valid until the operation has been performed or the backend has failed. No other
    /// thread submits to this backend during the call.
    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError>;

    /// Whether the stream reaches memory of a GPU, by the address that
    /// [`crate::cuda::GpuMemory::address`] says.
    ///
    /// # Errors
    /// [`StreamError::Unsupported`] where it performs on the CPU, [`StreamError::OtherGpu`] where
    /// on another GPU that was given no access ([`crate::cuda::enable_peer_access`]).
    fn reaches(&self, memory: &GpuMemory) -> Result<(), StreamError> {
        let _ = memory;
        Err(StreamError::Unsupported { what: "GPU memory: only streams of that GPU do" })
    }

    /// Whether memory of a GPU is the stream's own GPU's: kernels there perform atomic operations on it
    /// in one step, and see what cards write into it in the order that its owner sees. Of a peer's
    /// memory that it reaches, neither need be true.
    ///
    /// # Errors
    /// As [`Self::reaches`].
    fn owns(&self, memory: &GpuMemory) -> Result<(), StreamError> {
        self.reaches(memory)
    }

    /// Writes bytes in stream order: a submission of its own, after all that was submitted before.
    /// Takes a copy of the bytes before it returns. `to..to + bytes.len()` is of the given kind and
    /// lies, where that is the host's, within one page.
    ///
    /// Returns what has to stay alive until it has been performed: where the stream finds the copy.
    ///
    /// # Errors
    /// As [`Self::submit`]; [`StreamError::Unsupported`] for a backend that cannot.
    ///
    /// # Safety
    /// As [`Self::submit`], but for the alignment; and the returned value stays alive as long as
    /// the addresses stay valid.
    unsafe fn write_bytes(
        &self,
        to: StreamAddr,
        kind: MemoryKind,
        bytes: &[u8],
    ) -> Result<Staged, StreamError> {
        let _ = (to, kind, bytes);
        Err(StreamError::Unsupported { what: "copying bytes" })
    }

    /// Waits until everything submitted has been performed; false where that took longer than
    /// `timeout`.
    ///
    /// # Errors
    /// [`StreamError::Failed`].
    fn wait_idle(&self, timeout: Duration) -> Result<bool, StreamError>;
}

/// Errors of backends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The stream cannot reach an address.
    #[error(
        "the stream cannot reach {len} bytes at {addr:?}: only memory made by this library, or registered with the stream, can be named"
    )]
    Unregistered {
        /// The address.
        addr: HostAddr,
        /// Length in bytes.
        len: usize,
    },
    /// A call of the CUDA driver failed; nothing was performed.
    #[error(transparent)]
    Cuda(crate::cuda::CudaError),
    /// The stream's device refuses to map an address.
    #[error("the stream cannot reach {addr:?}: {reason}")]
    Unreachable {
        /// The address.
        addr: HostAddr,
        /// What the device said.
        reason: String,
    },
    /// GPU memory of another context.
    #[error(
        "the memory is of {}, and the stream of {} or of another context on it: use a stream of the memory's context; words, bytes and queues may lie in a peer's memory after gdsync::cuda::enable_peer_access",
        Gpu::from_device(*.memory), Gpu::from_device(*.stream)
    )]
    OtherGpu {
        /// The stream's GPU.
        stream: i32,
        /// The memory's.
        memory: i32,
    },
    /// The stream lacks a capability.
    #[error("the stream does not support {what}")]
    Unsupported {
        /// The capability.
        what: &'static str,
    },
    /// The stream has failed for good.
    #[error("the stream has failed: {reason}")]
    Failed {
        /// Why.
        reason: String,
    },
    /// Pinned memory for the stream's own words could not be had.
    #[error("no memory for a mailbox: {reason}")]
    NoMemory {
        /// The operating system's error.
        reason: String,
    },
    /// The system has no room for another stream.
    #[error("cannot start the stream's thread: {reason}")]
    NoThread {
        /// The operating system's error.
        reason: String,
    },
}

/// Why a word is none that a stream can name, or wait for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WordError {
    /// A word lies outside its memory or is not aligned.
    #[error("offset {offset} is no aligned {size}-byte word within {len} bytes")]
    Outside {
        /// Byte offset.
        offset: usize,
        /// Word size in bytes.
        size: usize,
        /// Length of the memory.
        len: usize,
    },
    /// A wait that no value of the word satisfies.
    #[error("no word is {condition:?} {value:#x}: a stream that waits for it never goes on")]
    NeverSatisfied {
        /// The condition.
        condition: Condition,
        /// The value compared with.
        value: u64,
    },
}

/// Methods that are those of the backend in the box.
macro_rules! forwarded {
    ($(fn $method:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)?;)+) => {
        $(
            fn $method(&self, $($argument: $type),*) $(-> $answer)? {
                (**self).$method($($argument),*)
            }
        )+
    };
}

/// Backends in boxes, so that streams of different kinds fit one type.
///
/// Not behind shared pointers: two streams could then submit to one backend at the same time.
// SAFETY: every method is that of the backend in the box.
unsafe impl<B: MemOpStream + ?Sized> MemOpStream for Box<B> {
    forwarded! {
        fn caps() -> MemOpCaps;
        fn translate(addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError>;
        fn epoch() -> u64;
        fn idle_probe(probe: Arc<dyn Fn() -> bool + Send + Sync>);
        fn is_synchronous() -> bool;
        fn device() -> u64;
        fn reaches(memory: &GpuMemory) -> Result<(), StreamError>;
        fn owns(memory: &GpuMemory) -> Result<(), StreamError>;
        fn wait_idle(timeout: Duration) -> Result<bool, StreamError>;
    }

    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        // SAFETY: the caller's.
        unsafe { (**self).submit(ops) }
    }

    unsafe fn write_bytes(
        &self,
        to: StreamAddr,
        kind: MemoryKind,
        bytes: &[u8],
    ) -> Result<Staged, StreamError> {
        // SAFETY: the caller's.
        unsafe { (**self).write_bytes(to, kind, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn greater_or_equal_is_cyclic() {
        assert!(Condition::Geq.holds32(0, u32::MAX) && !Condition::Geq.holds32(u32::MAX, 0));
        assert!(Condition::Geq.holds64(5, 5) && !Condition::Geq.holds64(4, 5));
        assert!(Condition::Geq.holds64(1, u64::MAX));
    }

    fn condition() -> impl Strategy<Value = Condition> {
        prop_oneof![Just(Condition::Geq), Just(Condition::Eq), Just(Condition::And), Just(Condition::Nor)]
    }

    proptest! {
        #[test]
        fn a_satisfier_satisfies(condition in condition(), short: u32, long: u64, edge in prop::sample::select(vec![0, u64::MAX])) {
            for value in [short, edge as u32] {
                let met = condition.satisfier32(value).map(|word| condition.holds32(word, value));
                prop_assert!(met != Some(false));
            }
            for value in [long, edge] {
                let met = condition.satisfier64(value).map(|word| condition.holds64(word, value));
                prop_assert!(met != Some(false));
            }
        }

        #[test]
        fn and_waits_for_a_set_bit_and_nor_for_a_clear_one(word: u32, bit in 0u32..32) {
            let mask = 1u32 << bit;
            prop_assert_eq!(Condition::And.holds32(word, mask), word & mask != 0);
            prop_assert_eq!(Condition::Nor.holds32(word, !mask), word & mask == 0);
            prop_assert_eq!(Condition::Nor.holds64(u64::from(word), !u64::from(mask)), word & mask == 0);
            prop_assert_eq!(Condition::And.holds64(u64::from(word) << 32, u64::from(mask) << 32), word & mask != 0);
            prop_assert!(Condition::Eq.holds32(word, word) && !Condition::Eq.holds32(word, word ^ mask));
        }
    }
}
