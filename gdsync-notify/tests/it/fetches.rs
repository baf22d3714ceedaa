//! Reads and atomics in the queues of a team.

use crate::ranks::{
    LONG, Prepare, SendAll, config, domain, each_on_a_thread, on_threads, places_out_of_order,
};
use gdsync::memop::MemOpStream;
use gdsync::queue::RequestError;
use gdsync::stream::Cpu;
use gdsync::{
    Access, Batch, ConnectOptions, MemoryRegion, PinnedMemory, QueueError, Slice, SoftStream, Stream,
};
use gdsync_notify::{NotifyError, Operation, Segment, Team};
use std::sync::Mutex;
use std::time::Duration;

/// The number at a byte of this rank's data.
fn number(segment: &Segment, offset: usize) -> u64 {
    let mut bytes = [0; 8];
    segment.read(offset, &mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

/// Offsets of the results of atomics.
fn results(segment: &Segment, first: usize, count: usize) -> Vec<Slice> {
    (0..count).map(|at| segment.slice(first + 8 * at..first + 8 * at + 8).unwrap()).collect()
}

#[test]
fn every_rank_reads_from_every_rank() {
    const LENS: [usize; 5] = [0, 1, 8, 4097, 100_000];
    const LEN: usize = 100_000;
    let content =
        |of: u32| (0..LEN).map(|at| (at * 7 + at / 253 + of as usize * 31) as u8).collect::<Vec<u8>>();
    on_threads(3, &config(), |team| {
        let (own, size) = (team.rank(), team.size());
        let segment = team.allocate(LEN, 0).unwrap();
        let into = team.allocate(LEN * size as usize, 0).unwrap();
        segment.write(0, &content(own)).unwrap();
        team.barrier().unwrap();
        let queue = team.queue(0).unwrap();
        for len in LENS {
            into.write(0, &vec![0xa5; into.len()]).unwrap();
            let at = |of: u32| of as usize * LEN;
            for of in 0..size {
                let slice = into.slice(at(of)..at(of) + len).unwrap();
                queue.read(&slice, of, &segment, (LEN - len) as u64).unwrap();
            }
            queue.flush(LONG).unwrap();
            for of in 0..size {
                let mut found = vec![0; LEN];
                into.read(at(of), &mut found).unwrap();
                assert!(found[..len] == content(of)[LEN - len..], "{len} bytes of {of}");
                assert!(found[len..].iter().all(|byte| *byte == 0xa5), "behind {len} bytes of {of}");
            }
        }
        team.barrier().unwrap();
    });
}

#[test]
fn what_stands_behind_a_read_does_not_overtake_it() {
    const ROUNDS: u64 = 200;
    on_threads(2, &config(), |team| {
        // Reads the other rank's first 4096 bytes, overwrites them, and writes the read bytes back after them.
        let segment = team.allocate(3 * 4096, 1).unwrap();
        let (queue, other) = (team.queue(0).unwrap(), 1 - team.rank());
        let [old, new] = [0, 1].map(|at| segment.slice((1 + at) * 4096..(2 + at) * 4096).unwrap());
        if team.rank() == 0 {
            for round in 0..ROUNDS {
                segment.write(2 * 4096, &[round as u8 + 1; 4096]).unwrap();
                queue.read(&old, other, &segment, 0).unwrap();
                queue.write(&new, other, &segment, 0).unwrap();
                queue.write(&old, other, &segment, 4096).unwrap();
                queue.flush_rank(other, LONG).unwrap();
                let mut found = [0; 4096];
                segment.read(4096, &mut found).unwrap();
                assert_eq!(found, [round as u8; 4096], "what was there before the write");
            }
            queue.notify(other, &segment, 0, 1).unwrap();
            queue.flush(LONG).unwrap();
        } else {
            assert_eq!(segment.notify_waitsome(0..1, LONG).unwrap(), Some(0));
            let mut found = [0; 2 * 4096];
            segment.read(0, &mut found).unwrap();
            assert_eq!(found[..4096], [ROUNDS as u8; 4096]);
            assert_eq!(found[4096..], [ROUNDS as u8 - 1; 4096], "the write took what the read brought");
        }
        team.barrier().unwrap();
    });
}

#[test]
fn sums_of_many_ranks_are_exact() {
    const SIZE: u32 = 4;
    const ADDS: usize = 300;
    let fetched = Mutex::new(Vec::new());
    on_threads(SIZE, &config(), |team| {
        let segment = team.allocate(8 * (1 + ADDS * SIZE as usize), 0).unwrap();
        let queue = team.queue(0).unwrap();
        let into = results(&segment, 8, ADDS * SIZE as usize);
        for at in 0..ADDS {
            for rank in 0..SIZE {
                let into = &into[rank as usize * ADDS + at];
                queue.fetch_add(into, rank, &segment, 0, 1).unwrap();
            }
        }
        queue.flush(LONG).unwrap();
        team.barrier().unwrap();
        assert_eq!(number(&segment, 0), (ADDS * SIZE as usize) as u64);
        // The values fetched from each counter rise: atomics are in order.
        let of = |rank: usize| (0..ADDS).map(move |at| 8 * (1 + rank * ADDS + at));
        for rank in 0..SIZE as usize {
            let all: Vec<_> = of(rank).map(|offset| number(&segment, offset)).collect();
            assert!(all.is_sorted_by(|one, next| one < next), "{all:?}");
        }
        fetched.lock().unwrap().extend(of(0).map(|offset| number(&segment, offset)));
        team.barrier().unwrap();
    });
    // Each value of rank 0's counter was fetched once.
    let mut fetched = fetched.into_inner().unwrap();
    fetched.sort_unstable();
    assert!(fetched.into_iter().eq(0..(ADDS * SIZE as usize) as u64));
}

#[test]
fn one_of_many_ranks_swaps() {
    let winners = Mutex::new(Vec::new());
    on_threads(4, &config(), |team| {
        let segment = team.allocate(16, 0).unwrap();
        let queue = team.queue(0).unwrap();
        let into = segment.slice(8..).unwrap();
        queue.compare_swap(&into, 2, &segment, 0, 0, u64::from(team.rank()) + 1).unwrap();
        queue.flush(LONG).unwrap();
        if number(&segment, 8) == 0 {
            winners.lock().unwrap().push(u64::from(team.rank()) + 1);
        }
        team.barrier().unwrap();
        let [winner] = winners.lock().unwrap()[..] else { panic!("{winners:?}") };
        if team.rank() == 2 {
            assert_eq!(number(&segment, 0), winner);
        }
        // The others have fetched the winner's number.
        let seen = number(&segment, 8);
        assert_eq!(seen, if winner == u64::from(team.rank()) + 1 { 0 } else { winner });
        team.barrier().unwrap();
    });
}

/// In each round a stream counts at all ranks, reads a block of the next rank, and passes both on.
fn on_a_stream<S: MemOpStream>(team: &Team, stream: &Stream<S>, rounds: u64) {
    let (own, size) = (team.rank(), team.size());
    let next = (own + 1) % size;
    // The counter, results, data for others, and data read from them.
    let segment = team.allocate(4096, 0).unwrap();
    let queue = team.queue(0).unwrap();
    segment.write(1024, &[own as u8 + 1; 1024]).unwrap();
    team.barrier().unwrap();
    let (block, into) = (segment.slice(2048..3072).unwrap(), results(&segment, 8, size as usize));
    for _ in 0..rounds {
        let mut batch = Batch::new().send_all(
            queue.sends(Operation::Read { into: &block, rank: next, of: &segment, offset: 1024 }).unwrap(),
        );
        for rank in 0..size {
            let add = queue.sends(Operation::FetchAdd {
                into: &into[rank as usize],
                rank,
                of: &segment,
                offset: 0,
                add: 1,
            });
            batch = batch.send_all(add.unwrap());
        }
        let waits = (0..size).flat_map(|rank| queue.prepare_waits(rank).unwrap());
        stream.post(waits.fold(batch, Batch::wait)).unwrap();
        assert!(stream.synchronize_timeout(LONG).unwrap(), "{:?}", stream.oldest_wait());
        // After the waits everything is there.
        let mut found = [0; 1024];
        segment.read(2048, &mut found).unwrap();
        assert_eq!(found, [next as u8 + 1; 1024]);
        segment.write(2048, &[0; 1024]).unwrap();
    }
    queue.flush(LONG).unwrap();
    team.barrier().unwrap();
    assert_eq!(number(&segment, 0), rounds * u64::from(size));
    team.barrier().unwrap();
    let swap = queue
        .sends(Operation::CompareSwap {
            into: &into[0],
            rank: own,
            of: &segment,
            offset: 0,
            compare: rounds * u64::from(size),
            swap: 9,
        })
        .unwrap();
    let waits = queue.prepare_waits(own).unwrap();
    stream.post(waits.into_iter().fold(Batch::new().send_all(swap), Batch::wait)).unwrap();
    assert!(stream.synchronize_timeout(LONG).unwrap(), "{:?}", stream.oldest_wait());
    assert_eq!((number(&segment, 0), number(&segment, 8)), (9, rounds * u64::from(size)));
    // A prepared and dropped read delays nothing.
    drop(queue.sends(Operation::Read { into: &block, rank: next, of: &segment, offset: 1024 }).unwrap());
    queue.write(&block, own, &segment, 1024).unwrap();
    queue.flush(LONG).unwrap();
    team.barrier().unwrap();
}

#[test]
fn streams_read_and_count() {
    on_threads(3, &config(), |team| {
        on_a_stream(team, &Stream::new(SoftStream::new().unwrap()).unwrap(), 40);
    });
}

#[test]
fn the_cpu_as_a_stream_reads_and_counts() {
    on_threads(3, &config(), |team| on_a_stream(team, &Stream::new(Cpu::new()).unwrap(), 40));
}

#[test]
fn a_short_queue_takes_any_number_of_reads_and_atomics() {
    let short = config().queue_pair(gdsync::QueuePairConfig::default().send_depth(4));
    // Fewer in flight at a time than the queue holds.
    let short = short.connect(ConnectOptions::default().max_reads(1));
    on_threads(2, &short, |team| {
        let segment = team.allocate(8 + 8 * 200, 0).unwrap();
        let (queue, other) = (team.queue(0).unwrap(), 1 - team.rank());
        for into in results(&segment, 8, 200) {
            queue.fetch_add(&into, other, &segment, 0, 3).unwrap();
            queue.read(&into, other, &segment, 0).unwrap();
        }
        queue.flush(LONG).unwrap();
        team.barrier().unwrap();
        assert_eq!(number(&segment, 0), 600);
        // Each read's result follows that of the preceding atomic at the same address.
        let found: Vec<_> = (0..200).map(|at| number(&segment, 8 + 8 * at)).collect();
        assert_eq!(found, (1..=200).map(|count| 3 * count).collect::<Vec<_>>());
        team.barrier().unwrap();
    });
}

#[test]
fn wrong_arguments_are_named_and_send_nothing() {
    let pd = domain();
    let teams = each_on_a_thread(2, |one| {
        let team = Team::new(&pd, one, config()).unwrap();
        let segment = team.allocate(100, 1).unwrap();
        (team, segment)
    });
    let (team, segment) = &teams[0];
    let queue = team.queue(0).unwrap();
    let (eight, ten) = (segment.slice(..8).unwrap(), segment.slice(..10).unwrap());
    for offset in [91, 100, u64::MAX] {
        let error = queue.read(&ten, 1, segment, offset).unwrap_err();
        assert!(matches!(error, NotifyError::OutOfSegment { rank: 1, len: 10, size: 100, .. }), "{error}");
    }
    // The notifications after the data are no data.
    for offset in [96, 104, u64::MAX - 7] {
        for result in [
            queue.fetch_add(&eight, 1, segment, offset, 1),
            queue.compare_swap(&eight, 1, segment, offset, 0, 1),
            queue.sends(Operation::FetchAdd { into: &eight, rank: 1, of: segment, offset, add: 1 }).map(drop),
            queue
                .sends(Operation::CompareSwap {
                    into: &eight,
                    rank: 1,
                    of: segment,
                    offset,
                    compare: 0,
                    swap: 1,
                })
                .map(drop),
        ] {
            let error = result.unwrap_err();
            assert!(matches!(error, NotifyError::OutOfSegment { rank: 1, len: 8, size: 100, .. }), "{error}");
        }
    }
    assert!(matches!(queue.read(&ten, 2, segment, 0), Err(NotifyError::Rank { rank: 2, size: 2 })));
    assert!(matches!(queue.fetch_add(&eight, 2, segment, 0, 1), Err(NotifyError::Rank { rank: 2, size: 2 })));
    let request = |result: Result<(), NotifyError>| match result {
        Err(NotifyError::Post { rank: 1, source: QueueError::Request(error) }) => error,
        other => panic!("{other:?}"),
    };
    let error = request(queue.fetch_add(&ten, 1, segment, 0, 1));
    assert_eq!(error, RequestError::AtomicResult { given: 10 });
    let error = request(queue.compare_swap(&eight, 1, segment, 12, 0, 1));
    assert_eq!(error, RequestError::AtomicTarget { addr: segment.remote(1).unwrap().data.addr + 12 });
    // Memory that the card may not write to.
    let memory = MemoryRegion::register(&pd, PinnedMemory::allocate(8).unwrap(), Access::empty()).unwrap();
    let into = memory.slice(..).unwrap();
    for result in [queue.read(&into, 1, segment, 0), queue.fetch_add(&into, 1, segment, 0, 1)] {
        request(result);
    }
    queue.flush(LONG).unwrap();
    assert_eq!(number(&teams[1].1, 0), 0);
}

#[test]
fn connections_without_reads_refuse_them() {
    let without = config().connect(ConnectOptions::default().max_reads(0));
    on_threads(2, &without, |team| {
        let segment = team.allocate(16, 1).unwrap();
        let (queue, other) = (team.queue(0).unwrap(), 1 - team.rank());
        let into = segment.slice(..8).unwrap();
        for result in [
            queue.read(&into, other, &segment, 0),
            queue.fetch_add(&into, other, &segment, 0, 1),
            queue.compare_swap(&into, other, &segment, 0, 0, 1),
            queue.sends(Operation::Read { into: &into, rank: other, of: &segment, offset: 0 }).map(drop),
        ] {
            assert!(matches!(result, Err(NotifyError::NoReads)), "{result:?}");
        }
        let notified = queue.write_notify(&into, other, &segment, 8, 0, 1);
        if places_out_of_order(&queue, other) {
            // Only a read orders the notification.
            return assert!(matches!(notified, Err(NotifyError::NoReads)), "{notified:?}");
        }
        notified.unwrap();
        assert_eq!(segment.notify_waitsome(0..1, LONG).unwrap(), Some(0));
        queue.flush(LONG).unwrap();
        assert_eq!(segment.notify_waitsome(0..0, Duration::ZERO).unwrap(), None);
    });
}
