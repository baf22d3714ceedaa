//! Receive work-queue entries: a scatter list of data segments, ended early by
//! [`DataSeg::terminator`].

use super::wqe::{DataSeg, SEGMENT};

/// Bytes from one entry of a receive queue to the next: room for the segments, rounded up to a
/// power of two. No more than 2^31, which is past what any card has.
pub fn stride(max_segments: u32) -> u32 {
    max_segments.clamp(1, 1 << 27).next_power_of_two() * SEGMENT as u32
}

/// The segments of an entry, up to the terminator or the entry's end.
pub fn segments(entry: &[u8]) -> impl Iterator<Item = DataSeg> {
    use zerocopy::FromBytes;
    let whole = entry.chunks_exact(SEGMENT).filter_map(|bytes| DataSeg::read_from_bytes(bytes).ok());
    whole.take_while(|segment| !segment.is_terminator())
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
    fn a_list_ends_at_its_terminator_or_with_the_entry() {
        let (first, second) = (DataSeg::new(1, 2, 3), DataSeg::new(4, 5, 6));
        let mut entry = [first, second].as_bytes().to_vec();
        assert_eq!(segments(&entry).collect::<Vec<_>>(), [first, second]);
        entry[SEGMENT..].copy_from_slice(DataSeg::terminator().as_bytes());
        assert_eq!(segments(&entry).collect::<Vec<_>>(), [first]);
        assert_eq!(segments(&entry[..20]).count(), 1, "an incomplete segment is none");
    }
}
