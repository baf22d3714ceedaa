//! Handles to single words of pinned memory, for streams to wait on and to write.

use crate::cuda::{CudaError, GpuMemory};
use crate::memop::{Named, Place, StreamWord, WordError};
use crate::memory::{HostAddr, PinnedMemory};
use gdsync_sys::shared::{SharedU32, SharedU64};
use std::sync::Arc;
use std::sync::atomic::Ordering;

macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $value:ty, $shared:ty, $words:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            memory: PinnedMemory,
            index: usize,
            name: Option<Arc<str>>,
        }

        impl $name {
            /// The word at a byte offset of some pinned memory. The GPUs that have streams get to
            /// know its page now, which takes most of a millisecond for the first word there, so
            /// that the first post does not.
            ///
            /// # Errors
            /// [`WordError::Outside`](crate::memop::WordError::Outside) where the offset is not
            /// aligned to the word's size or lies outside.
            pub fn new(memory: &PinnedMemory, offset: usize) -> Result<Self, WordError> {
                let word = Self::seen_by_cpu(memory, offset)?;
                memory.make(offset, size_of::<$value>());
                Ok(word)
            }

            /// The word, for the CPU alone.
            pub(super) fn seen_by_cpu(memory: &PinnedMemory, offset: usize) -> Result<Self, WordError> {
                let size = size_of::<$value>();
                if !offset.is_multiple_of(size) || offset / size >= memory.$words().len() {
                    return Err(WordError::Outside { offset, size, len: memory.len() });
                }
                Ok($name { memory: memory.clone(), index: offset / size, name: None })
            }

            /// The same word with a name: what describes a stream that waits for it
            /// ([`crate::Stream::oldest_wait`], the watchdog) says the name, and not the address.
            #[must_use]
            pub fn named(self, name: impl Into<Arc<str>>) -> Self {
                $name { name: Some(name.into()), ..self }
            }

            /// Its value now, with acquire ordering: what was written before the word was is
            /// visible after.
            pub fn load(&self) -> $value {
                self.word().load(Ordering::Acquire)
            }

            /// Sets its value, with release ordering: earlier writes are visible to every observer
            /// of the value.
            pub fn store(&self, value: $value) {
                self.word().store(value, Ordering::Release);
            }

            /// Sets its value, and returns what it was, as one step; with the orderings of both.
            pub fn swap(&self, value: $value) -> $value {
                self.word().swap(value, Ordering::AcqRel)
            }

            /// Its address.
            pub fn addr(&self) -> HostAddr {
                HostAddr(self.memory.addr().get() + (self.index * size_of::<$value>()) as u64)
            }

            fn word(&self) -> &$shared {
                &self.memory.$words()[self.index]
            }
        }

        impl Named for $name {
            #[inline]
            fn place(&self) -> Place {
                Place::host(&self.memory, self.index * size_of::<$value>()).named(self.name.as_ref())
            }
        }

        impl StreamWord<$value> for $name {}

        impl From<$name> for Place {
            fn from(word: $name) -> Self {
                word.place()
            }
        }
    };
}

word! {
    /// A 32-bit word of pinned memory. Clones name the same word and keep its memory alive.
    Word32, u32, SharedU32, words32
}
word! {
    /// A 64-bit word of pinned memory. Clones name the same word and keep its memory alive.
    Word64, u64, SharedU64, words64
}

macro_rules! gpu_word {
    ($(#[$doc:meta])* $name:ident, $value:ty) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            memory: GpuMemory,
            offset: usize,
            name: Option<Arc<str>>,
        }

        impl $name {
            /// The word at a byte offset of some GPU memory.
            ///
            /// # Errors
            /// [`WordError::Outside`](crate::memop::WordError::Outside) where its address is not
            /// aligned to the word's size or it lies outside.
            pub fn new(memory: &GpuMemory, offset: usize) -> Result<Self, WordError> {
                let size = size_of::<$value>();
                let inside = offset.checked_add(size).is_some_and(|end| end <= memory.len());
                if !inside || !(memory.address() + offset as u64).is_multiple_of(size as u64) {
                    return Err(WordError::Outside { offset, size, len: memory.len() });
                }
                Ok($name { memory: memory.clone(), offset, name: None })
            }

            /// The same word with a name: what describes a stream that waits for it
            /// ([`crate::Stream::oldest_wait`], the watchdog) says the name, and not the address.
            #[must_use]
            pub fn named(self, name: impl Into<Arc<str>>) -> Self {
                $name { name: Some(name.into()), ..self }
            }

            /// Its value now: a copy by the driver, which takes some microseconds. Not in the order
            /// of any stream.
            ///
            /// # Errors
            /// [`CudaError::Driver`].
            pub fn load(&self) -> Result<$value, CudaError> {
                let mut bytes = [0; size_of::<$value>()];
                self.memory.read(self.offset, &mut bytes)?;
                Ok(<$value>::from_ne_bytes(bytes))
            }

            /// Sets its value: a copy by the driver, which takes some microseconds. Not in the
            /// order of any stream; one that waits for the value continues.
            ///
            /// # Errors
            /// [`CudaError::Driver`].
            pub fn store(&self, value: $value) -> Result<(), CudaError> {
                self.memory.write(self.offset, &value.to_ne_bytes())
            }

            /// The GPU's address, for kernels.
            pub fn address(&self) -> u64 {
                self.memory.address() + self.offset as u64
            }
        }

        impl Named for $name {
            fn place(&self) -> Place {
                Place::gpu(&self.memory, self.offset).named(self.name.as_ref())
            }
        }

        impl StreamWord<$value> for $name {}
    };
}

gpu_word! {
    /// A 32-bit word of GPU memory. Clones name the same word and keep its memory alive. A wait for
    /// it takes the GPU a fifth of the time of one for a word of the host, and only streams of the
    /// memory's context can name it, and those of a context that was given access
    /// ([`crate::cuda::enable_peer_access`]).
    GpuWord32, u32
}
gpu_word! {
    /// A 64-bit word of GPU memory. As [`GpuWord32`].
    GpuWord64, u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_bounds_and_alignment_checked() {
        let memory = PinnedMemory::allocate(16).unwrap();
        Word32::new(&memory, 12).unwrap().store(5);
        assert_eq!(memory.words32()[3].load(Ordering::Relaxed), 5);
        assert!(matches!(Word32::new(&memory, 16), Err(WordError::Outside { offset: 16, size: 4, len: 16 })));
        assert!(Word32::new(&memory, 2).is_err());
        assert!(Word64::new(&memory, 12).is_err());
        let word = Word64::new(&memory, 8).unwrap();
        assert_eq!(word.addr().get(), memory.addr().get() + 8);
        assert_eq!(word.load(), 5 << 32);
    }

    #[test]
    fn a_named_word_is_called_by_its_name() {
        let word = Word32::new(&PinnedMemory::allocate(8).unwrap(), 4).unwrap();
        assert_eq!(word.place().to_string(), format!("host:{:#x}", word.addr().get()));
        assert_eq!(word.named("the flag").place().to_string(), "the flag");
    }
}
