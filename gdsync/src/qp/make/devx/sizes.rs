//! Sizes of queues made by commands. Pure.

use crate::qp::QueuePairConfig;
use crate::verbs::{DeviceAttributes, Error, OutOfRange, Transport};
use gdsync_sys::prm::recv;
use gdsync_sys::prm::wqe::{BASIC_BLOCK, MAX_DS, SEGMENT};

/// Bytes behind a queue's rings: a doorbell record, on its own cache line.
pub(super) const RECORD: usize = 64;
/// Most entries that a queue pair's context can name: 4 bits of their logarithm.
const MOST_ENTRIES: u32 = 1 << 15;
/// Most entries of a completion queue: its consumer index has 24 bits.
const MOST_COMPLETIONS: u32 = 1 << 24;
/// Most bytes of a receive that a context can name: 16 << 7.
const MOST_STRIDE: u32 = 16 << 7;
const INLINE_HEADER: u32 = 4;

/// Sizes of a queue pair's queues, and limits of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Basic blocks of the send queue, a power of two.
    pub(super) sq_blocks: u32,
    /// Entries of the receive queue, a power of two.
    pub(super) rq_entries: u32,
    pub(super) rq_stride: u32,
    pub(super) inline: u32,
    pub(super) recv_segments: u32,
}

/// Returns the 16-byte segments before a request's data: control, and a remote or a datagram's address.
fn overhead(transport: Transport) -> u32 {
    match transport {
        Transport::Rc | Transport::Uc | Transport::Dc => 2,
        Transport::Ud => 4,
    }
}

fn check(what: &'static str, value: u32, most: u32) -> Result<(), Error> {
    if value <= most {
        return Ok(());
    }
    let limit = format!("this device has at most {most}");
    Err(Error::OutOfRange(OutOfRange { what, value: value.into(), limit, remedy: "ask for less" }))
}

/// Returns the entries of a completion queue with room for `asked`; devices have powers of two only.
pub(super) fn completion_entries(asked: u32, most: u32) -> Result<u32, Error> {
    // The greatest power of two that the device has.
    let most = 1 << most.clamp(2, MOST_COMPLETIONS).ilog2();
    check("completion queue entries", asked, most)?;
    Ok(asked.max(2).next_power_of_two())
}

impl Sizes {
    pub(super) fn new(config: &QueuePairConfig<'_>, device: &DeviceAttributes) -> Result<Self, Error> {
        let segment = SEGMENT as u32;
        let overhead = overhead(config.transport);
        let room = u32::from(MAX_DS) - overhead;
        check("send_segments", config.send_segments, room.min(device.max_segments))?;
        check("inline", config.inline, room * segment - INLINE_HEADER)?;
        check("recv_segments", config.recv_segments, (MOST_STRIDE / segment).min(device.max_segments))?;
        let most = device.max_work_requests.min(MOST_ENTRIES);
        check("send_depth", config.send_depth, most)?;
        check("recv_depth", config.recv_depth, most)?;

        let inline_segments = (INLINE_HEADER + config.inline).div_ceil(segment);
        // An atomic operation has two segments behind its address: the operands, and the result's place.
        let data = config.send_segments.max(inline_segments).max(2);
        let per_block = BASIC_BLOCK as u32 / segment;
        let blocks = (overhead + data).div_ceil(per_block);
        let sq_blocks = (config.send_depth.max(1) * blocks).next_power_of_two();
        check("basic blocks of the send queue (send_depth times the blocks of a request)", sq_blocks, most)?;

        let rq_stride = recv::stride(config.recv_segments);
        // At least a block, so that the send queue behind it is aligned.
        let rq_entries = config
            .recv_depth
            .max(1)
            .next_power_of_two()
            .max(BASIC_BLOCK as u32 / rq_stride.min(BASIC_BLOCK as u32));
        Ok(Sizes {
            sq_blocks,
            rq_entries,
            rq_stride,
            inline: (blocks * per_block - overhead).min(room) * segment - INLINE_HEADER,
            recv_segments: rq_stride / segment,
        })
    }

    /// Returns the bytes of the receive queue, at whose end the send queue begins.
    pub(super) fn send_offset(&self) -> usize {
        self.rq_entries as usize * self.rq_stride as usize
    }

    pub(super) fn ring_bytes(&self) -> usize {
        self.send_offset() + self.sq_blocks as usize * BASIC_BLOCK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn device() -> DeviceAttributes {
        DeviceAttributes {
            firmware: String::new(),
            node_guid: 0,
            ports: 1,
            max_queue_pairs: 1,
            max_work_requests: 32768,
            max_segments: 30,
            max_completions: 1 << 22,
            max_reads: 16,
            atomics: true,
        }
    }

    #[test]
    fn the_default_queues() {
        let sizes = Sizes::new(&QueuePairConfig::default(), &device()).unwrap();
        // Control, address and 4 slices: 96 bytes, two blocks, of which 128 - 32 - 4 may be inline data.
        let expected = Sizes { sq_blocks: 256, rq_entries: 128, rq_stride: 64, inline: 92, recv_segments: 4 };
        assert_eq!(sizes, expected);
        let small = QueuePairConfig::default()
            .send_depth(0)
            .recv_depth(0)
            .recv_segments(0)
            .send_segments(0)
            .inline(0);
        let sizes = Sizes::new(&small, &device()).unwrap();
        let expected = Sizes { sq_blocks: 1, rq_entries: 4, rq_stride: 16, inline: 28, recv_segments: 1 };
        assert_eq!(sizes, expected);
    }

    #[test]
    fn what_is_too_large_is_named_with_its_limit() {
        let config = QueuePairConfig::default;
        for (wrong, what, limit) in [
            (config().send_segments(31), "send_segments is 31", "at most 30"),
            (config().recv_segments(31), "recv_segments is 31", "at most 30"),
            (config().inline(973), "inline is 973", "at most 972"),
            (config().inline(941).transport(Transport::Ud), "inline is 941", "at most 940"),
            (config().send_depth(32769), "send_depth is 32769", "at most 32768"),
            (config().recv_depth(u32::MAX), "recv_depth is 4294967295", "at most 32768"),
            (config().send_depth(16385), "basic blocks of the send queue", "at most 32768"),
        ] {
            let error = Sizes::new(&wrong, &device()).unwrap_err().to_string();
            assert!(error.starts_with(what) && error.contains(limit), "{error}");
        }
        for (asked, most) in [(9, 8), (u32::MAX, u32::MAX), (5, 6)] {
            let error = completion_entries(asked, most).unwrap_err().to_string();
            assert!(error.starts_with("completion queue entries is"), "{error}");
        }
        assert_eq!(
            [0, 1, 2, 3, 1000].map(|asked| completion_entries(asked, 1024).unwrap()),
            [2, 2, 2, 4, 1024]
        );
    }

    proptest! {
        #[test]
        fn as_many_requests_as_were_asked_for_fit(
            (send_depth, recv_depth) in (0u32..5000, 0u32..40000),
            (send_segments, recv_segments) in (0u32..40, 0u32..40),
            inline in 0u32..1000,
            transport in prop_oneof![Just(Transport::Rc), Just(Transport::Uc), Just(Transport::Ud)],
        ) {
            let config = QueuePairConfig::default().send_depth(send_depth).recv_depth(recv_depth)
                .send_segments(send_segments).recv_segments(recv_segments).inline(inline).transport(transport);
            let Ok(sizes) = Sizes::new(&config, &device()) else { return Ok(()) };
            let units = overhead(transport) + send_segments.max((4 + inline).div_ceil(16));
            prop_assert!(units <= 63);
            prop_assert!(sizes.sq_blocks.is_power_of_two() && sizes.sq_blocks <= 32768);
            prop_assert!(sizes.sq_blocks >= send_depth * units.div_ceil(4));
            prop_assert!(sizes.inline >= inline && overhead(transport) * 16 + 4 + sizes.inline <= 63 * 16);
            prop_assert!(sizes.rq_entries.is_power_of_two() && sizes.rq_entries >= recv_depth && sizes.rq_entries <= 32768);
            prop_assert!(sizes.recv_segments >= recv_segments && sizes.rq_stride == sizes.recv_segments * 16);
            prop_assert!(sizes.send_offset() % 64 == 0 && sizes.ring_bytes() % 64 == 0);
        }
    }
}
