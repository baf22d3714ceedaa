//! Ranks whose queues and segments kernels use: the arguments of `kernels/notify.cu`.

use gdsync::cudarc::driver::CudaContext;
use gdsync::memop::MemOpStream;
use gdsync::stream::DoorbellPath;
use gdsync_notify::{
    DeviceQueue, DeviceQueueData, DeviceQueueOptions, DeviceSegment, DeviceSegmentData, Segment, Team,
};
use gdsync_test_support::pair::LONG;
use std::sync::Arc;
use std::time::Duration;

/// `struct job` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) queue: DeviceQueueData,
    pub(crate) outbox: DeviceSegmentData,
    pub(crate) inbox: DeviceSegmentData,
    pub(crate) rounds: u64,
    pub(crate) slot: u64,
    pub(crate) timeout_ns: u64,
    pub(crate) failed: u64,
}

const _: () = assert!(size_of::<Job>() == 192, "as the kernels'");

impl Job {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: a structure of integers without padding, as the assertion on its size says.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Job>()) }
    }
}

/// The content of slots to which no rank has written.
pub(crate) const GUARD: u8 = 0xa5;

/// One rank's segments and their descriptions for kernels. Kernels end before it is dropped.
pub(crate) struct Rank {
    pub(crate) team: Team,
    pub(crate) inbox: Segment,
    pub(crate) queue: DeviceQueue,
    out_described: DeviceSegment,
    in_described: DeviceSegment,
}

impl Rank {
    /// Attaches queue 0 of the team and describes two segments.
    pub(crate) fn new(
        team: &Team,
        (outbox, inbox): (Segment, Segment),
        device: &impl MemOpStream,
        (path, tables): (DoorbellPath, Option<&Arc<CudaContext>>),
    ) -> Rank {
        inbox.write(0, &vec![GUARD; inbox.len()]).unwrap();
        // Under a sanitizer a thread may pause for long in the middle of a call.
        let mut options = DeviceQueueOptions::default().doorbells(path).stall(LONG);
        if let Some(context) = tables {
            options = options.tables(context);
        }
        let queue = team.queue(0).unwrap().attach_device(device, &options).unwrap();
        let [out_described, in_described] =
            [&outbox, &inbox].map(|segment| segment.describe_to_device(device, tables).unwrap());
        // No rank writes before all guards are set.
        team.barrier().unwrap();
        Rank { team: team.clone(), inbox, queue, out_described, in_described }
    }

    pub(crate) fn job(&self, rounds: u64, slot: usize, timeout: Duration) -> Job {
        Job {
            queue: self.queue.data(),
            outbox: self.out_described.data(),
            inbox: self.in_described.data(),
            rounds,
            slot: slot as u64,
            timeout_ns: timeout.as_nanos() as u64,
            failed: 0,
        }
    }
}
