//! The memory of a queue's rings and doorbell records: the host's, or a GPU's.

use crate::memory::arena::Arena;
use crate::util::options::options;
use gdsync_sys::mlx5dv::{MLX5DV_RES_TYPE_CQ, MLX5DV_RES_TYPE_DBR};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::{fmt, io};

/// The location of memory that a card and a stream share.
///
/// A GPU waits for a word in its memory in a fifth of the time that it takes for a word of the host's
/// ([docs/results.md](https://github.com/gdsync/gdsync/blob/main/docs/results.md)), but a CPU takes about two
/// microseconds to read one. So put a completion queue into GPU memory if mostly streams wait for it, and into host
/// memory if the CPU polls it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Placement {
    /// Pinned memory of the host.
    #[default]
    Host,
    /// Memory of the GPU of that number, mapped for the CPU ([`crate::advanced::mapped`]). Streams of that GPU reach it, and
    /// those of a GPU with access ([`enable_peer_access`](super::enable_peer_access)).
    Gpu(u32),
    /// Host memory that is treated as a GPU's, with all the barriers that such memory needs: for tests without a GPU.
    StandIn,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Host => f.write_str("host"),
            Placement::Gpu(ordinal) => write!(f, "gpu {ordinal}"),
            Placement::StandIn => f.write_str("stand-in"),
        }
    }
}

/// A queue's memory cannot be allocated in the requested place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a queue cannot have memory of the {placement}: {reason}")]
pub struct PlacementError {
    /// The place.
    pub placement: Placement,
    /// The reason.
    pub reason: String,
}

options! {
    /// The places of a queue's parts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct QueuePlacement
    /// As [`QueuePlacement::HOST`].
    default {
        /// The work queues of a queue pair: receives and sends.
        work: Placement = Placement::Host,
        /// The ring of a completion queue.
        completions: Placement = Placement::Host,
        /// The doorbell records of both.
        records: Placement = Placement::Host,
    }
}

impl QueuePlacement {
    /// Everything in host memory.
    pub const HOST: QueuePlacement =
        QueuePlacement { work: Placement::Host, completions: Placement::Host, records: Placement::Host };

    /// True if a part goes into a GPU's memory.
    pub(crate) fn wants_gpu(&self) -> bool {
        [self.work, self.completions, self.records].iter().any(|part| matches!(part, Placement::Gpu(_)))
    }

    /// True if stores to a work queue, or to its record, are write-combined.
    pub(crate) fn work_is_combined(&self) -> bool {
        self.work != Placement::Host || self.records != Placement::Host
    }

    /// True if stores to a completion queue, or to its record, are write-combined.
    pub(crate) fn completions_are_combined(&self) -> bool {
        self.completions != Placement::Host || self.records != Placement::Host
    }
}

/// The arenas of a queue's parts.
#[derive(Debug)]
pub(crate) struct QueueArenas {
    work: Arc<Arena>,
    completions: Arc<Arena>,
    records: Arc<Arena>,
}

impl QueueArenas {
    /// `host`: the arena of host memory.
    pub(crate) fn new(placement: QueuePlacement, host: &Arc<Arena>) -> Result<Self, PlacementError> {
        let arena = |part| Ok::<_, PlacementError>(arena_of(part)?.unwrap_or_else(|| host.clone()));
        Ok(QueueArenas {
            work: arena(placement.work)?,
            completions: arena(placement.completions)?,
            records: arena(placement.records)?,
        })
    }

    /// The arena for a provider's `resource_type` (`MLX5DV_RES_TYPE_*`).
    fn of(&self, resource_type: u64) -> &Arena {
        match resource_type {
            MLX5DV_RES_TYPE_CQ => &self.completions,
            MLX5DV_RES_TYPE_DBR => &self.records,
            _ => &self.work,
        }
    }

    pub(crate) fn allocate(&self, size: usize, alignment: usize, resource_type: u64) -> io::Result<*mut u8> {
        self.of(resource_type).allocate(size, alignment)
    }

    /// Releases memory. Returns false if it is not memory of these arenas.
    pub(crate) fn release(&self, block: *mut u8, resource_type: u64) -> bool {
        self.of(resource_type).release(block)
    }
}

/// The arena of a GPU's memory; `None` for host memory.
pub(crate) fn arena_of(placement: Placement) -> Result<Option<Arc<Arena>>, PlacementError> {
    match placement {
        Placement::Host | Placement::StandIn => Ok(None),
        Placement::Gpu(ordinal) => {
            gpu::arena(ordinal).map(Some).map_err(|reason| PlacementError { placement, reason })
        }
    }
}

pub(crate) mod gpu {
    use super::*;
    use crate::cuda::GpuMemory;
    use crate::cuda::mapped::MappedMemory;
    use crate::memory::arena::ChunkMemory;
    use crate::memory::spans::{Span, SpanKind};
    use cudarc::driver::CudaContext;
    use gdsync_gdr::MappingError;

    /// Granularity of mapped GPU memory in bytes: smaller allocations take as much.
    const PIECE: usize = 2 << 20;

    /// The arena of each GPU, while it is in use.
    static ARENAS: Mutex<BTreeMap<u32, Weak<Arena>>> = Mutex::new(BTreeMap::new());

    pub(super) fn arena(ordinal: u32) -> Result<Arc<Arena>, String> {
        let mut arenas = ARENAS.lock();
        if let Some(known) = arenas.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let context = crate::cuda::context(ordinal).map_err(|error| error.to_string())?;
        let more = move |len| chunk(&context, ordinal, len).map_err(io::Error::other);
        // Allocated now, to report its error: a provider's allocation callback can only return null.
        let first = Mutex::new(Some(more(1).map_err(|error| error.to_string())?));
        let made = Arc::new(Arena::of(move |len| {
            let first = first.lock().take();
            first.filter(|chunk| chunk.len() >= len).map_or_else(|| more(len), Ok)
        }));
        arenas.insert(ordinal, Arc::downgrade(&made));
        Ok(made)
    }

    /// A piece of GPU memory that an arena divides.
    #[derive(Debug)]
    pub(crate) struct Chunk {
        pub(crate) base: u64,
        pub(crate) memory: GpuMemory,
        /// Announces the memory to streams, and keeps the mapping.
        _span: Arc<Span>,
    }

    /// GPU memory that is mapped for the CPU and announced to streams.
    fn chunk(context: &Arc<CudaContext>, ordinal: u32, len: usize) -> Result<ChunkMemory, MappingError> {
        let memory = MappedMemory::allocate(context, len.next_multiple_of(PIECE))?;
        let (base, len, address) = (memory.as_ptr(), memory.len(), memory.gpu().address());
        let kind =
            SpanKind::Gpu { ordinal: ordinal.cast_signed(), context: memory.gpu().context().id, address };
        let gpu = memory.gpu().clone();
        let span = Span::announce(base as u64, len as u64, kind, Box::new(move || drop(memory)));
        let chunk = Chunk { base: base as u64, memory: gpu, _span: span };
        // SAFETY: mapped until the span's release drops the memory; used by this chunk alone.
        Ok(unsafe { ChunkMemory::new(base, len, Arc::new(chunk)) })
    }
}
