//! After a program's last write, the library submits nothing more to the stream. A program that has seen that write
//! finds the stream idle.

use gdsync::batch::MemoryWrite;
use gdsync::memop::{MemOp, MemOpCaps, MemOpStream, StreamError, Word32, Word64};
use gdsync::memory::{HostAddr, StreamAddr};
use gdsync::{Batch, PinnedMemory, SoftStream, Stream, WorkRequest};
use gdsync_test_support::pair::{LONG, Pair, poll};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A software stream that records the last operation of each submission, and takes a limited number at a time.
struct Recording {
    inner: SoftStream,
    last: Arc<Mutex<Vec<MemOp>>>,
    most: usize,
}

// SAFETY: forwards to the inner stream.
unsafe impl MemOpStream for Recording {
    fn caps(&self) -> MemOpCaps {
        MemOpCaps { max_outstanding: self.most, ..self.inner.caps() }
    }

    fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
        self.inner.translate(addr, len)
    }

    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        self.last.lock().unwrap().extend(ops.last());
        // SAFETY: the caller's.
        unsafe { self.inner.submit(ops) }
    }

    fn wait_idle(&self, timeout: Duration) -> Result<bool, StreamError> {
        self.inner.wait_idle(timeout)
    }
}

fn recording(most: usize) -> (Stream<Recording>, Arc<Mutex<Vec<MemOp>>>) {
    let last = Arc::default();
    let backend = Recording { inner: SoftStream::new().unwrap(), last: Arc::clone(&last), most };
    (Stream::new(backend).unwrap(), last)
}

/// Last operations of programs: writes of words of both lengths, and of bytes.
struct Ends {
    short: Word32,
    long: Word64,
    memory: PinnedMemory,
}

impl Ends {
    fn new() -> Self {
        let pinned = PinnedMemory::allocate(16).unwrap();
        let memory = PinnedMemory::allocate(8).unwrap();
        Ends { short: Word32::new(&pinned, 0).unwrap(), long: Word64::new(&pinned, 8).unwrap(), memory }
    }

    /// Ends a batch with a write of that number.
    fn end(&self, batch: Batch, number: u32) -> Batch {
        match number % 3 {
            0 => batch.write_value32(&self.short, number),
            1 => batch.write_value64(&self.long, number.into()),
            _ => batch
                .write_memory(MemoryWrite::new(&self.memory, 0, &u64::from(number).to_ne_bytes()).unwrap()),
        }
    }

    fn is_of(op: &MemOp, number: u32) -> bool {
        match *op {
            MemOp::Write32 { value, .. } => value == number,
            MemOp::Write64 { value, .. } => value == u64::from(number),
            _ => false,
        }
    }
}

#[test]
fn nothing_follows_what_a_program_writes_last() {
    let (pair, (stream, last)) = (Pair::new(), recording(1000));
    let ends = Ends::new();
    let exchange = |batch: Batch| {
        pair.right.post_recv(&[], 0).unwrap();
        let send = pair.left.prepare(WorkRequest::send(&[])).unwrap();
        let waits = [&pair.left.send_cq(), &pair.right.recv_cq()].map(|queue| queue.prepare_wait().unwrap());
        waits.into_iter().fold(batch.send(send), Batch::wait)
    };
    // More than the submissions of which one writes a point, whatever else it has.
    for number in 1000..1400 {
        let (batch, completes) = match number % 5 {
            0 => (exchange(Batch::new()), true),
            1 => (exchange(Batch::new()).write_value32(&ends.short, 1), true),
            2 => (exchange(Batch::new()).merged(false), true),
            _ => (Batch::new(), false),
        };
        stream.post(ends.end(batch, number)).unwrap();
        let op = last.lock().unwrap().pop().unwrap();
        assert!(Ends::is_of(&op, number), "{op:?} follows write {number}");
        if completes {
            for queue in [&pair.left.send_cq(), &pair.right.recv_cq()] {
                assert_eq!(poll(queue).status, Ok(()), "the stream is known to have passed the waits");
            }
        }
    }
    assert!(stream.synchronize_timeout(LONG).unwrap());
    assert_eq!(stream.outstanding(), 0);
}

#[test]
fn a_stream_that_only_writes_goes_on_however_little_it_takes() {
    for most in [1, 2, 5, 64] {
        let (stream, _) = recording(most);
        let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
        for number in 1..=300 {
            stream.post_timeout(Batch::new().write_value32(&word, number), LONG).unwrap();
        }
        while word.load() != 300 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn an_idle_stream_does_nothing_when_it_is_dropped() {
    let (stream, last) = recording(1000);
    let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    stream.post(Batch::new().write_value32(&word, 1)).unwrap();
    assert!(stream.wait_idle(LONG).unwrap());
    drop(stream);
    assert_eq!(last.lock().unwrap().len(), 1);
}
