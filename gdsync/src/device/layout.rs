//! The structures of `gdsync/device/queue.cuh`, of which these are the other half.

use gdsync_sys::prm::wqe::BASIC_BLOCK;
use zerocopy::{Immutable, IntoBytes};

/// `GDSYNC_DEVICE_QP_VERSION`.
pub(super) const VERSION: u32 = 1;
/// `GDSYNC_DEVICE_QP_MAILBOX`.
pub(super) const MAILBOX: u32 = 1;
/// `GDSYNC_DEVICE_RINGING`, in the word [`READY`].
const RINGING: u64 = 1 << 63;
/// `GDSYNC_DEVICE_ERROR_WORK`, with the card's syndrome in the low byte and the vendor's in the
/// next.
pub(super) const ERROR_WORK: u64 = 0x1_0000;
/// `GDSYNC_DEVICE_ERROR_RETURNED`.
pub(super) const ERROR_RETURNED: u64 = 0x8_0000;

/// A queue pair as kernels know it: `struct gdsync_device_qp` of `gdsync/device_verbs.cuh`, passed
/// to them by value or by address.
///
/// Plain data with addresses of the device that the queue pair is attached to. It is invalid once
/// its [`super::DeviceQp`] was detached or dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
pub struct DeviceQpData {
    /// Ring of the send queue, 64 bytes a block.
    pub send_ring: u64,
    /// Word of the doorbell record that counts send blocks.
    pub send_record: u64,
    /// Doorbell register, or mailbox.
    pub doorbell: u64,
    /// Ring of the send completion queue, 64 bytes an entry.
    pub completion_ring: u64,
    /// Word of its doorbell record with the consumer index.
    pub completion_record: u64,
    /// The indices that the threads of kernels share: 320 bytes.
    pub state: u64,
    /// Blocks of the send ring less one.
    pub send_mask: u32,
    /// Entries of the completion ring less one.
    pub completion_mask: u32,
    /// Number of the queue pair.
    pub qpn: u32,
    /// Blocks that may be outstanding at a time.
    pub limit: u32,
    /// Bit 0: the doorbell is a mailbox.
    pub flags: u32,
    /// Version of the layout.
    pub version: u32,
    /// How long a thread waits for another thread in the middle of a call, in nanoseconds.
    pub stall_ns: u64,
    /// Zeroes.
    pub reserved: [u64; 6],
}

// SAFETY: plain integers, in the layout that kernels expect, which a test compares.
unsafe impl cudarc::driver::DeviceRepr for DeviceQpData {}

/// Bytes of the memory that [`DeviceQpOptions::state`](super::DeviceQpOptions::state) needs:
/// `struct gdsync_device_state`.
pub const STATE_BYTES: usize = 5 * BASIC_BLOCK;

/// The words of `gdsync_device_state` that the CPU reads and writes. It writes them only while no
/// kernel posts or polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) reserved: u64,
    pub(super) ready: u64,
    pub(super) posted: u64,
    pub(super) completed: u64,
    pub(super) consumed: u64,
    pub(super) error: u64,
}

// Where the fields of `Progress` are, in 64-bit words.
const RESERVED: usize = 0;
const READY: usize = 8;
const POSTED: usize = 16;
const COMPLETED: usize = 24;
const CONSUMED: usize = 25;
const ERROR: usize = 32;

impl Progress {
    pub(super) fn from_words(word: impl Fn(usize) -> u64) -> Self {
        Progress {
            reserved: word(RESERVED),
            ready: word(READY) & !RINGING,
            posted: word(POSTED),
            completed: word(COMPLETED),
            consumed: word(CONSUMED),
            error: word(ERROR),
        }
    }

    /// Each word, with its position.
    pub(super) fn words(&self) -> [(usize, u64); 6] {
        [
            (RESERVED, self.reserved),
            (READY, self.ready),
            (POSTED, self.posted),
            (COMPLETED, self.completed),
            (CONSUMED, self.consumed),
            (ERROR, self.error),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_layout_is_that_of_the_header() {
        assert_eq!((size_of::<DeviceQpData>(), align_of::<DeviceQpData>()), (128, 8));
        let offsets = [
            offset_of!(DeviceQpData, send_ring),
            offset_of!(DeviceQpData, send_record),
            offset_of!(DeviceQpData, doorbell),
            offset_of!(DeviceQpData, completion_ring),
            offset_of!(DeviceQpData, completion_record),
            offset_of!(DeviceQpData, state),
            offset_of!(DeviceQpData, send_mask),
            offset_of!(DeviceQpData, completion_mask),
            offset_of!(DeviceQpData, qpn),
            offset_of!(DeviceQpData, limit),
            offset_of!(DeviceQpData, flags),
            offset_of!(DeviceQpData, version),
            offset_of!(DeviceQpData, stall_ns),
            offset_of!(DeviceQpData, reserved),
        ];
        assert_eq!(offsets, [0, 8, 16, 24, 32, 40, 48, 52, 56, 60, 64, 68, 72, 80]);
    }

    #[test]
    fn words_go_back_to_where_they_came_from() {
        let progress = Progress { reserved: 1, ready: 2, posted: 3, completed: 4, consumed: 5, error: 6 };
        let mut memory = [0u64; STATE_BYTES / 8];
        for (at, value) in progress.words() {
            memory[at] = value;
        }
        memory[READY] |= RINGING;
        assert_eq!(Progress::from_words(|at| memory[at]), progress);
    }
}
