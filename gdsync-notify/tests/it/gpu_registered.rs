//! Segments over the program's GPU memory, and reads and atomics there. Skipped, with a message, where there is no GPU.

use crate::ranks::{Prepare, SendAll, each_on_a_thread};
use gdsync::Batch;
use gdsync::cuda::{self, GpuMemory};
use gdsync_notify::{NotifyError, Operation, Segment, Team, TeamConfig, WaitNotification};
use gdsync_test_support::gpu::{Rig, synchronize};
use gdsync_test_support::pair::LONG;
use gdsync_test_support::skipped;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Owns memory of the program, and counts its drops.
struct Owner {
    _memory: GpuMemory,
    releases: Arc<AtomicU32>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.releases.fetch_add(1, Ordering::Relaxed);
    }
}

/// Memory as from another library, and the number of its releases.
fn tensor(rig: &Rig, len: usize) -> (GpuMemory, Arc<AtomicU32>) {
    let (memory, releases) = (rig.memory(len), Arc::<AtomicU32>::default());
    let address = memory.address();
    let owner = Owner { _memory: memory, releases: releases.clone() };
    // SAFETY: the owner keeps the memory.
    (unsafe { GpuMemory::from_raw(&rig.context, address, len, owner) }.unwrap(), releases)
}

/// Two ranks: the first registers GPU memory, the second allocates host memory or registers GPU memory.
fn ranks(rig: &Rig, len: usize, both: bool) -> ([(Team, Segment); 2], Vec<Arc<AtomicU32>>) {
    let (tensors, releases): (Vec<_>, Vec<_>) = (0..1 + usize::from(both)).map(|_| tensor(rig, len)).unzip();
    let made = each_on_a_thread(2, |bootstrap| {
        let rank = bootstrap.rank() as usize;
        let team = Team::new(&rig.pair.pd, bootstrap, TeamConfig::default().queues(2)).unwrap();
        let segment = match tensors.get(rank) {
            Some(memory) => team.register_gpu(&rig.context, memory, 4).unwrap(),
            None => team.allocate(len, 4).unwrap(),
        };
        (team, segment)
    });
    (made.try_into().unwrap_or_else(|_| panic!("two ranks")), releases)
}

#[test]
fn registered_gpu_memory_is_written_read_and_notified() {
    let Some(rig) = Rig::new("registered_gpu_memory_is_written_read_and_notified") else { return };
    const LEN: usize = 10_000;
    for both in [false, true] {
        let (ranks, releases) = ranks(&rig, 2 * LEN, both);
        for (from, to) in [(0, 1), (1, 0), (0, 0)] {
            let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7 + at / 253 + from * 3 + to) as u8).collect();
            let ((team, sender), receiver) = (&ranks[from], &ranks[to].1);
            let queue = team.queue(0).unwrap();
            sender.write(0, &bytes).unwrap();
            let slice = sender.slice(..LEN).unwrap();
            queue.write_notify(&slice, to as u32, sender, LEN as u64, 3, 5).unwrap();
            assert_eq!(receiver.notify_waitsome(0..4, LONG).unwrap(), Some(3));
            assert_eq!((receiver.notify_reset(3).unwrap(), receiver.notify_reset(3).unwrap()), (5, 0));
            let mut found = vec![0; LEN];
            receiver.read(LEN, &mut found).unwrap();
            assert!(found == bytes, "from {from} to {to}");
            // Back by a read.
            sender.write(0, &vec![0; LEN]).unwrap();
            queue.read(&slice, to as u32, sender, LEN as u64).unwrap();
            queue.flush(LONG).unwrap();
            sender.read(0, &mut found).unwrap();
            assert!(found == bytes, "read by {from} from {to}");
        }
        assert!(releases.iter().all(|one| one.load(Ordering::Relaxed) == 0));
        drop(ranks);
        // Deferred calls are made when the context's streams are next found idle.
        let started = Instant::now();
        while releases.iter().any(|one| one.load(Ordering::Relaxed) == 0) && started.elapsed() < LONG {
            drop(rig.memory(1));
        }
        assert!(releases.iter().all(|one| one.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn streams_of_a_gpu_wait_read_and_count_in_registered_memory() {
    let Some(rig) = Rig::new("streams_of_a_gpu_wait_read_and_count_in_registered_memory") else { return };
    const ROUNDS: u32 = 50;
    let (ranks, _releases) = ranks(&rig, 4096, true);
    let (stream, (team, segment)) = (rig.stream(), &ranks[0]);
    let queue = team.queue(0).unwrap();
    let (old, block) = (segment.slice(8..16).unwrap(), segment.slice(1024..2048).unwrap());
    ranks[1].1.write(2048, &[7; 1024]).unwrap();
    for round in 0..ROUNDS {
        // The stream counts at the other rank, reads from it, notifies itself after both, and waits.
        let add =
            queue.sends(Operation::FetchAdd { into: &old, rank: 1, of: segment, offset: 0, add: 2 }).unwrap();
        let read = queue.sends(Operation::Read { into: &block, rank: 1, of: segment, offset: 2048 }).unwrap();
        let waits = queue.prepare_waits(1).unwrap();
        let notify =
            queue.sends(Operation::Notify { rank: 0, to: segment, id: 1, value: round + 1 }).unwrap();
        let batch = waits.into_iter().fold(Batch::new().send_all(add).send_all(read), Batch::wait);
        let arrival = segment.notification(1).unwrap();
        stream.post(batch.send_all(notify).wait_notification(&arrival)).unwrap();
        synchronize(&stream);
        let mut found = [0; 1024];
        segment.read(1024, &mut found).unwrap();
        assert_eq!(found, [7; 1024]);
        segment.write(1024, &[0; 1024]).unwrap();
        queue.flush(LONG).unwrap();
    }
    let mut number = [0; 8];
    ranks[1].1.read(0, &mut number).unwrap();
    assert_eq!(u64::from_ne_bytes(number), u64::from(2 * ROUNDS));
    segment.read(8, &mut number).unwrap();
    assert_eq!(u64::from_ne_bytes(number), u64::from(2 * (ROUNDS - 1)));
}

#[test]
fn what_is_no_memory_of_the_gpu_is_refused() {
    const TEST: &str = "what_is_no_memory_of_the_gpu_is_refused";
    let Some(rig) = Rig::new(TEST) else { return };
    let team = || {
        let pd = &rig.pair.pd;
        each_on_a_thread(1, |one| Team::new(pd, one, TeamConfig::default()).unwrap()).remove(0)
    };
    let empty = team().register_gpu(&rig.context, &rig.memory(0), 1).unwrap_err();
    assert!(matches!(empty, NotifyError::NothingToRegister), "{empty}");
    let Ok(other) = cuda::context(1) else { return skipped(TEST, "there is one GPU") };
    let error = team().register_gpu(&other, &rig.memory(64), 1).unwrap_err();
    assert!(matches!(error, NotifyError::OtherGpu { gpu: 1 }), "{error}");
}
