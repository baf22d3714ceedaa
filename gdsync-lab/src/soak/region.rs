//! Memory of messages: the host's, or separate memory such as a GPU's, which the CPU fills and reads by copies.

use gdsync::cudarc::driver::CudaContext;
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{Access, MemoryRegion, PinnedMemory, ProtectionDomain, RemoteMemory, Slice};
use gdsync_cli::failure::Failure;
use gdsync_cli::pattern::Pattern;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[derive(Clone, Debug)]
pub(super) enum MemoryLocation {
    Host,
    /// Host memory that is treated as GPU memory.
    StandIn,
    Gpu(Arc<CudaContext>),
}

/// Registered memory. Separate memory has a host buffer for copies, as long as the longest piece accessed.
pub(super) enum Region {
    Near(MemoryRegion),
    StandIn(MemoryRegion, PinnedMemory),
    Gpu(GpuMemoryRegion, PinnedMemory),
}

impl Region {
    /// Registers `len` bytes, of which at most `piece` bytes are filled or checked at a time.
    pub(super) fn new(
        location: &MemoryLocation,
        pd: &ProtectionDomain,
        (len, piece): (usize, usize),
        access: Access,
    ) -> Result<Self, Failure> {
        let copy = || PinnedMemory::allocate(piece.next_multiple_of(8));
        Ok(match location {
            MemoryLocation::Host => Region::Near(MemoryRegion::allocate(pd, len, access)?),
            MemoryLocation::StandIn => Region::StandIn(MemoryRegion::allocate(pd, len, access)?, copy()?),
            MemoryLocation::Gpu(context) => {
                Region::Gpu(GpuMemoryRegion::allocate(pd, context, len, access)?, copy()?)
            }
        })
    }

    pub(super) fn slice(&self, range: Range<usize>) -> Result<Slice, Failure> {
        Ok(match self {
            Region::Near(region) | Region::StandIn(region, _) => region.slice(range),
            Region::Gpu(region, _) => region.slice(range),
        }?)
    }

    pub(super) fn remote(&self) -> RemoteMemory {
        match self {
            Region::Near(region) | Region::StandIn(region, _) => region.remote(),
            Region::Gpu(region, _) => region.remote(),
        }
    }

    /// Returns the first address as the card knows it, and the lkey.
    pub(super) fn local(&self) -> (u64, u32) {
        match self {
            Region::Near(region) | Region::StandIn(region, _) => {
                (region.memory().addr().get(), region.lkey())
            }
            Region::Gpu(region, _) => (region.memory().address(), region.lkey()),
        }
    }

    /// Fills `len` bytes from `at` on, which is a multiple of 8.
    pub(super) fn fill(&self, content: Pattern, at: usize, len: usize) -> Result<(), Failure> {
        self.write(at, len, |memory, at| content.fill(memory, at, len))
    }

    /// Returns whether `len` bytes from `at` on equal the content from `from` on; both are multiples of 8.
    pub(super) fn holds(
        &self,
        content: Pattern,
        (at, from): (usize, usize),
        len: usize,
    ) -> Result<bool, Failure> {
        self.read(at, len, |memory, at| content.check(memory, at, from, len).is_ok())
    }

    /// Writes words from `at` on, which is a multiple of 8.
    pub(super) fn store(&self, at: usize, words: [u64; 2]) -> Result<(), Failure> {
        self.write(at, size_of_val(&words), |memory, at| {
            let places = memory.words64()[at / 8..].iter().zip(words);
            places.for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        })
    }

    /// Reads the words from `at` on, which is a multiple of 8.
    pub(super) fn load(&self, at: usize) -> Result<[u64; 2], Failure> {
        let word = |memory: &PinnedMemory, index: usize| memory.words64()[index].load(Ordering::Acquire);
        self.read(at, 16, |memory, at| [0, 1].map(|index| word(memory, at / 8 + index)))
    }

    /// Calls `write` to write `len` bytes to a memory and offset, from where they are copied to separate memory.
    fn write(&self, at: usize, len: usize, write: impl FnOnce(&PinnedMemory, usize)) -> Result<(), Failure> {
        let written = |copy: &PinnedMemory| {
            let mut bytes = vec![0; len];
            copy.read(0, &mut bytes);
            bytes
        };
        match self {
            Region::Near(region) => write(region.memory(), at),
            Region::StandIn(region, copy) => {
                write(copy, 0);
                region.memory().write(at, &written(copy));
            }
            Region::Gpu(region, copy) => {
                write(copy, 0);
                region.memory().write(at, &written(copy))?;
            }
        }
        Ok(())
    }

    /// Calls `look` to read `len` bytes, with a memory and offset as in [`Self::write`].
    fn read<T>(
        &self,
        at: usize,
        len: usize,
        look: impl FnOnce(&PinnedMemory, usize) -> T,
    ) -> Result<T, Failure> {
        let mut bytes = vec![0; len];
        let copy = match self {
            Region::Near(region) => return Ok(look(region.memory(), at)),
            Region::StandIn(region, copy) => {
                region.memory().read(at, &mut bytes);
                copy
            }
            Region::Gpu(region, copy) => {
                region.memory().read(at, &mut bytes)?;
                copy
            }
        };
        copy.write(0, &bytes);
        Ok(look(copy, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync::Device;

    #[test]
    fn memory_apart_is_filled_and_looked_at_as_memory_near() {
        let device = Device::software().unwrap();
        let pd = ProtectionDomain::new(&device).unwrap();
        let content = Pattern { seed: 7 };
        for location in [MemoryLocation::Host, MemoryLocation::StandIn] {
            let region = Region::new(&location, &pd, (1 << 16, 5000), Access::LOCAL_WRITE).unwrap();
            region.fill(content, 64, 4999).unwrap();
            assert!(region.holds(content, (64, 0), 4999).unwrap());
            assert!(region.holds(content, (64 + 80, 80), 100).unwrap());
            assert!(!region.holds(content, (72, 0), 100).unwrap());
            region.store(64 + 160, [1, 2]).unwrap();
            assert_eq!(region.load(64 + 160).unwrap(), [1, 2]);
            assert!(region.holds(content, (64, 0), 160).unwrap());
            assert!(!region.holds(content, (64, 0), 4999).unwrap());
        }
    }
}
