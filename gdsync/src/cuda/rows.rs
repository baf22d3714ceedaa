//! Copies of pieces of one length that lie at even distances, such as the payloads of packets: the driver takes
//! them as the rows of one copy in two dimensions, which costs it what a single piece does. It takes rows of one
//! allocation and of one pinned range only (`scripts/gpu/rows.py`).

use cudarc::driver::sys;

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
