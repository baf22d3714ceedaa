//! Combines the copies between GPU memory and pinned memory that cards have begun into few calls of the driver.

use crate::cuda::CudaError;
use cudarc::driver::sys;
use std::collections::{BTreeMap, BTreeSet};

/// The copies that the cards have begun on a context, and failures of earlier ones.
#[derive(Debug, Default)]
pub(super) struct PendingCopies {
    /// Those that the driver does not know yet.
    copies: Vec<StridedCopy>,
    /// The regions of those that the driver performs.
    started: BTreeSet<u64>,
    /// The first failure of each region, by the region's number, until the region takes it.
    failed: BTreeMap<u64, CudaError>,
}

impl PendingCopies {
    /// Adds a copy: to the one before, if the driver can perform both at once.
    pub(super) fn add(&mut self, piece: PeerCopy) {
        if !self.copies.last_mut().is_some_and(|copies| copies.take(&piece)) {
            self.copies.push(StridedCopy::of(piece));
        }
    }

    /// Returns whether a region has copies here, or a copy of it has failed.
    pub(super) fn concerns(&self, region: u64) -> bool {
        self.failed.contains_key(&region) || self.started.contains(&region) || self.begun(region)
    }

    /// Returns whether a region has copies that the driver does not know yet.
    pub(super) fn begun(&self, region: u64) -> bool {
        self.copies.iter().any(|copies| copies.first.region == region)
    }

    /// Starts all copies by `begin`. As its error does not name a copy, all regions with copies here get it.
    pub(super) fn start(&mut self, begin: impl FnOnce(&[StridedCopy]) -> Result<(), CudaError>) {
        if self.copies.is_empty() {
            return;
        }
        let outcome = begin(&self.copies);
        let regions: BTreeSet<u64> = self.copies.drain(..).map(|copies| copies.first.region).collect();
        self.note(&regions, outcome);
        self.started.extend(regions);
    }

    /// Returns whether the driver performs copies.
    pub(super) fn is_started(&self) -> bool {
        !self.started.is_empty()
    }

    /// Ends the copies that the driver performs. All their regions get its error.
    pub(super) fn end(&mut self, outcome: Result<(), CudaError>) {
        let regions = std::mem::take(&mut self.started);
        self.note(&regions, outcome);
    }

    fn note(&mut self, regions: &BTreeSet<u64>, outcome: Result<(), CudaError>) {
        let Err(error) = outcome else { return };
        for region in regions {
            self.failed.entry(*region).or_insert_with(|| error.clone());
        }
    }

    /// Returns a region's failure as an error, once.
    pub(super) fn take_failure(&mut self, region: u64) -> Result<(), CudaError> {
        self.failed.remove(&region).map_or(Ok(()), Err)
    }

    /// Removes a region's copies, and its failure.
    pub(super) fn remove(&mut self, region: u64) {
        self.copies.retain(|copies| copies.first.region != region);
        self.started.remove(&region);
        self.failed.remove(&region);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerCopy {
    /// Number of the card's region; its memory is part of one allocation.
    pub(super) region: u64,
    pub(super) gpu: u64,
    /// First address of the pinned range that holds `host`.
    pub(super) range: usize,
    pub(super) host: usize,
    /// Bytes, not 0.
    pub(super) len: usize,
    /// True for a copy out of GPU memory.
    pub(super) is_read: bool,
}

/// Copies of equal length at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StridedCopy {
    pub(super) first: PeerCopy,
    pub(super) count: usize,
    /// Bytes from one copy to the next, at least their length: in GPU memory, and in pinned memory.
    pub(super) pitches: (usize, usize),
}

/// Largest distance (`CU_DEVICE_ATTRIBUTE_MAX_PITCH` is 2 GiB - 1 on every GPU so far). Packets are much closer
/// together.
const MOST: u64 = 1 << 24;

impl StridedCopy {
    fn of(first: PeerCopy) -> Self {
        StridedCopy { first, count: 1, pitches: (first.len, first.len) }
    }

    /// Adds a copy to the end of the first row, or as the next row, if it is that. The driver need not accept rows of
    /// several allocations, nor of several ranges that were pinned separately.
    fn take(&mut self, piece: &PeerCopy) -> bool {
        let (first, rows) = (&mut self.first, self.count as u64);
        let kind = |piece: &PeerCopy| (piece.region, piece.range, piece.is_read);
        if kind(piece) != kind(first) {
            return false;
        }
        let distances = (piece.gpu.checked_sub(first.gpu), piece.host.checked_sub(first.host));
        let (Some(gpu), Some(host)) = distances else { return false };
        if rows == 1 && (gpu, host) == (first.len as u64, first.len) {
            first.len += piece.len;
            self.pitches = (first.len, first.len);
            return true;
        }
        if piece.len != first.len {
            return false;
        }
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

    /// The arguments for the driver.
    pub(super) fn description(&self) -> sys::CUDA_MEMCPY2D {
        use sys::CUmemorytype::{CU_MEMORYTYPE_DEVICE as DEVICE, CU_MEMORYTYPE_HOST as HOST};
        let StridedCopy {
            first: PeerCopy { gpu, host, len, is_read, .. },
            count,
            pitches: (gpu_pitch, host_pitch),
        } = *self;
        let (from, to) = if is_read { (DEVICE, HOST) } else { (HOST, DEVICE) };
        let (src_pitch, dst_pitch) = if is_read { (gpu_pitch, host_pitch) } else { (host_pitch, gpu_pitch) };
        // On each side, the driver reads the address for that kind of memory.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(region: u64) -> PeerCopy {
        PeerCopy { region, gpu: 1 << 30, range: 4096, host: 4096, len: 4096, is_read: true }
    }

    fn combined(pieces: &[PeerCopy]) -> Vec<StridedCopy> {
        let mut pending = PendingCopies::default();
        pieces.iter().for_each(|piece| pending.add(*piece));
        pending.copies
    }

    fn lost() -> CudaError {
        CudaError::NoHostMemory { len: 1, reason: "lost".to_owned() }
    }

    #[test]
    fn a_failure_is_told_to_every_region_that_it_may_concern_and_once() {
        // At the start of the copies, and at their end.
        for early in [true, false] {
            let outcome = |fails| if fails { Err(lost()) } else { Ok(()) };
            let mut pending = PendingCopies::default();
            [1, 2].into_iter().for_each(|region| pending.add(piece(region)));
            pending.start(|copies| {
                assert_eq!(copies.len(), 2);
                outcome(early)
            });
            assert!(pending.is_started());
            pending.end(outcome(!early));
            // Copies of another region.
            pending.add(piece(3));
            assert!(pending.begun(3) && !pending.is_started());
            pending.start(|copies| {
                assert_eq!(copies.len(), 1);
                Ok(())
            });
            assert!(pending.concerns(3) && !pending.begun(3));
            pending.end(Ok(()));
            assert!(pending.concerns(1) && pending.concerns(2) && !pending.concerns(3));
            for region in [1, 2] {
                assert!(matches!(pending.take_failure(region), Err(CudaError::NoHostMemory { .. })));
                assert!(pending.take_failure(region).is_ok() && !pending.concerns(region));
            }
            assert!(pending.take_failure(3).is_ok());
        }
    }

    #[test]
    fn a_failure_stays_although_later_copies_succeed() {
        let mut pending = PendingCopies::default();
        for outcome in [Err(lost()), Ok(())] {
            pending.add(piece(1));
            pending.start(|_| outcome);
            pending.end(Ok(()));
        }
        assert!(pending.take_failure(1).is_err());
    }

    #[test]
    fn what_a_region_has_forgotten_is_not_performed() {
        let mut pending = PendingCopies::default();
        [1, 2].into_iter().for_each(|region| pending.add(piece(region)));
        pending.remove(1);
        assert!(!pending.concerns(1) && pending.concerns(2));
        pending.start(|copies| {
            assert_eq!(copies.iter().map(|copy| copy.first.region).collect::<Vec<_>>(), [2]);
            Ok(())
        });
        pending.remove(2);
        assert!(!pending.is_started());
        pending.start(|_| unreachable!("nothing is left"));
    }

    #[test]
    fn payloads_that_follow_each_other_on_both_sides_are_one_row() {
        let piece = |(at, len): (usize, usize)| PeerCopy {
            region: 1,
            gpu: 0x7f00_0000_0000 + at as u64,
            range: 4096,
            host: 4096 + at,
            len,
            is_read: false,
        };
        let pieces = [(0, 65_536), (65_536, 65_536), (131_072, 20_000), (151_072, 20_000)].map(piece);
        assert_eq!(combined(&pieces), [StridedCopy::of(piece((0, 171_072)))]);
        // A gap on one side: two rows.
        let apart = PeerCopy { host: pieces[1].host + 96, ..pieces[1] };
        assert_eq!(combined(&[pieces[0], apart])[0].pitches, (65_536, 65_632));
    }

    #[test]
    fn the_payloads_of_packets_are_rows_of_one_copy() {
        let piece = |i: usize| PeerCopy {
            region: 1,
            gpu: 0x7f00_0000_0000 + i as u64 * 65_536,
            range: 4096,
            host: 4096 + 96 + i * 65_632,
            len: 65_536,
            is_read: true,
        };
        let pieces: Vec<PeerCopy> = (0..4).map(piece).collect();
        assert_eq!(combined(&pieces), [StridedCopy { first: piece(0), count: 4, pitches: (65_536, 65_632) }]);
        let all = combined(&pieces)[0].description();
        assert_eq!((all.srcDevice, all.srcPitch, all.dstPitch), (0x7f00_0000_0000, 65_536, 65_632));
        assert_eq!((all.WidthInBytes, all.Height), (65_536, 4));
        // After the wrap-around of a ring, and in the other direction.
        let broken = [piece(0), PeerCopy { host: 4096, ..piece(1) }, PeerCopy { is_read: false, ..piece(2) }];
        assert_eq!(combined(&broken).len(), 3);
        let into = combined(&broken[2..])[0].description();
        assert_eq!((into.dstDevice, into.srcHost as usize), (piece(2).gpu, piece(2).host));
    }

    #[test]
    fn rows_are_of_one_allocation_and_of_one_pinned_range() {
        let piece = |(region, range), i: usize| {
            let at = (i + 1) << 16;
            PeerCopy { region, gpu: at as u64, range, host: range + at, len: 4096, is_read: true }
        };
        let kinds = [(1, 0), (2, 0), (2, 1 << 16), (2, 1 << 16)];
        let pieces: Vec<PeerCopy> = kinds.into_iter().enumerate().map(|(i, kind)| piece(kind, i)).collect();
        let counts: Vec<usize> = combined(&pieces).iter().map(|copies| copies.count).collect();
        assert_eq!(counts, [1, 1, 2]);
    }

    proptest! {
        #[test]
        fn rows_are_the_pieces(
            steps in proptest::collection::vec((0u64..3, 0usize..3, 1usize..3, any::<bool>()), 0..30),
        ) {
            let (mut gpu, mut host) = (1 << 20, 1 << 20);
            let pieces: Vec<PeerCopy> = steps
                .into_iter()
                .map(|(a, b, len, is_read)| {
                    let piece = PeerCopy { region: 1, gpu, range: 1 << 20, host, len: len * 100, is_read };
                    (gpu, host) = (gpu + a * 100, host + b * 100);
                    piece
                })
                .collect();
            let hundreds = |piece: PeerCopy| {
                (0..piece.len / 100).map(move |i| PeerCopy {
                    gpu: piece.gpu + i as u64 * 100,
                    host: piece.host + i * 100,
                    len: 100,
                    ..piece
                })
            };
            let again: Vec<PeerCopy> = combined(&pieces)
                .into_iter()
                .flat_map(|StridedCopy { first, count, pitches }| {
                    assert!(pitches.0 >= first.len && pitches.1 >= first.len);
                    (0..count).map(move |row| PeerCopy {
                        gpu: first.gpu + (row * pitches.0) as u64,
                        host: first.host + row * pitches.1,
                        ..first
                    })
                })
                .flat_map(hundreds)
                .collect();
            let pieces: Vec<PeerCopy> = pieces.into_iter().flat_map(hundreds).collect();
            prop_assert_eq!(again, pieces);
        }
    }
}
