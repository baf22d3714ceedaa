//! How the software cards of this process reach GPU memory.

use crate::cuda::{CudaError, GpuContext, GpuMemory};
use crate::memory::HostAddr;
use crate::memory::spans::{Kind, Span};
use cudarc::driver::sys;
use gdsync_gdr::Mapping;
use parking_lot::Mutex;
use softhca::{Begun, HostRange, PeerMemory, PeerMemoryError, PeerRegion};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// Never used again: other cards, and other regions, copy on the same context.
    number: u64,
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
            Some(Ok(memory)) => Ok(Some(Arc::new(Region::of(memory)))),
            Some(Err(reason)) => Err(PeerMemoryError::new(reason)),
        }
    }
}

impl Region {
    fn of(memory: GpuMemory) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Region { number, mapping: memory.mapping(), memory }
    }

    /// Notes a copy, which [`PeerRegion::finish`] performs.
    ///
    /// # Safety
    /// The pinned side is the caller's, as [`PeerRegion::begin_read`] and [`PeerRegion::begin_write`] ask. The
    /// card has checked that the GPU's side is of this memory.
    unsafe fn begin(&self, gpu: u64, host: usize, len: usize, is_read: bool) -> Begun {
        let context = self.memory.context();
        let Some(range) = pinned(context, host, len) else { return Begun::Not };
        context.noted.lock().note(Piece { region: self.number, gpu, range, host, len, is_read });
        Begun::Yes
    }

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

    unsafe fn begin_read(&self, addr: u64, into: *mut u8, len: usize) -> Result<Begun, PeerMemoryError> {
        // SAFETY: the caller's.
        Ok(unsafe { self.begin(addr, into as usize, len, true) })
    }

    unsafe fn begin_write(&self, addr: u64, from: *const u8, len: usize) -> Result<Begun, PeerMemoryError> {
        // SAFETY: the caller's.
        Ok(unsafe { self.begin(addr, from as usize, len, false) })
    }

    /// Performs what every region has noted on the context: together, that takes the driver less time.
    fn finish(&self) -> Result<(), PeerMemoryError> {
        let context = self.memory.context();
        if !context.noted.lock().concerns(self.number) {
            return Ok(());
        }
        let performed = context.with_copier(|copier| {
            // SAFETY: each region has noted copies of its own memory, which lives until the region is dropped, and
            // forgets them before it says that they have ended: until then, its card keeps the pinned side usable
            // (`begin`). What is lent stays pinned while a card uses it.
            context.noted.lock().perform(|rows| unsafe { copier.copy_rows(rows) });
            Ok(())
        });
        // Where the context does not answer, none of its copies is performed later: the card uses their memory again.
        let outcome = context.noted.lock().forget(self.number);
        performed.and(outcome).map_err(failed)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // The card of a dropped region asks no more.
        let _ = self.memory.context().noted.lock().forget(self.number);
    }
}

/// Makes GPU memory known to the software cards of this process, once.
pub(super) fn register_client() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| softhca::register_peer_memory(Arc::new(Client)));
}

/// The copies of a context, and those that have failed.
#[derive(Debug, Default)]
pub(super) struct Noted {
    pieces: Vec<Piece>,
    /// By the number of a region of which a copy has failed: why. It stays until the region asks.
    failed: BTreeMap<u64, CudaError>,
}

impl Noted {
    pub(super) fn note(&mut self, piece: Piece) {
        self.pieces.push(piece);
    }

    /// Whether a region has copies here, or one of its own has failed.
    pub(super) fn concerns(&self, region: u64) -> bool {
        self.failed.contains_key(&region) || self.pieces.iter().any(|piece| piece.region == region)
    }

    /// Has all copies performed. If that fails, nothing says which of them: all regions that have copies here hear of
    /// it.
    pub(super) fn perform(&mut self, perform: impl FnOnce(&[Rows]) -> Result<(), CudaError>) {
        if self.pieces.is_empty() {
            return;
        }
        let outcome = perform(&rows_of(&self.pieces));
        for piece in self.pieces.drain(..) {
            if let Err(error) = &outcome {
                self.failed.entry(piece.region).or_insert_with(|| error.clone());
            }
        }
    }

    /// Forgets a region's copies, which are not performed any more.
    ///
    /// # Errors
    /// One that was performed has failed.
    pub(super) fn forget(&mut self, region: u64) -> Result<(), CudaError> {
        self.pieces.retain(|piece| piece.region != region);
        self.failed.remove(&region).map_or(Ok(()), Err)
    }
}

/// A copy between GPU memory and pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Number of the region of a software card whose copy it is: its GPU's side is of one allocation.
    pub(super) region: u64,
    /// Address of the GPU's side.
    pub(super) gpu: u64,
    /// First address of the range that the pinned side is of: what was pinned in one.
    pub(super) range: usize,
    /// Address of the pinned side.
    pub(super) host: usize,
    /// Bytes, not 0.
    pub(super) len: usize,
    /// Whether it is out of GPU memory.
    pub(super) is_read: bool,
}

/// Pieces at even distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) first: Piece,
    pub(super) count: usize,
    /// Bytes from one to the next: of the GPU's side, and of the pinned side. At least a piece's.
    pub(super) pitches: (usize, usize),
}

/// Largest distance that is used (`CU_DEVICE_ATTRIBUTE_MAX_PITCH` is 2 GiB - 1 on every GPU so far). Packets lie
/// much closer.
const MOST: u64 = 1 << 24;

impl Rows {
    fn of(first: Piece) -> Self {
        Rows { first, count: 1, pitches: (first.len, first.len) }
    }

    /// Takes a piece as the next row, if it is one. The driver need not take rows of several allocations, nor of
    /// several ranges that were pinned one by one.
    fn take(&mut self, piece: &Piece) -> bool {
        let (first, rows) = (&self.first, self.count as u64);
        let kind = |piece: &Piece| (piece.region, piece.range, piece.len, piece.is_read);
        if kind(piece) != kind(first) {
            return false;
        }
        let distances = (piece.gpu.checked_sub(first.gpu), piece.host.checked_sub(first.host));
        let (Some(gpu), Some(host)) = distances else { return false };
        let pitch = |distance: u64| {
            let pitch = distance / rows;
            (distance.is_multiple_of(rows) && (first.len as u64..=MOST).contains(&pitch))
                .then_some(pitch as usize)
        };
        let (Some(gpu), Some(host)) = (pitch(gpu), pitch(host as u64)) else { return false };
        if self.count > 1 && (gpu, host) != self.pitches {
            return false;
        }
        (self.count, self.pitches) = (self.count + 1, (gpu, host));
        true
    }

    /// The copy, as the driver takes it.
    pub(super) fn copy(&self) -> sys::CUDA_MEMCPY2D {
        use sys::CUmemorytype::{CU_MEMORYTYPE_DEVICE as DEVICE, CU_MEMORYTYPE_HOST as HOST};
        let Rows { first: Piece { gpu, host, len, is_read, .. }, count, pitches: (gpu_pitch, host_pitch) } =
            *self;
        let (from, to) = if is_read { (DEVICE, HOST) } else { (HOST, DEVICE) };
        let (src_pitch, dst_pitch) = if is_read { (gpu_pitch, host_pitch) } else { (host_pitch, gpu_pitch) };
        // Of the addresses of a side, the driver reads that of its kind of memory.
        sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: from,
            srcHost: host as *const _,
            srcDevice: gpu,
            srcArray: std::ptr::null_mut(),
            srcPitch: src_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: to,
            dstHost: host as *mut _,
            dstDevice: gpu,
            dstArray: std::ptr::null_mut(),
            dstPitch: dst_pitch,
            WidthInBytes: len,
            Height: count,
        }
    }
}

/// The pieces, in order, as few copies of rows.
pub(super) fn rows_of(pieces: &[Piece]) -> Vec<Rows> {
    let mut all: Vec<Rows> = Vec::new();
    for piece in pieces {
        if !all.last_mut().is_some_and(|rows| rows.take(piece)) {
            all.push(Rows::of(*piece));
        }
    }
    all
}

/// A range, and its place in the address spaces of GPUs, which unpin it when they forget it.
struct Pinned {
    range: HostRange,
    _span: Arc<Span>,
}

/// By the first address.
static PINNED: Mutex<BTreeMap<usize, Pinned>> = Mutex::new(BTreeMap::new());

/// First address of the range that holds `len` bytes at `address`, if a card has lent it and it is pinned for a
/// context. Pins it, if it was not, which takes most of a millisecond.
pub(super) fn pinned(context: &GpuContext, address: usize, len: usize) -> Option<usize> {
    let mut pinned = PINNED.lock();
    let known = pinned.range(..=address).next_back().map(|(_, known)| &known.range);
    let holds = |range: &&HostRange| address + len <= range.address() + range.len() && range.is_lent();
    let base = match known.filter(holds) {
        Some(range) => range.address(),
        None => {
            let range = HostRange::of(address, len)?;
            // Cards that are gone want nothing pinned.
            pinned.retain(|_, known| known.range.is_lent());
            let (base, keep) = (range.address(), range.clone());
            let unpinned = Box::new(move || drop(keep));
            let span = Span::announce(base as u64, range.len() as u64, Kind::Whole, unpinned);
            pinned.insert(base, Pinned { range, _span: span });
            base
        }
    };
    drop(pinned);
    match context.look_up(HostAddr(address as u64), 1) {
        Ok(_) => Some(base),
        Err(error) => {
            tracing::debug!(?error, address, len, "memory of a card is not pinned");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(region: u64) -> Piece {
        Piece { region, gpu: 1 << 30, range: 4096, host: 4096, len: 4096, is_read: true }
    }

    fn lost() -> CudaError {
        CudaError::NoHostMemory { len: 1, reason: "lost".to_owned() }
    }

    #[test]
    fn a_failure_is_told_to_every_region_that_it_may_concern_and_once() {
        let mut noted = Noted::default();
        [1, 2, 1].into_iter().for_each(|region| noted.note(piece(region)));
        noted.perform(|rows| {
            assert_eq!(rows.len(), 3);
            Err(lost())
        });
        // Others' copies are none of theirs.
        noted.note(piece(3));
        noted.perform(|rows| {
            assert_eq!(rows.len(), 1);
            Ok(())
        });
        assert!(noted.concerns(1) && noted.concerns(2) && !noted.concerns(3));
        for region in [1, 2] {
            assert!(matches!(noted.forget(region), Err(CudaError::NoHostMemory { .. })));
            assert!(noted.forget(region).is_ok() && !noted.concerns(region));
        }
        assert!(noted.forget(3).is_ok());
    }

    #[test]
    fn a_failure_stays_although_later_copies_succeed() {
        let mut noted = Noted::default();
        for outcome in [Err(lost()), Ok(())] {
            noted.note(piece(1));
            noted.perform(|_| outcome);
        }
        assert!(noted.forget(1).is_err());
    }

    #[test]
    fn what_a_region_has_forgotten_is_not_performed() {
        let mut noted = Noted::default();
        [1, 2].into_iter().for_each(|region| noted.note(piece(region)));
        assert!(noted.forget(1).is_ok() && !noted.concerns(1) && noted.concerns(2));
        noted.perform(|rows| {
            assert_eq!(rows.iter().map(|rows| rows.first.region).collect::<Vec<_>>(), [2]);
            Ok(())
        });
        noted.perform(|_| unreachable!("nothing is left"));
    }

    #[test]
    fn the_payloads_of_packets_are_rows_of_one_copy() {
        let piece = |i: usize| Piece {
            region: 1,
            gpu: 0x7f00_0000_0000 + i as u64 * 65_536,
            range: 4096,
            host: 4096 + 96 + i * 65_632,
            len: 65_536,
            is_read: true,
        };
        let pieces: Vec<Piece> = (0..4).map(piece).collect();
        assert_eq!(rows_of(&pieces), [Rows { first: piece(0), count: 4, pitches: (65_536, 65_632) }]);
        let all = rows_of(&pieces)[0].copy();
        assert_eq!((all.srcDevice, all.srcPitch, all.dstPitch), (0x7f00_0000_0000, 65_536, 65_632));
        assert_eq!((all.WidthInBytes, all.Height), (65_536, 4));
        // Behind the end of a ring, and in the other direction.
        let broken = [piece(0), Piece { host: 4096, ..piece(1) }, Piece { is_read: false, ..piece(2) }];
        assert_eq!(rows_of(&broken).len(), 3);
        let into = rows_of(&broken[2..])[0].copy();
        assert_eq!((into.dstDevice, into.srcHost as usize), (piece(2).gpu, piece(2).host));
    }

    #[test]
    fn rows_are_of_one_allocation_and_of_one_pinned_range() {
        let piece = |(region, range), i: usize| {
            let at = (i + 1) << 16;
            Piece { region, gpu: at as u64, range, host: range + at, len: 4096, is_read: true }
        };
        let kinds = [(1, 0), (2, 0), (2, 1 << 16), (2, 1 << 16)];
        let pieces: Vec<Piece> = kinds.into_iter().enumerate().map(|(i, kind)| piece(kind, i)).collect();
        let counts: Vec<usize> = rows_of(&pieces).iter().map(|rows| rows.count).collect();
        assert_eq!(counts, [1, 1, 2]);
    }

    proptest! {
        #[test]
        fn rows_are_the_pieces(
            steps in proptest::collection::vec((0u64..3, 0usize..3, 1usize..3, any::<bool>()), 0..30),
        ) {
            let (mut gpu, mut host) = (1 << 20, 1 << 20);
            let pieces: Vec<Piece> = steps
                .into_iter()
                .map(|(a, b, len, is_read)| {
                    let piece = Piece { region: 1, gpu, range: 1 << 20, host, len: len * 100, is_read };
                    (gpu, host) = (gpu + a * 100, host + b * 100);
                    piece
                })
                .collect();
            let again: Vec<Piece> = rows_of(&pieces)
                .into_iter()
                .flat_map(|Rows { first, count, pitches }| {
                    assert!(pitches.0 >= first.len && pitches.1 >= first.len);
                    (0..count).map(move |row| Piece {
                        gpu: first.gpu + (row * pitches.0) as u64,
                        host: first.host + row * pitches.1,
                        ..first
                    })
                })
                .collect();
            prop_assert_eq!(again, pieces);
        }
    }
}
