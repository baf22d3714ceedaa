//! The memory that a stream's operations can name: words and ranges of pinned host memory and of GPU memory.

use crate::cuda::GpuMemory;
use crate::memop::WaitCause;
use crate::memory::{HostAddr, PinnedMemory, StreamAddr};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The owner of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// The host: pinned pages, or other memory mapped in this process.
    Host,
    /// A GPU.
    Gpu,
}

/// A word that streams can wait for and write: [`crate::memop::Word32`] and [`crate::memop::Word64`] in pinned memory
/// (including a program's: [`PinnedMemory::from_raw`]), [`crate::memop::GpuWord32`] and [`crate::memop::GpuWord64`]
/// in GPU memory. `V` is its value.
///
/// There are no words in a card's memory: gdsync allocates none (`ibv_alloc_dm`), the software card has none, and the
/// CPU can store to an mlx5 card's memory but not load from it, so that no stream could wait there.
pub trait StreamWord<V>: sealed::Named {}

/// Memory into which streams can write bytes: [`PinnedMemory`], [`GpuMemory`], [`crate::advanced::raw::DeviceRange`].
pub trait StreamMemory: sealed::Named {}

pub(super) mod sealed {
    /// Memory with a location.
    pub trait Named {
        #[doc(hidden)]
        fn location(&self) -> super::Location;
    }
}

/// A memory handle, and an offset into the memory.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Location {
    memory: Memory,
    offset: usize,
    label: Option<Arc<Label>>,
}

/// What the program has said about a word.
#[derive(Clone, Debug, Default)]
pub(super) struct Label {
    /// Descriptions use it instead of the address.
    name: Option<Arc<str>>,
    /// What writes it.
    cause: Option<Arc<dyn WaitCause>>,
    /// Lives as long as the word, and as the work that names it.
    _owner: Option<Owner>,
}

#[derive(Clone)]
struct Owner(Arc<dyn Any + Send + Sync>);

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}", self.0)
    }
}

impl Label {
    pub(super) fn named(label: Option<Arc<Self>>, name: Arc<str>) -> Option<Arc<Self>> {
        let label = label.as_deref().cloned().unwrap_or_default();
        Some(Arc::new(Label { name: Some(name), ..label }))
    }

    pub(super) fn written_by(label: Option<Arc<Self>>, cause: Arc<dyn WaitCause>) -> Option<Arc<Self>> {
        let label = label.as_deref().cloned().unwrap_or_default();
        Some(Arc::new(Label { cause: Some(cause), ..label }))
    }

    pub(super) fn owned_by(label: Option<Arc<Self>>, owner: Arc<dyn Any + Send + Sync>) -> Option<Arc<Self>> {
        let label = label.as_deref().cloned().unwrap_or_default();
        Some(Arc::new(Label { _owner: Some(Owner(owner)), ..label }))
    }
}

#[derive(Clone, Debug)]
enum Memory {
    Host(PinnedMemory),
    Gpu(GpuMemory),
    /// Memory of the program, by its address in the stream's address space.
    Stream {
        address: u64,
        len: usize,
    },
}

/// An address, in the host's or the stream's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// An address in this process.
    Host(HostAddr),
    /// An address of the stream: GPU memory that it reaches.
    Stream(StreamAddr),
}

impl Location {
    pub(crate) fn host(memory: &PinnedMemory, offset: usize) -> Self {
        Location { memory: Memory::Host(memory.clone()), offset, label: None }
    }

    pub(crate) fn gpu(memory: &GpuMemory, offset: usize) -> Self {
        Location { memory: Memory::Gpu(memory.clone()), offset, label: None }
    }

    /// Memory of the program, at a stream address.
    pub(crate) fn stream(address: u64, len: usize) -> Self {
        Location { memory: Memory::Stream { address, len }, offset: 0, label: None }
    }

    pub(super) fn labelled(self, label: Option<&Arc<Label>>) -> Self {
        Location { label: label.cloned(), ..self }
    }

    /// The location `offset` bytes further on.
    pub(crate) fn at(&self, offset: usize) -> Self {
        Location { memory: self.memory.clone(), offset: self.offset.saturating_add(offset), label: None }
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        match self.memory {
            Memory::Host(_) => MemoryKind::Host,
            Memory::Gpu(_) | Memory::Stream { .. } => MemoryKind::Gpu,
        }
    }

    /// What writes the word, if the program has said it.
    pub(crate) fn cause(&self) -> Option<&Arc<dyn WaitCause>> {
        self.label.as_ref()?.cause.as_ref()
    }

    /// Exposes the bytes to operations.
    pub(crate) fn expose(&self, len: usize) {
        if let Memory::Host(memory) = &self.memory {
            memory.expose(self.offset, len);
        }
    }

    /// The GPU memory, if the location is in GPU memory.
    pub(crate) fn gpu_memory(&self) -> Option<&GpuMemory> {
        match &self.memory {
            Memory::Host(_) | Memory::Stream { .. } => None,
            Memory::Gpu(memory) => Some(memory),
        }
    }

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

    /// The current 32-bit word; `None` in GPU memory, which the CPU does not read.
    pub(crate) fn load32(&self) -> Option<u32> {
        let Memory::Host(memory) = &self.memory else { return None };
        let index = self.offset.is_multiple_of(size_of::<u32>()).then_some(self.offset / size_of::<u32>())?;
        memory.words32().get(index).map(|word| word.load(Ordering::Acquire))
    }

    /// The current 64-bit word; `None` in GPU memory.
    pub(crate) fn load64(&self) -> Option<u64> {
        let Memory::Host(memory) = &self.memory else { return None };
        let index = self.offset.is_multiple_of(size_of::<u64>()).then_some(self.offset / size_of::<u64>())?;
        memory.words64().get(index).map(|word| word.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn site(&self) -> Site {
        match self.memory {
            Memory::Host(_) => Site::Host(HostAddr(self.address())),
            Memory::Gpu(_) | Memory::Stream { .. } => Site::Stream(StreamAddr::new(self.address())),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.label.as_ref().and_then(|label| label.name.as_ref()) {
            return f.write_str(name);
        }
        match self.kind() {
            MemoryKind::Host => write!(f, "host:{:#x}", self.address()),
            MemoryKind::Gpu => write!(f, "gpu:{:#x}", self.address()),
        }
    }
}

impl sealed::Named for PinnedMemory {
    fn location(&self) -> Location {
        Location::host(self, 0)
    }
}

impl StreamMemory for PinnedMemory {}

impl sealed::Named for GpuMemory {
    fn location(&self) -> Location {
        Location::gpu(self, 0)
    }
}

impl StreamMemory for GpuMemory {}

/// Implemented by the words of other modules.
pub(crate) use sealed::Named;
