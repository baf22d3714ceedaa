//! What a stream's operations can name: words and ranges of pinned host memory, and of GPU memory.

use super::{Word32, Word64};
use crate::cuda::GpuMemory;
use crate::memory::{HostAddr, PinnedMemory, StreamAddr};
use std::fmt;
use std::sync::Arc;

/// Whose memory something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// The host's: pinned pages, or whatever else this process has mapped.
    Host,
    /// A GPU's.
    Gpu,
}

/// A word that streams can wait for and write: [`crate::memop::Word32`] and
/// [`crate::memop::Word64`] in pinned memory (of a program's own, too: [`PinnedMemory::from_raw`]),
/// [`crate::memop::GpuWord32`] and [`crate::memop::GpuWord64`] in GPU memory. `V` is its value.
///
/// There are no words in a card's own memory: gdsync allocates none (`ibv_alloc_dm`), the software
/// card has none, and an mlx5 card's can be stored to by the CPU but not loaded, so that no stream
/// could wait there.
pub trait StreamWord<V>: sealed::Named {}

/// Memory that streams can write bytes into: [`PinnedMemory`], [`GpuMemory`], and
/// [`crate::device::raw::DeviceRange`].
pub trait StreamMemory: sealed::Named {}

pub(super) mod sealed {
    /// Says where it is.
    pub trait Named {
        #[doc(hidden)]
        fn place(&self) -> super::Place;
    }
}

/// Some memory, kept alive, and an offset into it.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Place {
    memory: Memory,
    offset: usize,
    /// What the program calls the word: descriptions say this in the place of the address.
    name: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
enum Memory {
    Host(PinnedMemory),
    Gpu(GpuMemory),
    /// Wherever the program says, in the stream's own address space.
    Stream {
        address: u64,
        len: usize,
    },
}

/// An address, in the host's or the stream's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// This process'.
    Host(HostAddr),
    /// The stream's own: GPU memory that it reaches.
    Stream(StreamAddr),
}

impl Place {
    pub(crate) fn host(memory: &PinnedMemory, offset: usize) -> Self {
        Place { memory: Memory::Host(memory.clone()), offset, name: None }
    }

    pub(crate) fn gpu(memory: &GpuMemory, offset: usize) -> Self {
        Place { memory: Memory::Gpu(memory.clone()), offset, name: None }
    }

    /// Memory that is the program's, at an address of the stream's.
    pub(crate) fn stream(address: u64, len: usize) -> Self {
        Place { memory: Memory::Stream { address, len }, offset: 0, name: None }
    }

    /// The same place, with that name.
    pub(crate) fn named(self, name: Option<&Arc<str>>) -> Self {
        Place { name: name.cloned(), ..self }
    }

    /// The place `bytes` further on.
    pub(crate) fn at(&self, offset: usize) -> Self {
        Place { memory: self.memory.clone(), offset: self.offset.saturating_add(offset), name: None }
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        match self.memory {
            Memory::Host(_) => MemoryKind::Host,
            Memory::Gpu(_) | Memory::Stream { .. } => MemoryKind::Gpu,
        }
    }

    /// Operations may name the bytes from now on.
    pub(crate) fn make(&self, len: usize) {
        if let Memory::Host(memory) = &self.memory {
            memory.make(self.offset, len);
        }
    }

    /// The GPU memory, where it is that.
    pub(crate) fn gpu_memory(&self) -> Option<&GpuMemory> {
        match &self.memory {
            Memory::Host(_) | Memory::Stream { .. } => None,
            Memory::Gpu(memory) => Some(memory),
        }
    }

    /// Bytes of the memory.
    pub(crate) fn len(&self) -> usize {
        match &self.memory {
            Memory::Host(memory) => memory.len(),
            Memory::Gpu(memory) => memory.len(),
            Memory::Stream { len, .. } => *len,
        }
    }

    #[inline]
    pub(crate) fn address(&self) -> u64 {
        let base = match &self.memory {
            Memory::Host(memory) => memory.addr().get(),
            Memory::Gpu(memory) => memory.address(),
            Memory::Stream { address, .. } => *address,
        };
        base + self.offset as u64
    }

    /// The 32-bit word there now; `None` in GPU memory, which the CPU does not look at.
    pub(crate) fn load32(&self) -> Option<u32> {
        match &self.memory {
            Memory::Host(memory) => Word32::seen_by_cpu(memory, self.offset).ok().map(|word| word.load()),
            Memory::Gpu(_) | Memory::Stream { .. } => None,
        }
    }

    /// The 64-bit word there now; `None` in GPU memory.
    pub(crate) fn load64(&self) -> Option<u64> {
        match &self.memory {
            Memory::Host(memory) => Word64::seen_by_cpu(memory, self.offset).ok().map(|word| word.load()),
            Memory::Gpu(_) | Memory::Stream { .. } => None,
        }
    }

    #[inline]
    pub(crate) fn site(&self) -> Site {
        match self.memory {
            Memory::Host(_) => Site::Host(HostAddr(self.address())),
            Memory::Gpu(_) | Memory::Stream { .. } => Site::Stream(StreamAddr::new(self.address())),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            return f.write_str(name);
        }
        match self.kind() {
            MemoryKind::Host => write!(f, "host:{:#x}", self.address()),
            MemoryKind::Gpu => write!(f, "gpu:{:#x}", self.address()),
        }
    }
}

impl sealed::Named for PinnedMemory {
    fn place(&self) -> Place {
        Place::host(self, 0)
    }
}

impl StreamMemory for PinnedMemory {}

impl sealed::Named for GpuMemory {
    fn place(&self) -> Place {
        Place::gpu(self, 0)
    }
}

impl StreamMemory for GpuMemory {}

/// How `cuda::word` names its words.
pub(crate) use sealed::Named;
