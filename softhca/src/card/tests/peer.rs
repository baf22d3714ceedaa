//! Peer memory as source, as target, as both.

use super::*;
use crate::peer_memory::{AsyncCopy, PeerMemory, PeerMemoryError, PeerRegion, register_peer_memory};
use fake_gpu::Buffer;

mod async_copies;
mod failures;
pub(super) mod fake_gpu;
mod overlap;
mod queues;
mod transfers;

/// Registered memory, of the host or of the fake GPU.
struct Memory {
    region: Region,
    gpu: Option<Arc<Buffer>>,
}

impl Memory {
    fn new(card: &Card, pdn: u32, len: usize, is_peer: bool) -> Self {
        if is_peer {
            return Memory::peer(card, pdn, len, everything());
        }
        Memory { region: Region::new(card, pdn, len, everything()), gpu: None }
    }

    fn peer(card: &Card, pdn: u32, len: usize, access: Access) -> Self {
        let gpu = fake_gpu::allocate(len);
        let config = RegionConfig::new(pdn, gpu.addr, len as u64, access);
        // SAFETY: the memory is never freed.
        let key = unsafe { card.register_memory(&config) }.unwrap();
        Memory { region: Region { at: gpu.addr as *mut u8, len, key }, gpu: Some(gpu) }
    }

    fn get(&self) -> Vec<u8> {
        match &self.gpu {
            Some(gpu) => gpu.get(),
            None => self.region.bytes().to_vec(),
        }
    }

    fn set(&self, bytes: &[u8]) {
        match &self.gpu {
            Some(gpu) => gpu.set(bytes),
            None => self.region.bytes().copy_from_slice(bytes),
        }
    }

    fn data(&self, range: std::ops::Range<usize>) -> DataSeg {
        self.region.data(range)
    }

    /// Returns a list of all its memory; empty if `len` is 0.
    fn all(&self, len: usize) -> Vec<DataSeg> {
        if len == 0 { Vec::new() } else { vec![self.data(0..len)] }
    }

    fn gpu(&self) -> &Buffer {
        self.gpu.as_ref().unwrap()
    }
}

/// Returns bytes without repetitions, different for every seed.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + i / 65_536 + seed) as u8).collect()
}

/// Writes a request of `source`'s list to the send ring, and rings.
fn post(qp: &mut TestQp, opcode: Opcode, remote: Option<RemoteAddrSeg>, list: &[DataSeg]) {
    let remote = remote.map(|remote| remote.as_bytes().to_vec()).unwrap_or_default();
    qp.post(opcode, &[&remote, list.as_bytes()]);
}
