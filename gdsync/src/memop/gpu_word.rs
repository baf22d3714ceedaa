//! Handles to single words of GPU memory, for streams to wait on and to write.

use super::{Named, Place, StreamWord, WordError};
use crate::cuda::{CudaError, GpuMemory};
use std::sync::Arc;

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
