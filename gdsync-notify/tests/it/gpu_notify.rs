//! Notified writes between segments in GPU and host memory. Skipped, with a message, where there is no GPU.

use crate::notify_rig::{self, Job};
use crate::ranks::{Prepare, each_on_a_thread};
use gdsync::advanced::mapped::MappedMemory;
use gdsync::cuda::{self, GpuMemory};
use gdsync::cudarc::driver::{self, LaunchConfig, PushKernelArg};
use gdsync::memop::Word32;
use gdsync::stream::DoorbellPath;
use gdsync::{Batch, CudaStream, PinnedMemory, QueuePairConfig, Stream};
use gdsync_notify::{
    NotifyError, Operation, Queue, Segment, SegmentMemory, Team, TeamConfig, WaitNotification,
};
use gdsync_test_support::gpu::{Rig, is_sanitized, synchronize, words};
use gdsync_test_support::pair::LONG;
use gdsync_test_support::skipped;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(crate) struct Rank {
    team: Team,
    pub(crate) segment: Segment,
    pub(crate) queue: Queue,
}

impl Rank {
    fn memory(&self) -> GpuMemory {
        match self.segment.memory() {
            SegmentMemory::Gpu(region) => region.memory().clone(),
            other => panic!("{other:?}"),
        }
    }

    fn content(&self, start: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.segment.read(start, &mut bytes).unwrap();
        bytes
    }

    fn wait(&self, id: u32, value: u32) {
        assert_eq!(self.segment.notify_waitsome(id..id + 1, LONG).unwrap(), Some(id));
        assert_eq!(self.segment.notify_reset(id).unwrap(), value);
        assert_eq!(self.segment.notify_reset(id).unwrap(), 0, "it was taken");
    }
}

const NOTIFICATIONS: u32 = 8;

/// Ranks with their segments in GPU memory, or in host memory.
pub(crate) fn ranks<const N: usize>(rig: &Rig, on_gpu: [bool; N], len: usize) -> [Rank; N] {
    let (pd, context) = (&rig.pair.pd, &rig.context);
    let made = each_on_a_thread(N as u32, |bootstrap| {
        let on_gpu = on_gpu[bootstrap.rank() as usize];
        let team = Team::new(pd, bootstrap, TeamConfig::default().queues(2)).unwrap();
        let segment = match on_gpu {
            true => team.allocate_gpu(context, len, NOTIFICATIONS).unwrap(),
            false => team.allocate(len, NOTIFICATIONS).unwrap(),
        };
        Rank { queue: team.queue(0).unwrap(), team, segment }
    });
    made.try_into().unwrap_or_else(|_| panic!("not {N} ranks"))
}

#[test]
fn the_cpu_writes_and_notifies_between_all_kinds_of_memory() {
    let Some(rig) = Rig::new("the_cpu_writes_and_notifies_between_all_kinds_of_memory") else { return };
    const LEN: usize = 100_000;
    for on_gpu in [[true, true], [true, false], [false, true]] {
        let ranks = ranks(&rig, on_gpu, 2 * LEN);
        for (round, len) in [0, 1, 4, 4097, LEN].into_iter().enumerate() {
            for (from, to) in [(0, 1), (1, 0), (0, 0)] {
                let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 253 + round + from) as u8).collect();
                let (sender, receiver) = (&ranks[from], &ranks[to]);
                sender.segment.write(0, &bytes).unwrap();
                let (slice, id) = (sender.segment.slice(..len).unwrap(), round as u32);
                sender
                    .queue
                    .write_notify(&slice, to as u32, &sender.segment, LEN as u64, id, 1 << 31)
                    .unwrap();
                receiver.wait(id, 1 << 31);
                assert!(receiver.content(LEN, len) == bytes, "{len} bytes from {from} to {to}, {on_gpu:?}");
                sender.queue.flush(LONG).unwrap();
            }
        }
        assert_eq!(
            ranks[0].segment.notify_waitsome(0..NOTIFICATIONS, Duration::from_millis(5)).unwrap(),
            None
        );
    }
}

#[test]
fn kernels_of_two_streams_pass_data_to_and_fro() {
    let Some(rig) = Rig::new("kernels_of_two_streams_pass_data_to_and_fro") else { return };
    const ROUNDS: u32 = 300;
    const BYTES: usize = 64;
    let ranks = ranks(&rig, [true, true], BYTES);
    let streams: [Stream<CudaStream>; 2] = [rig.stream(), rig.stream()];
    let memories = [0, 1].map(|rank| ranks[rank].memory());
    let put = |from: usize, round: u32| {
        let rank = &ranks[from];
        let slice = rank.segment.slice(..BYTES).unwrap();
        let sends = rank.queue.sends(Operation::WriteNotify {
            from: &slice,
            rank: 1 - from as u32,
            to: &rank.segment,
            offset: 0,
            id: 0,
            value: round + 1,
        });
        sends.unwrap().into_iter().fold(Batch::new(), Batch::send)
    };
    rig.launch(&streams[0], &rig.fill, &memories[0], 0);
    for round in 0..ROUNDS {
        // One rank adds 1 and sends, another adds 2 and sends back: an early notification or late data makes a wrong sum.
        rig.launch(&streams[0], &rig.add, &memories[0], 1);
        streams[0].post(put(0, round)).unwrap();
        let arrival = ranks[1].segment.notification(0).unwrap();
        streams[1].post(Batch::new().wait_notification(&arrival)).unwrap();
        rig.launch(&streams[1], &rig.add, &memories[1], 2);
        streams[1].post(put(1, round)).unwrap();
        let arrival = ranks[0].segment.notification(0).unwrap();
        streams[0].post(Batch::new().wait_notification(&arrival)).unwrap();
        if round % 16 == 15 {
            // The completions free the queue.
            streams.iter().for_each(synchronize);
            ranks.iter().for_each(|rank| rank.queue.flush(LONG).unwrap());
        }
    }
    streams.iter().for_each(synchronize);
    let found = words(&memories[0]);
    let expected: Vec<u32> = (0..16).map(|i| i + 3 * ROUNDS).collect();
    assert_eq!(found[..16], expected);
    for rank in &ranks {
        assert_eq!(
            rank.segment.notify_waitsome(0..NOTIFICATIONS, Duration::ZERO).unwrap(),
            None,
            "all taken"
        );
        rank.queue.flush(LONG).unwrap();
    }
}

#[test]
fn a_reset_in_gpu_memory_loses_none_that_comes_meanwhile() {
    let Some(rig) = Rig::new("a_reset_in_gpu_memory_loses_none_that_comes_meanwhile") else { return };
    const LAST: u32 = 2000;
    let ranks = ranks(&rig, [false, true], 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in 1..=LAST {
                ranks[0].queue.notify(1, &ranks[0].segment, 3, value).unwrap();
            }
            ranks[0].queue.flush(LONG).unwrap();
        });
        // A later notification may overwrite an earlier one; the last one must be taken, and none twice.
        let mut before = 0;
        while before < LAST {
            assert_eq!(ranks[1].segment.notify_waitsome(0..NOTIFICATIONS, LONG).unwrap(), Some(3));
            let value = ranks[1].segment.notify_reset(3).unwrap();
            assert!(value > before, "{value} after {before}");
            before = value;
        }
    });
}

#[test]
fn a_dead_rank_releases_waits_in_gpu_memory() {
    let Some(rig) = Rig::new("a_dead_rank_releases_waits_in_gpu_memory") else { return };
    // The third rank dies. Its segment is in host memory: CUDA frees GPU memory only when the context's streams have
    // passed, and here one of them waits for that death.
    let [one, other, third] = ranks(&rig, [true, true, false], 16);
    let stream = rig.stream();
    one.segment.expect_from(5..8, 2).unwrap();
    // Notifications from before the death stay.
    third.queue.notify(0, &one.segment, 6, 7).unwrap();
    third.queue.flush(LONG).unwrap();
    let behind = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    for id in [5, 7, 5, 0] {
        stream.post(Batch::new().wait_notification(&one.segment.notification(id).unwrap())).unwrap();
    }
    stream.post(Batch::new().write_value32(&behind, 1)).unwrap();
    let oldest = stream.oldest_wait().unwrap();
    assert!(oldest.contains("notification 5 of rank 2"), "{oldest}");
    assert!(!stream.synchronize_timeout(Duration::from_millis(5)).unwrap());
    // A rank that leaves is dead to the others.
    drop(third);
    synchronize(&stream);
    assert_eq!(behind.load(), 1);
    for id in [5, 7, 0] {
        let error = one.segment.check_notification(id).unwrap_err();
        assert!(matches!(error, NotifyError::PeerDead { rank: 2, .. }), "{error}");
        assert_eq!(one.segment.notify_reset(id).unwrap(), 0);
    }
    assert_eq!(one.segment.notify_waitsome(0..8, LONG).unwrap(), Some(6));
    assert_eq!(one.segment.notify_reset(6).unwrap(), 7);
    let error = one.segment.notify_waitsome(5..6, LONG).unwrap_err();
    assert!(matches!(error, NotifyError::PeerDead { rank: 2, .. }), "{error}");
    std::thread::scope(|scope| {
        let shrinks = [&one, &other].map(|rank| scope.spawn(|| rank.team.shrink().unwrap()));
        assert_eq!(shrinks.map(|shrink| shrink.join().unwrap()), [[2], [2]]);
    });
    // Any rank may set that one: the stream waits again.
    stream.post(Batch::new().wait_notification(&one.segment.notification(0).unwrap())).unwrap();
    assert!(!stream.synchronize_timeout(Duration::from_millis(5)).unwrap());
    other.queue.notify(0, &other.segment, 0, 1).unwrap();
    synchronize(&stream);
    one.segment.check_notification(0).unwrap();
    other.queue.flush(LONG).unwrap();
}

#[test]
fn a_stream_that_waits_lets_others_take_other_notifications() {
    let Some(rig) = Rig::new("a_stream_that_waits_lets_others_take_other_notifications") else {
        return;
    };
    let ranks = ranks(&rig, [true, true], 16);
    let stream = rig.stream();
    stream.post(Batch::new().wait_notification(&ranks[1].segment.notification(7).unwrap())).unwrap();
    for value in 1..50 {
        ranks[0].queue.notify(1, &ranks[0].segment, 2, value).unwrap();
        ranks[1].wait(2, value);
    }
    assert!(!stream.synchronize_timeout(Duration::from_millis(5)).unwrap());
    ranks[0].queue.notify(1, &ranks[0].segment, 7, u32::MAX).unwrap();
    synchronize(&stream);
    assert_eq!(ranks[1].segment.notify_reset(7).unwrap(), 0, "the stream has taken it");
    ranks[0].queue.flush(LONG).unwrap();
}

#[test]
fn parts_of_gpu_segments_are_bounds_checked() {
    let Some(rig) = Rig::new("parts_of_gpu_segments_are_bounds_checked") else { return };
    let ranks = ranks(&rig, [true, true], 100);
    let (rank, slice) = (&ranks[0], ranks[0].segment.slice(..10).unwrap());
    let error = rank.queue.write(&slice, 1, &rank.segment, 91).unwrap_err();
    assert!(
        matches!(error, NotifyError::OutOfSegment { rank: 1, offset: 91, len: 10, size: 100 }),
        "{error}"
    );
    assert!(rank.segment.slice(..101).is_err() && rank.segment.read(0, &mut [0; 101]).is_err());
    assert!(rank.segment.notification(NOTIFICATIONS).is_err());
    assert!(rank.segment.notify_reset(NOTIFICATIONS).is_err());
}

#[test]
fn kernels_write_to_each_other_and_notify() {
    let test = "kernels_write_to_each_other_and_notify";
    let Some(rig) = Rig::new(test) else { return };
    let Some(module) = rig.compile(test, "notify.cu") else { return };
    const SLOT: usize = 600;
    // 96 threads of the widest group each have a word and two notifications.
    const NOTIFICATIONS: u32 = 192;
    let cases = [
        ([true, true, true], DoorbellPath::Auto, true),
        ([true, false, true], DoorbellPath::Proxy, true),
        ([false, false, false], DoorbellPath::Auto, true),
        ([false, false, false], DoorbellPath::Proxy, false),
    ];
    // Under a sanitizer the driver copies to GPU memory only when no kernel runs: there the card writes only to host
    // memory.
    for (on_gpu, path, near) in
        cases.into_iter().filter(|(on_gpu, ..)| !is_sanitized() || *on_gpu == [false; 3])
    {
        let tables = near.then_some(&rig.context);
        // A block of 96 threads posts 192 requests at a time.
        let config =
            TeamConfig::default().queue_pair(QueuePairConfig::default().send_depth(256).recv_depth(1));
        let (pd, context) = (&rig.pair.pd, &rig.context);
        let made = each_on_a_thread(3, |bootstrap| {
            let on_gpu = on_gpu[bootstrap.rank() as usize];
            let team = Team::new(pd, bootstrap, config.clone()).unwrap();
            let segment = |notifications| match on_gpu {
                true => team.allocate_gpu(context, 3 * SLOT, notifications).unwrap(),
                false => team.allocate(3 * SLOT, notifications).unwrap(),
            };
            let segments = (segment(0), segment(NOTIFICATIONS));
            notify_rig::Rank::new(&team, segments, &*rig.stream(), (path, tables))
        });
        let jobs = PinnedMemory::allocate(made.len() * size_of::<Job>()).unwrap();
        let (address, stream) = (cuda::pin(&rig.context, &jobs).unwrap(), rig.stream());
        for (kernel, threads) in [
            ("all_to_all_warp", 1u32),
            ("all_to_all_warp", 32),
            ("all_to_all_block", 96),
            ("together_warp", 20),
            ("together_block", 96),
        ] {
            for (i, rank) in made.iter().enumerate() {
                rank.inbox.write(0, &vec![notify_rig::GUARD; 3 * SLOT]).unwrap();
                jobs.write(i * size_of::<Job>(), rank.job(20, SLOT, LONG).bytes());
            }
            let function = module.load_function(kernel).unwrap();
            let mut launch = stream.cudarc().unwrap().launch_builder(&function);
            let grid = (made.len() as u32, 1, 1);
            let config = LaunchConfig { grid_dim: grid, block_dim: (threads, 1, 1), shared_mem_bytes: 0 };
            launch.arg(&address);
            // SAFETY: the kernel's parameter; jobs, queues and segments live until the stream is synchronized.
            unsafe { launch.launch(config) }.unwrap();
            drop(launch);
            assert!(stream.synchronize_timeout(LONG * 3).unwrap(), "{kernel} does not end: {stream:?}");
            for rank in 0..made.len() {
                let failed = jobs.words64()[(rank + 1) * size_of::<Job>() / 8 - 1].load(Ordering::Acquire);
                assert_eq!(
                    failed, 0,
                    "line of notify.cu; {kernel} of rank {rank}, {on_gpu:?}, {path:?}, {near}"
                );
            }
        }
        for rank in &made {
            // The CPU continues where the kernels stopped.
            let queue = rank.queue.detach_device(LONG).unwrap();
            queue.notify(0, &rank.inbox, rank.team.rank(), 5).unwrap();
            queue.flush(LONG).unwrap();
        }
        for id in 0..3 {
            assert_eq!(made[0].inbox.notify_reset(id).unwrap(), 5);
        }
    }
}

#[test]
fn a_notification_arrives_while_a_call_of_the_driver_waits_for_the_gpu() {
    const TEST: &str = "a_notification_arrives_while_a_call_of_the_driver_waits_for_the_gpu";
    let Some(rig) = Rig::new(TEST) else { return };
    // The other rank's data is in host memory: the card reads much GPU memory by the driver.
    let [one, other] = ranks(&rig, [true, false], 1 << 20);
    if MappedMemory::allocate(&rig.context, 8).is_err() {
        return skipped(
            TEST,
            "the CPU maps no GPU memory here, so the card's stores are calls of the driver, too",
        );
    }
    let stream = rig.stream();
    rig.context.bind_to_thread().unwrap();
    // SAFETY: the context is current.
    let more = unsafe { driver::result::malloc_sync(1 << 20) }.unwrap();
    stream.post(Batch::new().wait_notification(&one.segment.notification(3).unwrap())).unwrap();
    std::thread::scope(|scope| {
        // It frees the memory when the GPU is idle, and other calls of the driver wait for it.
        let freed = scope.spawn(|| {
            rig.context.bind_to_thread().unwrap();
            // SAFETY: allocated above, and used by nothing else.
            unsafe { driver::result::free_sync(more) }
        });
        std::thread::sleep(Duration::from_millis(20));
        let slice = other.segment.slice(0..1 << 20).unwrap();
        other.queue.write_notify(&slice, 0, &one.segment, 0, 3, 1).unwrap();
        freed.join().unwrap().unwrap();
    });
    synchronize(&stream);
    other.queue.flush(LONG).unwrap();
}
