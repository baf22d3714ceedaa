//! How the software cards of this process reach GPU memory.

use super::memory::GpuMemory;
use gdsync_gdr::Mapping;
use softhca::{PeerMemory, PeerMemoryError, PeerRegion};
use std::sync::{Arc, Once};

struct Client;

/// Bytes from which on the driver reads GPU memory faster than the CPU does through a mapping,
/// which takes a microsecond for about 780 of them (docs/gpu-results.md) and the driver six to
/// begin with. The CPU's stores are always faster.
const READ_BY_DRIVER: usize = 4096;

/// Holds the memory until the card has dropped this region, and the CPU's mapping of the memory,
/// where there is one.
#[derive(Debug)]
struct Region {
    // In the order in which they go.
    mapping: Option<Arc<Mapping>>,
    memory: GpuMemory,
}

impl PeerMemory for Client {
    fn name(&self) -> &str {
        "CUDA"
    }

    fn acquire(
        &self,
        addr: u64,
        len: u64,
        _writable: bool,
    ) -> Result<Option<Arc<dyn PeerRegion>>, PeerMemoryError> {
        match GpuMemory::find(addr, len) {
            None => Ok(None),
            Some(Ok(memory)) => Ok(Some(Arc::new(Region { mapping: memory.mapping(), memory }))),
            Some(Err(reason)) => Err(PeerMemoryError::new(reason)),
        }
    }
}

impl Region {
    fn offset(&self, addr: u64) -> usize {
        addr.wrapping_sub(self.memory.address()) as usize
    }
}

fn failed(error: impl ToString) -> PeerMemoryError {
    PeerMemoryError::new(error.to_string())
}

impl PeerRegion for Region {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), PeerMemoryError> {
        let at = self.offset(addr);
        match &self.mapping {
            Some(mapping) if into.len() < READ_BY_DRIVER => mapping.copy_from(at, into).map_err(failed),
            _ => self.memory.read(at, into).map_err(failed),
        }
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), PeerMemoryError> {
        let at = self.offset(addr);
        match &self.mapping {
            Some(mapping) => mapping.copy_to(at, from).map_err(failed),
            None => self.memory.write(at, from).map_err(failed),
        }
    }
}

/// Makes GPU memory known to the software cards of this process, once.
pub(super) fn register_client() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| softhca::register_peer_memory(Arc::new(Client)));
}
