//! Memory operations of streams, the memory that they can name, and the trait of the backends that perform them.

#[deny(unsafe_code)]
mod cause;
#[deny(unsafe_code)]
mod error;
#[deny(unsafe_code)]
mod location;
#[deny(unsafe_code)]
mod words;

pub use crate::memory::EndProbe;
pub use cause::{Gone, WaitCause, explain};
pub use error::{StreamError, WordError};
pub(crate) use location::{Location, Named, Site};
pub use location::{MemoryKind, StreamMemory, StreamWord};
pub use words::{GpuWord32, GpuWord64, Word32, Word64};

use crate::cuda::GpuMemory;
use crate::memory::{HostAddr, StreamAddr};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The condition of a wait, as CUDA defines it (`CUstreamWaitValue_flags`).
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

/// In lower-case letters: `geq`, `eq`, `and` and `nor`.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Condition::Geq => "geq",
            Condition::Eq => "eq",
            Condition::And => "and",
            Condition::Nor => "nor",
        })
    }
}

/// Methods for words of one width.
macro_rules! of_width {
    ($word:ty, $signed:ty, $satisfier:ident, $holds:ident) => {
        impl Condition {
            /// A value of the word that meets the condition; `None` if no value does.
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

/// An operation of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemOp {
    /// Writes 32 bits.
    Write32 {
        /// The address, aligned to 4 bytes.
        addr: StreamAddr,
        /// The value.
        value: u32,
    },
    /// Writes 64 bits at once.
    Write64 {
        /// The address, aligned to 8 bytes.
        addr: StreamAddr,
        /// The value.
        value: u64,
    },
    /// Waits for a 32-bit word.
    Wait32 {
        /// The address, aligned to 4 bytes.
        addr: StreamAddr,
        /// The condition.
        condition: Condition,
        /// The value compared with.
        value: u32,
    },
    /// Waits for a 64-bit word.
    Wait64 {
        /// The address, aligned to 8 bytes.
        addr: StreamAddr,
        /// The condition.
        condition: Condition,
        /// The value compared with.
        value: u64,
    },
    /// Makes everything before visible to all observers before anything after.
    Barrier,
    /// Makes everything that cards wrote before the last wait was satisfied visible to everything after.
    FlushRemote,
}

impl MemOp {
    pub(crate) fn is_wait(&self) -> bool {
        matches!(self, MemOp::Wait32 { .. } | MemOp::Wait64 { .. })
    }
}

/// The capabilities of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemOpCaps {
    /// Maximum number of operations in a submission.
    pub max_ops: usize,
    /// Maximum number of outstanding submissions: one more could block the submitting thread.
    pub max_outstanding: usize,
    /// 64-bit writes and waits.
    pub ops_64_bit: bool,
    /// [`Condition::Nor`].
    pub wait_nor: bool,
    /// Every write becomes visible after everything before it, without a barrier.
    pub writes_are_fenced: bool,
    /// Waits need [`MemOp::FlushRemote`] after them, and the backend has it.
    pub flush_after_wait: bool,
    /// [`MemOp::FlushRemote`], for [`crate::Batch::flush`].
    pub flush_remote: bool,
    /// Atomic operations of the GPU's kernels on host memory are atomic for the CPU and for cards.
    pub host_atomics: bool,
}

impl MemOpCaps {
    /// All capabilities, within the limits measured on an H200 with CUDA 13 (255 operations, 1021 blocked
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

/// Memory with bytes that a backend has yet to copy, if it needs any.
pub type Staged = Option<Box<dyn Any + Send + Sync>>;

/// A backend, which performs memory operations in the order of submission.
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
/// Streams release memory because of a backend's answers. So an implementation keeps the promises of its methods,
/// including the safe ones:
/// - At the address that [`Self::translate`] returns, the backend reaches that host memory until [`Self::epoch`]
///   changes; [`Self::reaches`] and [`Self::check_same_gpu`] are right about GPU memory.
/// - Operations are performed in the order of their submission, each once, and not at all after an error, as
///   [`Self::submit`] says.
/// - After [`Self::wait_idle`] has returned true, nothing that was submitted before is performed.
/// - Once a probe of [`Self::end_probe`] has returned true, nothing that was submitted is performed.
/// - After [`Self::stop`] has returned true and called `then`, it accesses no memory any more.
/// - It fences as [`Self::caps`] says.
pub unsafe trait MemOpStream: Send + Sync {
    /// The capabilities, constant for a backend.
    fn caps(&self) -> MemOpCaps;

    /// Returns the stream's address of host memory, `len` bytes from `addr` on.
    ///
    /// # Errors
    /// [`StreamError::Unregistered`] if the stream cannot reach it.
    fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError>;

    /// A number that changes whenever an earlier translation may have become invalid, to check caches of
    /// translations. Constant for a backend that reaches everything always.
    fn epoch(&self) -> u64 {
        0
    }

    /// Called when a [`Stream`](crate::Stream) is dropped with work outstanding: instead of a last submission that writes the
    /// stream's progress, the probe is asked about it, without the backend and by any thread.
    fn end_probe(&self) -> Option<Arc<dyn EndProbe>> {
        None
    }

    /// True if [`Self::submit`] performs the operations before it returns, and so may block. [`crate::Stream`] serves
    /// other threads meanwhile, and [`Self::wait_idle`] must then report that the backend is not idle.
    fn is_synchronous(&self) -> bool {
        false
    }

    /// Id of the device context that performs the operations, 0 for the CPU.
    fn device(&self) -> u64 {
        0
    }

    /// Submits operations, at most [`MemOpCaps::max_ops`].
    ///
    /// # Errors
    /// After [`StreamError::Failed`] the backend accesses no memory any more, and it is unknown which of the
    /// operations it performed. After any other error it has performed, and will perform, none of them.
    ///
    /// # Safety
    /// Every address comes from [`Self::translate`] of this backend, is aligned to its operation, and stays valid
    /// until the operation has been performed or the backend has failed. No other thread submits to this backend
    /// during the call.
    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError>;

    /// Checks that the stream reaches memory of a GPU, by the address that [`crate::cuda::GpuMemory::address`] returns.
    ///
    /// # Errors
    /// [`StreamError::Unsupported`] if the CPU performs the operations, [`StreamError::OtherGpu`] if another GPU
    /// does, without access ([`crate::cuda::enable_peer_access`]).
    fn reaches(&self, memory: &GpuMemory) -> Result<(), StreamError> {
        let _ = memory;
        Err(StreamError::Unsupported { what: "GPU memory: only streams of that GPU do" })
    }

    /// Checks that GPU memory is on the stream's GPU: kernels there perform atomic operations on it atomically, and
    /// see a card's writes into it in the owner's order. A peer's memory that the stream reaches need not have these
    /// properties.
    ///
    /// # Errors
    /// As [`Self::reaches`].
    fn check_same_gpu(&self, memory: &GpuMemory) -> Result<(), StreamError> {
        self.reaches(memory)
    }

    /// Writes bytes in stream order, as a separate submission after all earlier ones. Copies the bytes before it
    /// returns. `to..to + bytes.len()` is of the given kind; host memory is within one page.
    ///
    /// Returns the copy if the stream reads it later: it must stay alive until the write has been performed.
    ///
    /// # Errors
    /// As [`Self::submit`]; [`StreamError::Unsupported`] for a backend that cannot.
    ///
    /// # Safety
    /// As [`Self::submit`], except for the alignment; and the returned value stays alive as long as the addresses
    /// stay valid.
    unsafe fn write_bytes(
        &self,
        to: StreamAddr,
        kind: MemoryKind,
        bytes: &[u8],
    ) -> Result<Staged, StreamError> {
        let _ = (to, kind, bytes);
        Err(StreamError::Unsupported { what: "copying bytes" })
    }

    /// Ends the backend: it performs nothing further, leaves an unsatisfied wait, and calls `then` when it accesses no
    /// memory any more, possibly later and on another thread. Returns false, and does nothing, if it cannot.
    ///
    /// # Safety
    /// What submitted operations name is kept until `then` is called, although [`Self::wait_idle`] may return
    /// [`StreamError::Failed`] before.
    unsafe fn stop(&self, reason: &str, then: Box<dyn FnOnce() + Send>) -> bool {
        let _ = (reason, then);
        false
    }

    /// Waits until everything submitted has been performed. Returns false if that takes longer than `timeout`.
    ///
    /// # Errors
    /// [`StreamError::Failed`].
    fn wait_idle(&self, timeout: Duration) -> Result<bool, StreamError>;
}

/// Forwards methods to the boxed backend.
macro_rules! forwarded {
    ($(fn $method:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)?;)+) => {
        $(
            fn $method(&self, $($argument: $type),*) $(-> $answer)? {
                (**self).$method($($argument),*)
            }
        )+
    };
}

/// Boxed backends, so that streams of different kinds have one type.
///
/// There is no such implementation for shared pointers, through which two streams could submit to one backend at the
/// same time.
// SAFETY: every method forwards to the boxed backend.
unsafe impl<B: MemOpStream + ?Sized> MemOpStream for Box<B> {
    forwarded! {
        fn caps() -> MemOpCaps;
        fn translate(addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError>;
        fn epoch() -> u64;
        fn end_probe() -> Option<Arc<dyn EndProbe>>;
        fn is_synchronous() -> bool;
        fn device() -> u64;
        fn reaches(memory: &GpuMemory) -> Result<(), StreamError>;
        fn check_same_gpu(memory: &GpuMemory) -> Result<(), StreamError>;
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

    unsafe fn stop(&self, reason: &str, then: Box<dyn FnOnce() + Send>) -> bool {
        // SAFETY: the caller's.
        unsafe { (**self).stop(reason, then) }
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
