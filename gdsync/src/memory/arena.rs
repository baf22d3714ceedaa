//! The arena of queue rings, doorbell records and timeline words, so that a stream's address space needs a few large
//! ranges instead of many small ones. Its memory is pinned, or GPU memory that is mapped for the CPU.

use super::{HostAddr, PinnedMemory};
use crate::util::sync::Mutex;
use gdsync_sys::shared::{SharedU32, SharedU64};
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};
use std::{fmt, io};

/// Smallest chunk that an arena allocates, in bytes.
const CHUNK: usize = 1 << 20;
/// Every block starts on its own cache line: a doorbell record must not share one with a word that others poll.
const LINE: usize = 64;

/// Hands out zeroed, aligned blocks of memory, by raw address as libmlx5's allocator callbacks need them.
pub(crate) struct Arena {
    source: Source,
    state: Mutex<ArenaState>,
}

/// Allocates memory for an arena: a function of the minimum number of bytes.
type Source = Box<dyn Fn(usize) -> io::Result<ChunkMemory> + Send + Sync>;

pub(crate) type Owner = Arc<dyn Any + Send + Sync>;

/// Memory that an arena divides into blocks.
pub(crate) struct ChunkMemory {
    base: *mut u8,
    len: usize,
    owner: Owner,
}

// SAFETY: an address and the owner of its memory; only the user of a block accesses the block.
unsafe impl Send for ChunkMemory {}

impl ChunkMemory {
    /// # Safety
    /// `base..base + len` can be read and written until `owner` is dropped, and has no other user.
    pub(crate) unsafe fn new(base: *mut u8, len: usize, owner: Owner) -> Self {
        ChunkMemory { base, len, owner }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn pinned(len: usize) -> io::Result<Self> {
        let memory = PinnedMemory::allocate_whole(len)?;
        // SAFETY: allocated just now, and used by this arena alone.
        Ok(unsafe { ChunkMemory::new(memory.as_ptr(), memory.len(), Arc::new(memory)) })
    }
}

impl Default for Arena {
    fn default() -> Self {
        Arena::of(ChunkMemory::pinned)
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct ArenaState {
    chunks: Vec<Chunk>,
    /// Live blocks: address -> (chunk, offset, length).
    live: HashMap<usize, (usize, usize, usize)>,
}

struct Chunk {
    memory: ChunkMemory,
    free: FreeList,
}

impl Arena {
    /// An arena of memory from `source`.
    pub(crate) fn of(source: impl Fn(usize) -> io::Result<ChunkMemory> + Send + Sync + 'static) -> Self {
        Arena { source: Box::new(source), state: Mutex::default() }
    }

    /// Allocates a zeroed block of at least `size` bytes. libmlx5 asks for alignments up to 1/64 of a large queue's
    /// size.
    pub(crate) fn allocate(&self, size: usize, alignment: usize) -> io::Result<*mut u8> {
        if !alignment.is_power_of_two() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let size = size.max(1).checked_next_multiple_of(LINE).ok_or(io::ErrorKind::OutOfMemory)?;
        let alignment = alignment.max(LINE);
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let found =
            state.chunks.iter_mut().enumerate().find_map(|(i, c)| Some((i, c.free.take(size, alignment)?)));
        let (chunk, offset) = match found {
            Some(place) => place,
            None => {
                let needed = size.checked_add(alignment).ok_or(io::ErrorKind::OutOfMemory)?;
                let memory = (self.source)(needed.max(CHUNK))?;
                let mut free = FreeList::new(memory.base as usize, memory.len);
                let offset = free.take(size, alignment).ok_or(io::ErrorKind::OutOfMemory)?;
                state.chunks.push(Chunk { memory, free });
                (state.chunks.len() - 1, offset)
            }
        };
        let address = state.chunks[chunk].memory.base.wrapping_add(offset);
        // SAFETY: the free list gives `offset..offset + size` of this chunk to no other user.
        unsafe { address.write_bytes(0, size) };
        state.live.insert(address as usize, (chunk, offset, size));
        Ok(address)
    }

    pub(crate) fn owner(&self, block: *mut u8) -> Option<Owner> {
        let state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (chunk, ..) = state.live.get(&(block as usize))?;
        Some(state.chunks[*chunk].memory.owner.clone())
    }

    #[cfg(test)]
    pub(crate) fn owns(&self, address: *mut u8) -> bool {
        let state = self.state.lock().unwrap();
        state.live.iter().any(|(start, (_, _, len))| (*start..start + len).contains(&(address as usize)))
    }

    /// Releases a block. Returns false, and does nothing, if `address` is not a live block of this arena.
    pub(crate) fn release(&self, address: *mut u8) -> bool {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some((chunk, offset, size)) = state.live.remove(&(address as usize)) else { return false };
        state.chunks[chunk].free.give(offset, size);
        true
    }
}

/// The arena of words that belong to no device: timelines, and mailboxes of doorbells.
static SHARED: LazyLock<Arena> = LazyLock::new(Arena::default);

/// A zeroed block of at least a cache line: words that streams write and the CPU reads, or bytes for a device.
#[derive(Debug)]
pub(crate) struct Block {
    at: NonNull<u8>,
    /// The arena of the block, if not the shared one.
    arena: Option<Arc<Arena>>,
}

// SAFETY: an address; the memory is accessed by shared words only, after `holding` has filled it.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// A cache line of pinned memory.
    pub(crate) fn new() -> io::Result<Self> {
        Self::cut(None, LINE, LINE)
    }

    /// A block of that arena, or of pinned memory.
    pub(crate) fn cut(arena: Option<&Arc<Arena>>, size: usize, alignment: usize) -> io::Result<Self> {
        let block = arena.map_or(&*SHARED, |arena| arena).allocate(size, alignment)?;
        let at = NonNull::new(block).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Block { at, arena: arena.cloned() })
    }

    /// A copy of `bytes`, in pinned memory.
    pub(crate) fn holding(bytes: &[u8]) -> io::Result<Self> {
        let block = Self::cut(None, bytes.len(), LINE)?;
        // SAFETY: the block is ours, and long enough.
        unsafe { block.at.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(block)
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.at
    }

    pub(crate) fn addr(&self, offset: usize) -> HostAddr {
        HostAddr(self.at.as_ptr() as u64 + offset as u64)
    }

    /// The first 4 bytes.
    pub(crate) fn word32(&self) -> &SharedU32 {
        // SAFETY: the block is ours until `drop`, aligned to 64 bytes, and accessed by shared words only.
        unsafe { SharedU32::from_ptr(self.at.as_ptr().cast()) }
    }

    /// Bytes 8 to 16.
    pub(crate) fn word64(&self) -> &SharedU64 {
        // SAFETY: as above; every block has at least the 64 bytes of a line.
        unsafe { SharedU64::from_ptr(self.at.as_ptr().add(8).cast()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.as_deref().unwrap_or(&SHARED).release(self.at.as_ptr());
    }
}

/// Free ranges of one chunk by start, never adjacent to each other.
#[derive(Debug)]
struct FreeList {
    /// Address of offset 0: alignment is by address, not by offset.
    base: usize,
    ranges: BTreeMap<usize, usize>,
}

impl FreeList {
    fn new(base: usize, len: usize) -> Self {
        FreeList { base, ranges: BTreeMap::from([(0, len)]) }
    }

    /// Takes the first range that fits.
    fn take(&mut self, size: usize, alignment: usize) -> Option<usize> {
        let (start, len, at) = self.ranges.iter().find_map(|(&start, &len)| {
            let at = (self.base + start).next_multiple_of(alignment) - self.base;
            (at + size <= start + len).then_some((start, len, at))
        })?;
        self.ranges.remove(&start);
        if at > start {
            self.ranges.insert(start, at - start);
        }
        let end = at + size;
        if end < start + len {
            self.ranges.insert(end, start + len - end);
        }
        Some(at)
    }

    fn give(&mut self, mut start: usize, mut size: usize) {
        if let Some((&before, &len)) = self.ranges.range(..start).next_back()
            && before + len == start
        {
            self.ranges.remove(&before);
            start = before;
            size += len;
        }
        if let Some(len) = self.ranges.remove(&(start + size)) {
            size += len;
        }
        self.ranges.insert(start, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn blocks_are_zeroed_aligned_and_reused() {
        let arena = Arena::default();
        let first = arena.allocate(100, 4096).unwrap();
        assert_eq!(first as usize % 4096, 0);
        // SAFETY: the block is ours and 100 bytes long.
        unsafe { first.write_bytes(0xff, 100) };
        assert!(arena.release(first));
        assert!(!arena.release(first), "a second release is refused");
        let again = arena.allocate(100, 4096).unwrap();
        assert_eq!(first, again);
        // SAFETY: as above.
        assert!(unsafe { std::slice::from_raw_parts(again, 100) }.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_block_larger_than_a_chunk_gets_its_own() {
        let arena = Arena::default();
        let large = arena.allocate(3 * CHUNK + 1, 64).unwrap();
        let small = arena.allocate(8, 8).unwrap();
        assert!(arena.release(large) && arena.release(small));
        let aligned = arena.allocate(100, 1 << 16).unwrap();
        assert_eq!(aligned as usize % (1 << 16), 0);
        assert!(arena.release(aligned));
        assert!(arena.allocate(1, 3).is_err() && arena.allocate(usize::MAX, 64).is_err());
    }

    #[test]
    fn lines_are_zeroed_and_words_of_them_do_not_overlap() {
        let line = Block::new().unwrap();
        line.word32().store(u32::MAX, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(line.word64().load(std::sync::atomic::Ordering::Relaxed), 0);
        assert_eq!(line.addr(8).get() % 64, 8);
    }

    proptest! {
        #[test]
        fn the_free_list_never_overlaps_and_gets_whole_again(
            base in 0usize..1000,
            requests in proptest::collection::vec((1usize..300, 0u32..7, any::<bool>()), 1..200),
        ) {
            let mut list = FreeList::new(base, 1 << 14);
            let mut live: Vec<(usize, usize)> = Vec::new();
            for (size, shift, release) in requests {
                if release && !live.is_empty() {
                    let (start, size) = live.swap_remove(size % live.len());
                    list.give(start, size);
                } else if let Some(start) = list.take(size, 1 << shift) {
                    prop_assert_eq!((base + start) % (1 << shift), 0);
                    prop_assert!(start + size <= 1 << 14);
                    prop_assert!(live.iter().all(|&(s, l)| start + size <= s || s + l <= start));
                    live.push((start, size));
                }
            }
            for (start, size) in live {
                list.give(start, size);
            }
            prop_assert_eq!(list.ranges, BTreeMap::from([(0, 1 << 14)]));
        }
    }
}
