//! Notified writes between kernels, and between streams, of different GPUs, a rank per GPU. With one GPU, two ranks
//! share it; skipped, with a message, where there is none.

use crate::notify_rig::{self, Job};
use crate::ranks::{Prepare, each_on_a_thread};
use gdsync::cuda;
use gdsync::cudarc::driver::{LaunchConfig, PushKernelArg};
use gdsync::stream::DoorbellPath;
use gdsync::{Batch, PinnedMemory, QueuePairConfig};
use gdsync_notify::collective::{Collective, Collectives, Element, Operation};
use gdsync_notify::{SegmentMemory, Team, TeamConfig, WaitNotification};
use gdsync_test_support::gpu::{Rig, is_sanitized, synchronize, words};
use gdsync_test_support::pair::LONG;
use std::sync::atomic::Ordering;

#[test]
fn kernels_on_two_gpus_write_to_each_other_and_notify() {
    let test = "kernels_on_two_gpus_write_to_each_other_and_notify";
    let Some(rigs) = Rig::two(test) else { return };
    const SLOT: usize = 600;
    // 96 threads of the widest group each have a word and two notifications.
    const NOTIFICATIONS: u32 = 192;
    let [Some(first), Some(second)] = rigs.each_ref().map(|rig| rig.compile(test, "notify.cu")) else {
        return;
    };
    let modules = [first, second];
    // Under a sanitizer the driver copies to GPU memory only when no kernel runs.
    for (on_gpu, path) in
        [(true, DoorbellPath::Auto), (true, DoorbellPath::Proxy), (false, DoorbellPath::Auto)]
            .into_iter()
            .filter(|(on_gpu, _)| !is_sanitized() || !on_gpu)
    {
        let config =
            TeamConfig::default().queue_pair(QueuePairConfig::default().send_depth(256).recv_depth(1));
        let made = each_on_a_thread(2, |bootstrap| {
            let rig = &rigs[bootstrap.rank() as usize];
            let team = Team::new(&rigs[0].pair.pd, bootstrap, config.clone()).unwrap();
            let segment = |notifications| match on_gpu {
                true => team.allocate_gpu(&rig.context, 2 * SLOT, notifications).unwrap(),
                false => team.allocate(2 * SLOT, notifications).unwrap(),
            };
            let segments = (segment(0), segment(NOTIFICATIONS));
            notify_rig::Rank::new(&team, segments, &*rig.stream(), (path, Some(&rig.context)))
        });
        let streams = rigs.each_ref().map(Rig::stream);
        // A job per page: each GPU has its own.
        let jobs = made.iter().map(|_| PinnedMemory::allocate(size_of::<Job>()).unwrap());
        let jobs: Vec<PinnedMemory> = jobs.collect();
        let addresses = [0, 1].map(|at| cuda::pin(&rigs[at].context, &jobs[at]).unwrap());
        for (kernel, threads) in
            [("all_to_all_warp", 32u32), ("all_to_all_block", 96), ("together_block", 96)]
        {
            let functions = modules.each_ref().map(|module| module.load_function(kernel).unwrap());
            // The driver loads a kernel at its first launch, which must not wait for the other rank's; so no round
            // comes first.
            for rounds in [0, 20] {
                // Every slot is empty before any kernel writes.
                for (rank, job) in made.iter().zip(&jobs) {
                    rank.inbox.write(0, &vec![notify_rig::GUARD; 2 * SLOT]).unwrap();
                    job.write(0, rank.job(rounds, SLOT, LONG).bytes());
                }
                for at in 0..made.len() {
                    let mut launch = streams[at].cudarc().unwrap().launch_builder(&functions[at]);
                    let block = (threads, 1, 1);
                    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: block, shared_mem_bytes: 0 };
                    launch.arg(&addresses[at]);
                    // SAFETY: the kernel's parameter; jobs, queues and segments live until the stream is synchronized.
                    unsafe { launch.launch(config) }.unwrap();
                }
                for (stream, job) in streams.iter().zip(&jobs) {
                    assert!(
                        stream.synchronize_timeout(LONG * 3).unwrap(),
                        "{kernel} does not end: {stream:?}"
                    );
                    let failed = job.words64()[size_of::<Job>() / 8 - 1].load(Ordering::Acquire);
                    assert_eq!(failed, 0, "line of notify.cu; {kernel}, on a GPU: {on_gpu}, {path:?}");
                }
            }
        }
        for rank in &made {
            // The CPU continues where the kernels stopped.
            let queue = rank.queue.detach_device(LONG).unwrap();
            queue.notify(0, &rank.inbox, rank.team.rank(), 5).unwrap();
            queue.flush(LONG).unwrap();
        }
        for id in 0..2 {
            assert_eq!(made[0].inbox.notify_reset(id).unwrap(), 5);
        }
    }
}

#[test]
fn streams_of_two_gpus_wait_for_each_others_notifications() {
    let Some(rigs) = Rig::two("streams_of_two_gpus_wait_for_each_others_notifications") else { return };
    const ROUNDS: u32 = 200;
    const BYTES: usize = 64;
    let made = each_on_a_thread(2, |bootstrap| {
        let context = &rigs[bootstrap.rank() as usize].context;
        let team = Team::new(&rigs[0].pair.pd, bootstrap, TeamConfig::default()).unwrap();
        let segment = team.allocate_gpu(context, BYTES, 1).unwrap();
        (team.queue(0).unwrap(), segment, team)
    });
    let streams = rigs.each_ref().map(Rig::stream);
    let memory = |rank: usize| match made[rank].1.memory() {
        SegmentMemory::Gpu(region) => region.memory().clone(),
        other => panic!("{other:?}"),
    };
    rigs[0].launch(&streams[0], &rigs[0].fill, &memory(0), 0);
    for round in 0..ROUNDS {
        // One GPU adds 1 and sends, another adds 2 and sends back: an early notification or late data makes a wrong sum.
        for (from, to) in [(0, 1), (1, 0)] {
            rigs[from].launch(&streams[from], &rigs[from].add, &memory(from), 1 + from as u32);
            let (queue, segment, _) = &made[from];
            let slice = segment.slice(..BYTES).unwrap();
            let sends = queue
                .sends(gdsync_notify::Operation::WriteNotify {
                    from: &slice,
                    rank: to as u32,
                    to: segment,
                    offset: 0,
                    id: 0,
                    value: round + 1,
                })
                .unwrap();
            streams[from].post(sends.into_iter().fold(Batch::new(), Batch::send)).unwrap();
            let arrival = made[to].1.notification(0).unwrap();
            streams[to].post(Batch::new().wait_notification(&arrival)).unwrap();
        }
        if round % 16 == 15 {
            // The completions free the queue.
            streams.iter().for_each(synchronize);
            made.iter().for_each(|(queue, ..)| queue.flush(LONG).unwrap());
        }
    }
    streams.iter().for_each(synchronize);
    let expected: Vec<u32> = (0..16).map(|i| i + 3 * ROUNDS).collect();
    assert_eq!(words(&memory(0))[..16], expected);
    made.iter().for_each(|(queue, ..)| queue.flush(LONG).unwrap());
}

/// A kernel of each rank's GPU reduces in that GPU's memory.
#[test]
fn ranks_on_two_gpus_reduce_together() {
    let Some(rigs) = Rig::two("ranks_on_two_gpus_reduce_together") else { return };
    const ROUNDS: u64 = 50;
    const BLOCK: usize = 4096;
    let what = Collective::ReduceScatter { block: BLOCK, element: Element::I64, operation: Operation::Sum };
    each_on_a_thread(2, |bootstrap| {
        let rig = &rigs[bootstrap.rank() as usize];
        let team = Team::new(&rigs[0].pair.pd, bootstrap, TeamConfig::default()).unwrap();
        let (len, notifications) = (what.bytes(2), what.notifications(2));
        let segment = team.allocate_gpu(&rig.context, len, notifications).unwrap();
        let queue = team.queue(0).unwrap();
        let plan = Collectives::new(&queue, &segment).unwrap().plan(what).unwrap();
        let stream = rig.stream();
        let number = |rank: u32, place: usize| i64::from(rank + 1) * 1000 + place as i64;
        for round in 0..ROUNDS {
            let input = (0..2 * BLOCK / 8).flat_map(|place| number(team.rank(), place).to_ne_bytes());
            segment.write(plan.input(round).start, &input.collect::<Vec<u8>>()).unwrap();
            plan.post(&stream).unwrap();
            synchronize(&stream);
            plan.check().unwrap();
            let mut output = vec![0; BLOCK];
            segment.read(plan.output(round).start, &mut output).unwrap();
            let first = team.rank() as usize * BLOCK / 8;
            let sums = (first..first + BLOCK / 8).map(|place| number(0, place) + number(1, place));
            assert!(output == sums.flat_map(i64::to_ne_bytes).collect::<Vec<u8>>(), "round {round}");
        }
        queue.flush(LONG).unwrap();
        team.barrier().unwrap();
    });
}
