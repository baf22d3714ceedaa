//! Segments over the program's memory: written, notified, kept while in use, and mixed with allocated parts.

use crate::ranks::{LONG, Prepare, SendAll, config, domain, each_on_a_thread, on_threads};
use gdsync::memop::{Condition, Word32};
use gdsync::stream::Cpu;
use gdsync::{Batch, PinnedMemory, SoftStream, Stream};
use gdsync_notify::collective::{Collective, CollectiveError, Collectives, Element, Operation};
use gdsync_notify::{NotifyError, Segment, SegmentMemory, Team, WaitNotification};
use gdsync_sys::shared::SharedU64;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Memory of another library, and the number of its releases.
struct Tensor {
    words: Arc<[SharedU64]>,
    releases: Arc<AtomicU32>,
}

/// Its owner.
struct Owner {
    _words: Arc<[SharedU64]>,
    releases: Arc<AtomicU32>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.releases.fetch_add(1, Ordering::Relaxed);
    }
}

impl Tensor {
    fn new(words: usize) -> Self {
        Tensor { words: (0..words).map(|_| SharedU64::new(0)).collect(), releases: Arc::default() }
    }

    /// A range of its bytes. The tensor counts their release.
    fn memory(&self, start: usize, len: usize) -> PinnedMemory {
        assert!(start + len <= size_of_val(&self.words[..]));
        let owner = Owner { _words: self.words.clone(), releases: self.releases.clone() };
        let base: NonNull<u8> = NonNull::from(&self.words[..]).cast();
        // SAFETY: inside the shared words (asserted), which the owner keeps.
        unsafe { PinnedMemory::from_raw(base.add(start), len, owner) }
    }

    fn releases(&self) -> u32 {
        self.releases.load(Ordering::Relaxed)
    }

    /// Returns when that many owners are dropped, each once.
    fn released(&self, owners: u32) {
        let started = Instant::now();
        while self.releases() < owners && started.elapsed() < LONG {
            std::thread::yield_now();
        }
        assert_eq!(self.releases(), owners);
        assert_eq!(Arc::strong_count(&self.words), 1);
    }
}

/// The lkey of a segment's data.
fn key(segment: &Segment) -> u32 {
    match segment.memory() {
        SegmentMemory::Host(region) => region.lkey(),
        other => panic!("{other:?}"),
    }
}

/// A team of one.
fn alone(queues: u32) -> Team {
    let mut teams = each_on_a_thread(1, |one| Team::new(&domain(), one, config().queues(queues)).unwrap());
    teams.remove(0)
}

const SLOT: usize = 3000;

fn content(from: u32, to: u32, round: u32) -> Vec<u8> {
    (0..SLOT).map(|at| (at * 7 + at / 251 + (from * 31 + to * 17 + round * 5) as usize) as u8).collect()
}

#[test]
fn ranks_write_and_notify_between_registered_and_allocated_parts() {
    const SIZE: u32 = 4;
    on_threads(SIZE, &config(), |team| {
        let own = team.rank();
        // Rank 1 has allocated its part; the others register at a page of their own, at any byte, and with room after it.
        let tensor = Tensor::new(SLOT * 2 * SIZE as usize / 8 + 100);
        let len = (2 * SIZE as usize) * SLOT + 10 * own as usize;
        let segment = match own {
            1 => team.allocate(len, SIZE).unwrap(),
            _ => team.register(&tensor.memory(own as usize, len), SIZE).unwrap(),
        };
        assert_eq!((segment.len(), segment.notifications()), (len, SIZE));
        let queue = team.queue(0).unwrap();
        for round in 0..20 {
            for to in 0..SIZE {
                let at = (SIZE + to) as usize * SLOT;
                segment.write(at, &content(own, to, round)).unwrap();
                let from = segment.slice(at..at + SLOT).unwrap();
                queue
                    .write_notify(&from, to, &segment, u64::from(own) * SLOT as u64, own, round + 1)
                    .unwrap();
            }
            for from in 0..SIZE {
                assert_eq!(segment.notify_waitsome(from..from + 1, LONG).unwrap(), Some(from));
                assert_eq!(segment.notify_reset(from).unwrap(), round + 1);
                let mut found = vec![0; SLOT];
                segment.read(from as usize * SLOT, &mut found).unwrap();
                assert!(found == content(from, own, round), "round {round}, from {from} to {own}");
            }
            queue.flush(LONG).unwrap();
            team.barrier().unwrap();
        }
        // The neighbour's length counts, not this rank's.
        let (next, of_next) = ((own + 1) % SIZE, len - 10 * own as usize + 10 * ((own + 1) % SIZE) as usize);
        let last = segment.slice(..8).unwrap();
        queue.write(&last, next, &segment, of_next as u64 - 8).unwrap();
        let error = queue.write(&last, next, &segment, of_next as u64 - 7).unwrap_err();
        assert!(matches!(error, NotifyError::OutOfSegment { len: 8, .. }), "{error}");
        queue.flush(LONG).unwrap();
        team.barrier().unwrap();
        drop((last, segment, queue));
        if own != 1 {
            tensor.released(1);
        }
    });
}

/// Each rank's stream sends to the next, waits for the previous one's message, and passes it on.
fn ring_on<S: gdsync::memop::MemOpStream>(team: &Team, stream: &Stream<S>, rounds: u32) {
    let (own, size) = (team.rank(), team.size());
    let tensor = Tensor::new(16);
    let segment = team.register(&tensor.memory(0, 128), 2).unwrap();
    let (queue, next, before) = (team.queue(0).unwrap(), (own + 1) % size, (own + size - 1) % size);
    let from = segment.slice(..64).unwrap();
    for round in 0..rounds {
        tensor.words[7].store(u64::from(round * 100 + own), Ordering::Relaxed);
        let written = queue
            .sends(gdsync_notify::Operation::WriteNotify {
                from: &from,
                rank: next,
                to: &segment,
                offset: 64,
                id: 0,
                value: round + 1,
            })
            .unwrap();
        let [arrived, taken] = [0, 1].map(|id| segment.notification(id).unwrap());
        let sends = Batch::new().send_all(written);
        stream.post(sends.wait_notification(&arrived)).unwrap();
        assert!(stream.synchronize_timeout(LONG).unwrap(), "{:?}", stream.oldest_wait());
        assert_eq!(tensor.words[15].load(Ordering::Relaxed), u64::from(round * 100 + before));
        let answer = queue
            .sends(gdsync_notify::Operation::Notify { rank: before, to: &segment, id: 1, value: 1 })
            .unwrap();
        stream.post(Batch::new().send_all(answer).wait_notification(&taken)).unwrap();
        assert!(stream.synchronize_timeout(LONG).unwrap(), "{:?}", stream.oldest_wait());
    }
    queue.flush(LONG).unwrap();
    team.barrier().unwrap();
    drop((from, segment, queue));
    tensor.released(1);
}

#[test]
fn streams_write_and_wait_in_registered_memory() {
    on_threads(3, &config(), |team| ring_on(team, &Stream::new(SoftStream::new().unwrap()).unwrap(), 50));
}

#[test]
fn the_cpu_as_a_stream_writes_and_waits_in_registered_memory() {
    on_threads(3, &config(), |team| ring_on(team, &Stream::new(Cpu::new()).unwrap(), 50));
}

#[test]
fn what_is_registered_again_keeps_its_key_while_the_program_holds_the_memory() {
    let (team, tensor) = (alone(1), Tensor::new(1024));
    let memory = tensor.memory(0, 8192);
    let first = team.register(&memory, 4).unwrap();
    let (again, of_first) = (team.register(&memory, 1).unwrap(), key(&first));
    assert_eq!(key(&again), of_first);
    assert_ne!(first.remote(0).unwrap().notifications, again.remote(0).unwrap().notifications);
    drop((first, again));
    assert_eq!(tensor.releases(), 0, "the program holds it");
    let part = tensor.memory(4096, 100);
    let of_part = team.register(&part, 1).unwrap();
    assert_eq!(key(&of_part), of_first, "the registration of the whole serves a part");
    let remote = of_part.remote(0).unwrap().data;
    assert_eq!((remote.addr, remote.len), (memory.addr().get() + 4096, 100));
    assert_eq!(of_part.slice(..).unwrap().len(), 100);
    assert!(of_part.slice(..101).is_err());
    let queue = team.queue(0).unwrap();
    of_part.write(0, b"content.").unwrap();
    queue.write_notify(&of_part.slice(..8).unwrap(), 0, &of_part, 8, 0, 1).unwrap();
    assert_eq!(of_part.notify_waitsome(0..1, LONG).unwrap(), Some(0));
    assert_eq!(tensor.words[512 + 1].load(Ordering::Relaxed).to_ne_bytes(), *b"content.");
    queue.flush(LONG).unwrap();
    drop((memory, part));
    assert_eq!(tensor.releases(), 0, "the segment has it");
    drop((of_part, queue, team));
    tensor.released(2);
}

#[test]
fn memory_is_kept_until_the_last_use_by_card_and_stream() {
    let (team, tensor) = (alone(2), Tensor::new(512));
    let (cpu, of_stream) = (team.queue(0).unwrap(), team.queue(1).unwrap());
    let target = team.allocate(2048, 0).unwrap();
    let gate = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
    let segment = team.register(&tensor.memory(0, 2048), 1).unwrap();
    segment.write(0, &[7; 2048]).unwrap();
    let send = of_stream
        .sends(gdsync_notify::Operation::Write {
            from: &segment.slice(..).unwrap(),
            rank: 0,
            to: &target,
            offset: 0,
        })
        .unwrap();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1).send_all(send)).unwrap();
    // The stream's wait refers to a notification, which has its own memory; the CPU's write refers to the data.
    cpu.write(&segment.slice(..64).unwrap(), 0, &target, 0).unwrap();
    drop(segment);
    cpu.flush(LONG).unwrap();
    assert_eq!(tensor.releases(), 0, "the stream has still to send it");
    gate.store(1);
    assert!(stream.synchronize_timeout(LONG).unwrap());
    of_stream.flush(LONG).unwrap();
    let mut found = [0; 2048];
    target.read(0, &mut found).unwrap();
    assert_eq!(found, [7; 2048]);
    drop(stream);
    tensor.released(1);
}

#[test]
fn what_cannot_be_registered_is_an_error_on_all_ranks() {
    on_threads(2, &config(), |team| {
        let tensor = Tensor::new(8);
        let len = if team.rank() == 1 { 0 } else { 64 };
        let refused = team.register(&tensor.memory(0, len), 1).unwrap_err();
        match (team.rank(), &refused) {
            (0, NotifyError::FailedOnRank { rank: 1, .. }) | (1, NotifyError::NothingToRegister) => {}
            (rank, other) => panic!("rank {rank}: {other:?}"),
        }
        assert!(refused.to_string().contains("Team::allocate(0, notifications)"), "{refused}");
        tensor.released(1);
        // The next call succeeds.
        team.register(&tensor.memory(0, 64), 1).unwrap();
    });
}

#[test]
fn kernels_are_told_that_they_know_one_key_of_each_part() {
    on_threads(2, &config(), |team| {
        let tensor = Tensor::new(8);
        let segment = match team.rank() {
            0 => team.allocate(64, 1).unwrap(),
            _ => team.register(&tensor.memory(0, 64), 1).unwrap(),
        };
        let error = segment.describe_to_device(&Cpu::new(), None).unwrap_err();
        assert!(matches!(error, NotifyError::TwoKeys { rank: 1 }), "{error}");
        // Without notifications there is one key.
        let data = team.register(&tensor.memory(0, 64), 0).unwrap();
        let described = data.describe_to_device(&Cpu::new(), None).unwrap().data();
        assert_eq!((described.bytes, described.count, described.size), (64, 0, 2));
        assert_eq!(described.card_data, data.remote(team.rank()).unwrap().data.addr);
    });
}

#[test]
fn collectives_take_registered_memory() {
    on_threads(3, &config(), |team| {
        let what = Collective::ReduceScatter { block: 24, element: Element::U64, operation: Operation::Sum };
        let (bytes, notifications) = (what.bytes(3), what.notifications(3));
        let tensor = Tensor::new(bytes / 8 + 2);
        let segment = match team.rank() {
            0 => team.allocate(bytes, notifications).unwrap(),
            _ => team.register(&tensor.memory(8, bytes), notifications).unwrap(),
        };
        let queue = team.queue(0).unwrap();
        let plan = Collectives::new(&queue, &segment).unwrap().plan(what).unwrap();
        let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
        for round in 0..10u64 {
            let numbers: Vec<u8> =
                (0..9).flat_map(|at| (at + 100 * u64::from(team.rank()) + round).to_ne_bytes()).collect();
            segment.write(plan.input(round).start, &numbers).unwrap();
            plan.post(&stream).unwrap();
            assert!(stream.synchronize_timeout(LONG).unwrap(), "{:?}", stream.oldest_wait());
            plan.check().unwrap();
            let mut found = [0; 24];
            segment.read(plan.output(round).start, &mut found).unwrap();
            let sum = |at: u64| 3 * (at + 3 * u64::from(team.rank()) + round) + 300;
            let expected: Vec<u8> = (0..3).flat_map(|at| sum(at).to_ne_bytes()).collect();
            assert_eq!(found[..], expected);
        }
        queue.flush(LONG).unwrap();
        // A GPU adds aligned words.
        let odd = team.register(&tensor.memory(4, bytes), notifications).unwrap();
        let error = Collectives::new(&queue, &odd).unwrap().plan(what).unwrap_err();
        assert!(matches!(error, CollectiveError::Unaligned { element: Element::U64, .. }), "{error}");
    });
}
