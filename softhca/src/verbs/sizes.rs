//! Sizes of a queue pair's queues, computed as in libmlx5, so that software and hardware grant the same capacities.
//!
//! Source: `providers/mlx5/verbs.c`, `mlx5_calc_wq_size` and its callees.

use super::errno::{Errno, Result};
use crate::card::{LIMITS, Transport};
use gdsync_sys::prm::recv;
use gdsync_sys::prm::wqe::{BASIC_BLOCK, MAX_DS, SEGMENT};
use gdsync_sys::verbs::ibv_qp_cap;

/// Bytes of an inline segment before its data.
const INLINE_HEADER: u64 = 4;

/// Bytes that libmlx5 reserves in each send WQE of a queue pair without a list of operations.
///
/// On connections the largest operation binds a memory window: a control segment (16 bytes), a UMR control
/// segment (48), a key context (64) and at least one block of key entries (64). A datagram has a control
/// segment and its address (48), and a DC request the address as well.
fn overhead(transport: Transport) -> u64 {
    match transport {
        Transport::Ud => 16 + 48,
        Transport::DcInitiator => 16 + 48 + 48 + 64 + 64,
        _ => 16 + 48 + 64 + 64,
    }
}

/// Maximum number of data segments of a WQE: 63, less one for control and one for the remote address, or
/// three for a datagram's address, or both.
fn data_segments(transport: Transport) -> u32 {
    match transport {
        Transport::Ud => u32::from(MAX_DS) - 4,
        Transport::DcInitiator => u32::from(MAX_DS) - 5,
        _ => u32::from(MAX_DS) - 2,
    }
}

/// Layout of a queue pair's buffer: the receive queue, then the send queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueSizes {
    /// Basic blocks of the send queue: a power of two, or 0.
    pub(super) sq_blocks: u32,
    /// Entries of the receive queue: a power of two, or 0.
    pub(super) rq_entries: u32,
    /// Bytes of a receive queue entry.
    pub(super) rq_stride: u32,
}

impl QueueSizes {
    /// Computes the sizes, and writes the granted capacities to `cap`.
    ///
    /// # Errors
    /// EINVAL if a limit is exceeded; `cap` is unchanged then.
    pub(super) fn new(transport: Transport, cap: &mut ibv_qp_cap) -> Result<Self> {
        let mut granted = *cap;
        let sq_blocks = send_blocks(transport, &mut granted)?;
        let (rq_entries, rq_stride) = recv_entries(&mut granted)?;
        *cap = granted;
        Ok(QueueSizes { sq_blocks, rq_entries, rq_stride })
    }

    /// Offset of the send queue: the bytes of the receive queue.
    pub(super) fn send_offset(&self) -> usize {
        self.rq_entries as usize * self.rq_stride as usize
    }

    pub(super) fn bytes(&self) -> usize {
        self.send_offset() + self.sq_blocks as usize * BASIC_BLOCK
    }

    /// Alignment that libmlx5 requests from a custom allocator. The card addresses a buffer's offset in its
    /// page in 64ths of the page, which is as large as the buffer.
    pub(super) fn alignment(&self, page: usize) -> usize {
        let buffer_page = self.bytes().next_multiple_of(page).next_power_of_two();
        BASIC_BLOCK.max(self.rq_stride as usize).max(buffer_page / 64)
    }
}

fn send_blocks(transport: Transport, cap: &mut ibv_qp_cap) -> Result<u32> {
    if cap.max_send_wr == 0 {
        return Ok(0);
    }
    let (overhead, most) = (overhead(transport), data_segments(transport));
    let most_inline = most * SEGMENT as u32 - INLINE_HEADER as u32;
    if cap.max_send_sge > LIMITS.max_send_sge.min(most) || cap.max_inline_data > most_inline {
        return Err(Errno::INVALID);
    }
    let block = BASIC_BLOCK as u64;
    let gather = overhead + u64::from(cap.max_send_sge) * SEGMENT as u64;
    let inline = match u64::from(cap.max_inline_data) {
        0 => 0,
        bytes => overhead + (INLINE_HEADER + bytes).next_multiple_of(SEGMENT as u64),
    };
    let wqe = gather.max(inline).next_multiple_of(block);
    let queue = (u64::from(cap.max_send_wr) * wqe).next_power_of_two();
    let blocks = u32::try_from(queue / block).map_err(|_| Errno::INVALID)?;
    if blocks > LIMITS.max_qp_wr {
        return Err(Errno::INVALID);
    }
    // Without segments and inline data, a WQE may be no larger than the reserved bytes.
    let granted = wqe.saturating_sub(overhead + INLINE_HEADER) as u32;
    cap.max_inline_data = granted.min(most_inline);
    cap.max_send_wr = (queue / wqe) as u32;
    Ok(blocks)
}

fn recv_entries(cap: &mut ibv_qp_cap) -> Result<(u32, u32)> {
    if cap.max_recv_wr == 0 {
        cap.max_recv_sge = 0;
        return Ok((0, 1));
    }
    if cap.max_recv_wr > LIMITS.max_qp_wr || cap.max_recv_sge > LIMITS.max_recv_sge {
        return Err(Errno::INVALID);
    }
    let stride = recv::stride(cap.max_recv_sge);
    // A receive queue has at least the size of a block.
    let entries = cap.max_recv_wr.next_power_of_two().max(BASIC_BLOCK as u32 / stride);
    cap.max_recv_wr = entries;
    cap.max_recv_sge = stride / SEGMENT as u32;
    Ok((entries, stride))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cap(send_wr: u32, recv_wr: u32, send_sge: u32, recv_sge: u32, inline: u32) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: send_wr,
            max_recv_wr: recv_wr,
            max_send_sge: send_sge,
            max_recv_sge: recv_sge,
            max_inline_data: inline,
        }
    }

    #[test]
    fn sizes_and_granted_capacities_are_those_of_libmlx5() {
        // Computed by hand from mlx5_calc_sq_size and mlx5_calc_rq_size: (asked), (granted), (blocks, entries, stride).
        let cases = [
            // WQE max(192 + 16, 0) = 208 -> 256 bytes; 1 * 256 / 64 = 4 blocks; inline 256 - 192 - 4.
            (cap(1, 1, 1, 1, 0), cap(1, 4, 1, 1, 60), (4, 4, 16)),
            // max(192 + 64, 192 + 48) = 256; 128 * 256 = 32768 bytes.
            (cap(128, 128, 4, 4, 44), cap(128, 128, 4, 4, 60), (512, 128, 64)),
            // max(192 + 80, 0) = 272 -> 320; 100 * 320 = 32000 -> 32768 bytes, which hold 102 WQEs; inline 320 - 196.
            (cap(100, 100, 5, 3, 0), cap(102, 128, 5, 4, 124), (512, 128, 64)),
            // inline 192 + align(4 + 61, 16) = 272 -> 320; 3 * 320 = 960 -> 1024 bytes, 3 WQEs.
            (cap(3, 5, 1, 0, 61), cap(3, 8, 1, 1, 124), (16, 8, 16)),
            // inline 192 + align(4 + 60, 16) = 256.
            (cap(3, 5, 1, 2, 60), cap(4, 8, 1, 2, 60), (16, 8, 32)),
            // 52 segments: 192 + 832 = 1024, the largest WQE of common hardware.
            (cap(16, 16, 52, 32, 0), cap(16, 16, 52, 32, 828), (256, 16, 512)),
            // 61 segments: 192 + 976 = 1168 -> 1216; 4 * 1216 = 4864 -> 8192 bytes, 6 WQEs. Inline: 61 * 16 -
            // 4, as 1216 - 196 is more than 63 segments hold.
            (cap(4, 4, 61, 1, 0), cap(6, 4, 61, 1, 972), (128, 4, 16)),
            // No queue: its other capacities are ignored.
            (cap(0, 0, 9, 9, 7), cap(0, 0, 9, 0, 7), (0, 0, 1)),
            (cap(8192, 32768, 1, 1, 0), cap(8192, 32768, 1, 1, 60), (32768, 32768, 16)),
        ];
        for (asked, granted, (sq_blocks, rq_entries, rq_stride)) in cases {
            let mut cap = asked;
            let sizes = QueueSizes::new(Transport::Rc, &mut cap);
            assert_eq!(sizes, Ok(QueueSizes { sq_blocks, rq_entries, rq_stride }), "{asked:?}");
            assert_eq!(cap, granted, "{asked:?}");
        }
    }

    #[test]
    fn datagrams_have_queues_of_their_own_size_and_unreliable_connections_have_not() {
        // Computed by hand as above. Only the address (48 bytes) and the control segment are reserved.
        let cases = [
            // WQE 64 + 16 = 80 -> 128 bytes; 128 / 64 blocks; inline 128 - 64 - 4.
            (cap(1, 1, 1, 1, 0), cap(1, 4, 1, 1, 60), (2, 4, 16)),
            // 64 + align(4 + 100, 16) = 176 -> 192; 16 * 192 = 3072 -> 4096 bytes, 21 WQEs.
            (cap(16, 16, 4, 4, 100), cap(21, 16, 4, 4, 124), (64, 16, 64)),
            // 59 segments: 64 + 944 = 1008 -> 1024.
            (cap(4, 4, 59, 1, 0), cap(4, 4, 59, 1, 940), (64, 4, 16)),
            // No data: one block, without room for inline data.
            (cap(4, 4, 0, 1, 0), cap(4, 4, 0, 1, 0), (4, 4, 16)),
        ];
        for (asked, granted, (sq_blocks, rq_entries, rq_stride)) in cases {
            let mut cap = asked;
            let sizes = QueueSizes::new(Transport::Ud, &mut cap);
            assert_eq!(sizes, Ok(QueueSizes { sq_blocks, rq_entries, rq_stride }), "{asked:?}");
            assert_eq!(cap, granted, "{asked:?}");
        }
        for asked in [cap(1, 1, 60, 1, 0), cap(1, 1, 1, 1, 941)] {
            assert_eq!(QueueSizes::new(Transport::Ud, &mut { asked }), Err(Errno::INVALID), "{asked:?}");
        }
        // A DC request has the address and all segments of a connection: 240 + 64 = 304 -> 320 bytes; 16 *
        // 320 = 5120 -> 8192 bytes, 25 WQEs; inline 320 - 240 - 4. 58 segments are the maximum.
        let mut dc = cap(16, 0, 4, 0, 44);
        let sizes = QueueSizes { sq_blocks: 128, rq_entries: 0, rq_stride: 1 };
        assert_eq!(QueueSizes::new(Transport::DcInitiator, &mut dc), Ok(sizes));
        assert_eq!(dc, cap(25, 0, 4, 0, 76));
        let dc =
            [58, 59].map(|segments| QueueSizes::new(Transport::DcInitiator, &mut cap(1, 0, segments, 0, 0)));
        assert!(dc[0].is_ok() && dc[1] == Err(Errno::INVALID), "{dc:?}");
        let asked = cap(128, 128, 4, 4, 44);
        assert_eq!(
            QueueSizes::new(Transport::Uc, &mut { asked }),
            QueueSizes::new(Transport::Rc, &mut { asked })
        );
    }

    #[test]
    fn beyond_a_limit_is_refused_and_nothing_written() {
        let cases = [
            cap(8193, 1, 1, 1, 0),
            cap(u32::MAX, 1, 1, 1, 0),
            cap(1, 32769, 1, 1, 0),
            cap(1, u32::MAX, 1, 1, 0),
            cap(1, 1, 62, 1, 0),
            cap(1, 1, u32::MAX, 1, 0),
            cap(1, 1, 1, 65, 0),
            cap(1, 1, 1, u32::MAX, 0),
            cap(1, 1, 1, 1, 973),
            cap(1, 1, 1, 1, u32::MAX),
        ];
        for asked in cases {
            let mut cap = asked;
            assert_eq!(QueueSizes::new(Transport::Rc, &mut cap), Err(Errno::INVALID), "{asked:?}");
            assert_eq!(cap, asked);
        }
    }

    #[test]
    fn a_custom_buffer_is_aligned_to_its_page_offset_unit() {
        let small = QueueSizes { sq_blocks: 4, rq_entries: 4, rq_stride: 16 };
        assert_eq!((small.bytes(), small.send_offset(), small.alignment(4096)), (320, 64, 64));
        let large = QueueSizes { sq_blocks: 32768, rq_entries: 0, rq_stride: 1 };
        assert_eq!((large.bytes(), large.alignment(4096)), (1 << 21, 1 << 15));
        let wide = QueueSizes { sq_blocks: 4, rq_entries: 4, rq_stride: 1024 };
        assert_eq!(wide.alignment(4096), 1024);
    }
}
