//! Words of pinned host memory and of GPU memory, which streams wait for and write.

use super::location::{Label, Location, Named, StreamWord};
use crate::cuda::{CudaError, GpuMemory};
use crate::memop::{WaitCause, WordError};
use crate::memory::{HostAddr, PinnedMemory};
use gdsync_sys::shared::{SharedU32, SharedU64};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The methods of all words that label them.
macro_rules! labelled {
    ($name:ident) => {
        impl $name {
            /// Names the word: descriptions of a stream that waits for it ([`crate::Stream::oldest_wait`], the
            /// watchdog) show the name instead of the address.
            #[must_use]
            pub fn named(self, name: impl Into<Arc<str>>) -> Self {
                $name { label: Label::named(self.label, name.into()), ..self }
            }

            /// Says what writes the word: explanations of a wait for it ([`crate::Stream::explain_wait`], the watchdog)
            /// ask it.
            #[must_use]
            pub fn written_by(self, cause: Arc<dyn WaitCause>) -> Self {
                $name { label: Label::written_by(self.label, cause), ..self }
            }

            /// Keeps `owner` alive as long as the word, its clones, and the work of streams that names it: what gives the
            /// memory its meaning, such as its registration.
            #[must_use]
            pub fn owned_by(self, owner: Arc<dyn Any + Send + Sync>) -> Self {
                $name { label: Label::owned_by(self.label, owner), ..self }
            }
        }
    };
}

macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $value:ty, $shared:ty, $words:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            memory: PinnedMemory,
            index: usize,
            label: Option<Arc<Label>>,
        }

        impl $name {
            /// Returns the word at a byte offset of pinned memory. GPUs with streams map its page now, instead of at
            /// the first post; that takes most of a millisecond for the first word there.
            ///
            /// # Errors
            /// [`WordError::Outside`] if the offset is not aligned to the word's size or outside the memory.
            pub fn new(memory: &PinnedMemory, offset: usize) -> Result<Self, WordError> {
                let size = size_of::<$value>();
                if !offset.is_multiple_of(size) || offset / size >= memory.$words().len() {
                    return Err(WordError::Outside { offset, size, len: memory.len() });
                }
                memory.expose(offset, size);
                Ok($name { memory: memory.clone(), index: offset / size, label: None })
            }

            /// Returns its value, with acquire ordering: writes before the word's are visible after.
            pub fn load(&self) -> $value {
                self.word().load(Ordering::Acquire)
            }

            /// Sets its value, with release ordering: earlier writes are visible to every observer of the value.
            pub fn store(&self, value: $value) {
                self.word().store(value, Ordering::Release);
            }

            /// Replaces its value atomically, and returns the previous one; with the orderings of both.
            pub fn swap(&self, value: $value) -> $value {
                self.word().swap(value, Ordering::AcqRel)
            }

            /// Returns its address.
            pub fn addr(&self) -> HostAddr {
                HostAddr(self.memory.addr().get() + (self.index * size_of::<$value>()) as u64)
            }

            fn word(&self) -> &$shared {
                &self.memory.$words()[self.index]
            }
        }

        labelled! { $name }

        impl Named for $name {
            #[inline]
            fn location(&self) -> Location {
                Location::host(&self.memory, self.index * size_of::<$value>()).labelled(self.label.as_ref())
            }
        }

        impl StreamWord<$value> for $name {}

        impl From<$name> for Location {
            fn from(word: $name) -> Self {
                word.location()
            }
        }
    };
}

word! {
    /// A 32-bit word of pinned memory that streams wait for and write. Clones name the same word and keep its memory.
    ///
    /// ```
    /// use gdsync::memop::{Condition, Word32};
    /// use gdsync::{Batch, PinnedMemory, SoftStream, Stream};
    /// let (memory, stream) = (PinnedMemory::allocate(64)?, Stream::new(SoftStream::new()?)?);
    /// let (go, done) = (Word32::new(&memory, 0)?.named("go"), Word32::new(&memory, 4)?);
    /// stream.post(Batch::new().wait_value32(&go, Condition::Geq, 7).write_value32(&done, 1))?;
    /// assert!(stream.oldest_wait().is_some_and(|wait| wait.contains("go")));
    /// go.store(7);
    /// stream.synchronize()?;
    /// assert_eq!(done.load(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Word32, u32, SharedU32, words32
}
word! {
    /// A 64-bit word of pinned memory that streams wait for and write, otherwise as [`Word32`].
    Word64, u64, SharedU64, words64
}

impl Word64 {
    /// Replaces its value atomically if it is `current`. Returns whether it was.
    pub(crate) fn replace(&self, current: u64, value: u64) -> bool {
        self.word().compare_exchange(current, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

macro_rules! gpu_word {
    ($(#[$doc:meta])* $name:ident, $value:ty) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            memory: GpuMemory,
            offset: usize,
            label: Option<Arc<Label>>,
        }

        impl $name {
            /// Returns the word at a byte offset of GPU memory.
            ///
            /// # Errors
            /// [`WordError::Outside`] if its address is not aligned to the word's size or it is outside the memory.
            pub fn new(memory: &GpuMemory, offset: usize) -> Result<Self, WordError> {
                let size = size_of::<$value>();
                let inside = offset.checked_add(size).is_some_and(|end| end <= memory.len());
                if !inside || !(memory.address() + offset as u64).is_multiple_of(size as u64) {
                    return Err(WordError::Outside { offset, size, len: memory.len() });
                }
                Ok($name { memory: memory.clone(), offset, label: None })
            }

            /// Returns its value, by a copy of the driver, which takes some microseconds. The copy is not ordered
            /// with any stream.
            ///
            /// # Errors
            /// [`CudaError::Driver`] if the driver cannot copy.
            pub fn load(&self) -> Result<$value, CudaError> {
                let mut bytes = [0; size_of::<$value>()];
                self.memory.read(self.offset, &mut bytes)?;
                Ok(<$value>::from_ne_bytes(bytes))
            }

            /// Sets its value, by a copy of the driver, which takes some microseconds. The copy is not ordered with
            /// any stream; a stream that waits for the value continues.
            ///
            /// # Errors
            /// [`CudaError::Driver`] if the driver cannot copy.
            pub fn store(&self, value: $value) -> Result<(), CudaError> {
                self.memory.write(self.offset, &value.to_ne_bytes())
            }

            /// Returns the GPU's address, for kernels.
            pub fn address(&self) -> u64 {
                self.memory.address() + self.offset as u64
            }
        }

        labelled! { $name }

        impl Named for $name {
            fn location(&self) -> Location {
                Location::gpu(&self.memory, self.offset).labelled(self.label.as_ref())
            }
        }

        impl StreamWord<$value> for $name {}
    };
}

gpu_word! {
    /// A 32-bit word of GPU memory. Clones name the same word and keep its memory alive. A GPU's wait for it takes a
    /// fifth of the time of a wait for a word in host memory. Only streams of the memory's context can name it, and
    /// those of a context with access ([`crate::cuda::enable_peer_access`]).
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
    fn an_owner_lives_as_long_as_the_word_and_the_work_that_names_it() {
        let (memory, owner) = (PinnedMemory::allocate(8).unwrap(), Arc::new(1));
        let word = Word32::new(&memory, 4).unwrap().owned_by(owner.clone()).named("the flag");
        let location = word.location();
        drop(word);
        assert_eq!((Arc::strong_count(&owner), location.to_string().as_str()), (2, "the flag"));
        drop(location);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn a_named_word_is_called_by_its_name() {
        let word = Word32::new(&PinnedMemory::allocate(8).unwrap(), 4).unwrap();
        assert_eq!(word.location().to_string(), format!("host:{:#x}", word.addr().get()));
        assert_eq!(word.named("the flag").location().to_string(), "the flag");
    }
}
