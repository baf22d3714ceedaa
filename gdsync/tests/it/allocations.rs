//! Posting does not allocate once a stream is warm.
//!
//! The allocator here is that of the whole test binary. It counts by thread, so that the other tests do not disturb
//! the count.

use gdsync::memop::{MemOpCaps, Word32};
use gdsync::outline::{Descriptor, PaperSend, PaperWait, Program};
use gdsync::{Batch, ConnectOptions, PinnedMemory, QueuePairConfig, WorkRequest};
use gdsync_test_support::pair::{Pair, cpu, poll};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the allocations of the calling thread: a software card's thread may allocate.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends may have dropped its counter.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(of: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    of();
    ALLOCATIONS.get() - before
}

#[test]
fn allocations_are_counted() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn posting_allocates_nothing_once_a_stream_is_warm() {
    let pair =
        Pair::with(QueuePairConfig::default().send_depth(64).recv_depth(64), ConnectOptions::default());
    let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let stream = cpu();
    for merged in [true, false] {
        for round in 0..400 {
            let mut batch = Batch::with_capacity(33).merged(merged);
            for _ in 0..16 {
                pair.right.post_recv(&[], 0).unwrap();
                batch = batch.send(pair.left.prepare(WorkRequest::send(&[])).unwrap());
            }
            batch = batch.write_value32(&word, round);
            // Some batches have waits and some have none.
            let waits = if round % 3 == 0 { 0 } else { 16 };
            for _ in 0..waits {
                batch = batch.wait(pair.left.send_cq().prepare_wait().unwrap());
            }
            let count = allocations(|| assert_eq!(stream.post(batch).unwrap().submissions, 1));
            assert!(count == 0 || round < 200, "{count} allocations in round {round}, merged: {merged}");
            for queue in [pair.left.send_cq(), pair.right.recv_cq()] {
                for _ in 0..16 {
                    assert_eq!(poll(&queue).status, Ok(()));
                }
            }
            // Otherwise more work is in flight whenever the card is late, even after that many rounds.
            stream.synchronize().unwrap();
        }
    }
}

#[test]
fn the_compiler_allocates_nothing_once_it_is_warm() {
    let sends =
        (0..500).map(|i| Descriptor::Send(PaperSend { queue_pair: i % 70, index: i / 70, trigger: None }));
    let waits = (0..500).map(|index| Descriptor::WaitCq(PaperWait { queue: 3, index, checked: false }));
    let batch: Vec<_> = sends.chain(waits).collect();
    let mut program = Program::new();
    for merged in [true, false, true, false] {
        program.compile(&batch, &MemOpCaps::FULL, merged).unwrap();
    }
    for merged in [true, false] {
        assert_eq!(allocations(|| program.compile(&batch, &MemOpCaps::FULL, merged).unwrap()), 0);
    }
}
