//! Receive WQEs: a scatter list of data segments, which [`DataSeg::terminator`] may end early.

use super::wqe::{DataSeg, SEGMENT};

/// Returns the stride of a receive queue: room for the segments, rounded up to a power of two, at most 2^31, more
/// than any card supports.
pub fn stride(max_segments: u32) -> u32 {
    max_segments.clamp(1, 1 << 27).next_power_of_two() * SEGMENT as u32
}

/// Iterates over the segments of an entry, up to the terminator or the entry's end.
pub fn segments(entry: &[u8]) -> impl Iterator<Item = DataSeg> {
    use zerocopy::FromBytes;
    let whole = entry.chunks_exact(SEGMENT).filter_map(|bytes| DataSeg::read_from_bytes(bytes).ok());
    whole.take_while(|segment| !segment.is_terminator())
}

/// Returns the stride of a shared receive queue: room for the link and the segments, at least 32, rounded up to a
/// power of two (libmlx5 `srq.c`, `mlx5_alloc_srq_buf`; the driver's `mlx5_ib_create_srq`).
pub fn linked_stride(max_segments: u32) -> u32 {
    ((max_segments.min(1 << 26) + 1) * SEGMENT as u32).next_power_of_two().max(2 * SEGMENT as u32)
}

/// Returns the number of data segments of an entry with that stride.
pub fn linked_segments(stride: u32) -> u32 {
    (stride / SEGMENT as u32).saturating_sub(1)
}

/// Returns the first segment of an entry of a shared receive queue: the index of the next entry.
pub fn link(next: u16) -> [u8; SEGMENT] {
    let mut bytes = [0; SEGMENT];
    bytes[2..4].copy_from_slice(&next.to_be_bytes());
    bytes
}

/// Decodes an entry of a shared receive queue: the index of the next entry, and the segments. It begins with
/// `struct mlx5_wqe_srq_next_seg`, 16 bytes with the index in bytes 2 and 3.
pub fn linked(entry: &[u8]) -> (u16, impl Iterator<Item = DataSeg>) {
    let next = entry.get(2..4).map_or(0, |index| u16::from_be_bytes([index[0], index[1]]));
    (next, segments(entry.get(SEGMENT..).unwrap_or(&[])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn strides_are_powers_of_two() {
        // libmlx5 verbs.c, mlx5_calc_rcv_wqe: roundup_pow_of_two(max_recv_sge * 16).
        assert_eq!([0, 1, 2, 3, 4, 5, 64].map(stride), [16, 16, 32, 64, 64, 128, 1024]);
        assert_eq!([(1 << 27) - 1, 1 << 27, u32::MAX].map(stride), [1 << 31; 3], "no overflow");
    }

    #[test]
    fn strides_of_shared_queues_have_room_for_the_link() {
        // srq.c, mlx5_alloc_srq_buf: 16 + 16 * max_sge, at least 32, rounded up.
        assert_eq!([0, 1, 2, 3, 4, 31, 63].map(linked_stride), [32, 32, 64, 64, 128, 512, 1024]);
        assert_eq!(linked_stride(u32::MAX), 1 << 31, "no overflow");
        assert_eq!([0, 32, 64, 1024].map(linked_segments), [0, 1, 3, 63]);
    }

    #[test]
    fn a_list_ends_at_its_terminator_or_with_the_entry() {
        let (first, second) = (DataSeg::new(1, 2, 3), DataSeg::new(4, 5, 6));
        let mut entry = [first, second].as_bytes().to_vec();
        assert_eq!(segments(&entry).collect::<Vec<_>>(), [first, second]);
        entry[SEGMENT..].copy_from_slice(DataSeg::terminator().as_bytes());
        assert_eq!(segments(&entry).collect::<Vec<_>>(), [first]);
        assert_eq!(segments(&entry[..20]).count(), 1, "an incomplete segment is none");
    }

    #[test]
    fn an_entry_of_a_shared_queue_names_the_next() {
        // libmlx5 wqe.h, struct mlx5_wqe_srq_next_seg; srq.c, mlx5_post_srq_recv.
        let segment = DataSeg::new(1, 2, 3);
        let bytes = [0, 0, 0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(link(0x1234), bytes);
        let entry = [&bytes, segment.as_bytes()].concat();
        let (next, segments) = linked(&entry);
        assert_eq!((next, segments.collect::<Vec<_>>()), (0x1234, vec![segment]));
        assert_eq!(linked(&entry[..3]).0, 0, "no index");
        assert_eq!(linked(&entry[..15]).1.count(), 0, "no segments");
    }
}
