//! The memory of messages: the CPU's, or memory apart, such as a GPU's, which the CPU fills and
//! looks at by copies.

use gdsync::cuda::GpuMemory;
use gdsync::cudarc::driver::CudaContext;
use gdsync::mapped::MappedMemory;
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{Access, MemoryRegion, PinnedMemory, ProtectionDomain, RemoteMemory, Slice};
use gdsync_cli::failure::Failure;
use gdsync_cli::pattern::Pattern;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where messages lie.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Host,
    /// In host memory, which is used as if it were a GPU's.
    StandIn,
    Gpu(Arc<CudaContext>),
}

/// Registered memory.
pub(super) enum Region {
    Near(MemoryRegion),
    /// With memory for copies: as much as is looked at in one piece.
    Apart(Apart, PinnedMemory),
}

pub(super) enum Apart {
    Gpu(GpuMemoryRegion),
    StandIn(MemoryRegion),
}

impl Region {
    /// Memory of `len` bytes. No more than `piece` bytes of it are filled or checked at a time.
    pub(super) fn new(
        place: &Place,
        pd: &ProtectionDomain,
        (len, piece): (usize, usize),
        access: Access,
    ) -> Result<Self, Failure> {
        let apart = match place {
            Place::Host => return Ok(Region::Near(MemoryRegion::allocate(pd, len, access)?)),
            Place::StandIn => Apart::StandIn(MemoryRegion::allocate(pd, len, access)?),
            Place::Gpu(context) => {
                // A software card copies through the mapping, which the region keeps, or else by the
                // driver.
                let mapped = MappedMemory::allocate(context, len);
                let memory = match &mapped {
                    Ok(mapped) => mapped.gpu().clone(),
                    Err(_) => GpuMemory::allocate(context, len)?,
                };
                Apart::Gpu(GpuMemoryRegion::register(pd, memory, access)?)
            }
        };
        Ok(Region::Apart(apart, PinnedMemory::allocate(piece.next_multiple_of(8))?))
    }

    pub(super) fn slice(&self, range: Range<usize>) -> Result<Slice, Failure> {
        Ok(match self {
            Region::Near(region) | Region::Apart(Apart::StandIn(region), _) => region.slice(range),
            Region::Apart(Apart::Gpu(region), _) => region.slice(range),
        }?)
    }

    pub(super) fn remote(&self) -> RemoteMemory {
        match self {
            Region::Near(region) | Region::Apart(Apart::StandIn(region), _) => region.remote(),
            Region::Apart(Apart::Gpu(region), _) => region.remote(),
        }
    }

    /// The first address as the card knows it, and the key of this side.
    pub(super) fn local(&self) -> (u64, u32) {
        match self {
            Region::Near(region) | Region::Apart(Apart::StandIn(region), _) => {
                (region.memory().addr().get(), region.lkey())
            }
            Region::Apart(Apart::Gpu(region), _) => (region.memory().address(), region.lkey()),
        }
    }

    /// Fills `len` bytes from `at` on, which is a multiple of 8.
    pub(super) fn fill(&self, content: Pattern, at: usize, len: usize) -> Result<(), Failure> {
        match self {
            Region::Near(region) => content.fill(region.memory(), at, len),
            Region::Apart(apart, copy) => {
                content.fill(copy, 0, len);
                apart.write(at, copy, len)?;
            }
        }
        Ok(())
    }

    /// Whether `len` bytes from `at` on are the content's from `from` on; both are multiples of 8.
    pub(super) fn holds(
        &self,
        content: Pattern,
        (at, from): (usize, usize),
        len: usize,
    ) -> Result<bool, Failure> {
        Ok(match self {
            Region::Near(region) => content.check(region.memory(), at, from, len).is_ok(),
            Region::Apart(apart, copy) => {
                apart.read(at, copy, len)?;
                content.check(copy, 0, from, len).is_ok()
            }
        })
    }

    /// Writes words from `at` on, which is a multiple of 8.
    pub(super) fn store(&self, at: usize, words: [u64; 2]) -> Result<(), Failure> {
        let (memory, first) = match self {
            Region::Near(region) => (region.memory(), at),
            Region::Apart(_, copy) => (copy, 0),
        };
        for (place, word) in memory.words64()[first / 8..].iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        match self {
            Region::Near(_) => Ok(()),
            Region::Apart(apart, copy) => apart.write(at, copy, size_of_val(&words)),
        }
    }

    /// The words from `at` on, which is a multiple of 8.
    pub(super) fn load(&self, at: usize) -> Result<[u64; 2], Failure> {
        let (memory, first) = match self {
            Region::Near(region) => (region.memory(), at),
            Region::Apart(apart, copy) => {
                apart.read(at, copy, 16)?;
                (copy, 0)
            }
        };
        Ok([0, 1].map(|index| memory.words64()[first / 8 + index].load(Ordering::Acquire)))
    }
}

impl Apart {
    /// Copies `len` bytes of `copy` to `at`.
    fn write(&self, at: usize, copy: &PinnedMemory, len: usize) -> Result<(), Failure> {
        let mut bytes = vec![0; len];
        copy.read(0, &mut bytes);
        match self {
            Apart::Gpu(region) => region.memory().write(at, &bytes)?,
            Apart::StandIn(region) => {
                region.memory().write(at, &bytes);
            }
        }
        Ok(())
    }

    /// Copies `len` bytes from `at` on to `copy`.
    fn read(&self, at: usize, copy: &PinnedMemory, len: usize) -> Result<(), Failure> {
        let mut bytes = vec![0; len];
        match self {
            Apart::Gpu(region) => region.memory().read(at, &mut bytes)?,
            Apart::StandIn(region) => {
                region.memory().read(at, &mut bytes);
            }
        }
        copy.write(0, &bytes);
        Ok(())
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
        for place in [Place::Host, Place::StandIn] {
            let region = Region::new(&place, &pd, (1 << 16, 5000), Access::LOCAL_WRITE).unwrap();
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
