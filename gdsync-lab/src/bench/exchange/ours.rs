//! An exchange by the Rust interface, and the same by hand: on queue pairs of the library, and with the
//! memory operations that it tells, but without its stream.

use super::way::{CHUNK, MESSAGE, PATIENCE, Shape, Way, late};
use crate::bench::gpu::by_hand;
use crate::bench::pair::collect;
use gdsync::cudarc::driver::sys::CUstreamBatchMemOpParams;
use gdsync::memop::{Condition, MemOp, MemOpStream};
use gdsync::memory::{HostAddr, StreamAddr};
use gdsync::stream::{DoorbellPath, StreamOptions};
use gdsync::{
    Access, Batch, ConnectOptions, CudaStream, Device, MemoryRegion, PreparedSend, PreparedWait,
    ProtectionDomain, QueuePair, QueuePairConfig, SoftStream, Stream, WorkRequest,
};
use gdsync_cli::failure::Failure;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

/// A queue pair, and its messages.
struct Ends {
    queue_pair: QueuePair,
    source: MemoryRegion,
    target: MemoryRegion,
}

impl Ends {
    fn new((device, port): &(Device, u8)) -> Result<Self, Failure> {
        let pd = ProtectionDomain::new(device)?;
        let depth = CHUNK as u32;
        let config = QueuePairConfig::default().port(*port).send_depth(depth).recv_depth(depth);
        Ok(Ends {
            queue_pair: QueuePair::new(&pd, config)?,
            source: MemoryRegion::allocate(&pd, CHUNK * MESSAGE, Access::empty())?,
            target: MemoryRegion::allocate(&pd, CHUNK * MESSAGE, Access::LOCAL_WRITE)?,
        })
    }

    fn connect(&self, other: &str) -> Result<(), Failure> {
        // Each side has posted its receives when a chunk begins.
        Ok(self.queue_pair.connect(&other.parse()?, ConnectOptions::default())?)
    }

    fn receive(&self, count: usize) -> Result<(), Failure> {
        for place in 0..count {
            let at = place * MESSAGE;
            self.queue_pair.post_recv(&[self.target.slice(at..at + MESSAGE)?], 0)?;
        }
        Ok(())
    }

    /// Calls with the request that sends a place.
    fn sending<T>(&self, place: usize, call: impl FnOnce(WorkRequest<'_>) -> T) -> Result<T, Failure> {
        let at = place * MESSAGE;
        Ok(call(WorkRequest::send(&[self.source.slice(at..at + MESSAGE)?])))
    }

    fn prepare_send(&self, place: usize) -> Result<PreparedSend, Failure> {
        Ok(self.sending(place, |request| self.queue_pair.prepare(request))??)
    }

    fn prepare_waits(&self) -> Result<[PreparedWait; 2], Failure> {
        Ok([self.queue_pair.send_cq().prepare_wait()?, self.queue_pair.recv_cq().prepare_wait()?])
    }

    fn collect(&self, count: usize) -> Result<(), Failure> {
        collect(&self.queue_pair.send_cq(), count as u64)?;
        collect(&self.queue_pair.recv_cq(), count as u64)
    }
}

/// What both have in common.
macro_rules! by_ends {
    () => {
        fn address(&self) -> Result<String, Failure> {
            Ok(self.ends.queue_pair.endpoint()?.to_string())
        }

        fn connect(&mut self, other: &str) -> Result<(), Failure> {
            self.ends.connect(other)
        }

        fn write(&mut self, place: usize, number: u64) {
            self.ends.source.words64()[place].store(number, Ordering::Relaxed);
        }

        fn read(&self, place: usize) -> u64 {
            self.ends.target.words64()[place].load(Ordering::Relaxed)
        }

        fn receive(&mut self, count: usize) -> Result<(), Failure> {
            self.ends.receive(count)
        }

        fn synchronize(&mut self) -> Result<(), Failure> {
            if self.stream.synchronize_timeout(PATIENCE)? { Ok(()) } else { Err(late()) }
        }

        fn operations(&self) -> usize {
            self.operations
        }
    };
}

/// The Rust interface.
pub(super) struct Rust<B: MemOpStream> {
    stream: Stream<B>,
    ends: Ends,
    prepared: Vec<(PreparedSend, [PreparedWait; 2])>,
    operations: usize,
}

impl<B: MemOpStream> Rust<B> {
    pub(super) fn new(place: &(Device, u8), backend: B) -> Result<Self, Failure> {
        let (stream, ends) = (Stream::new(backend)?, Ends::new(place)?);
        Ok(Rust { stream, ends, prepared: Vec::with_capacity(CHUNK), operations: 0 })
    }

    fn post(&mut self, batch: Batch) -> Result<(), Failure> {
        self.operations += self.stream.post(batch).map_err(|error| error.to_string())?.operations;
        Ok(())
    }
}

impl<B: MemOpStream> Way for Rust<B> {
    by_ends!();

    fn prepare(&mut self, shape: Shape, count: usize) -> Result<(), Failure> {
        for place in 0..if shape == Shape::Calls { 0 } else { count } {
            self.prepared.push((self.ends.prepare_send(place)?, self.ends.prepare_waits()?));
        }
        Ok(())
    }

    fn post(&mut self, shape: Shape, count: usize) -> Result<(), Failure> {
        if shape == Shape::Calls {
            for place in 0..count {
                let Ends { queue_pair, .. } = &self.ends;
                let queue = |request: WorkRequest<'_>| self.stream.queue_send(queue_pair, request);
                self.operations += self.ends.sending(place, queue)??.operations;
                for queue in [self.ends.queue_pair.send_cq(), self.ends.queue_pair.recv_cq()] {
                    self.post(Batch::new().wait(queue.prepare_wait()?))?;
                }
            }
            return Ok(());
        }
        let mut prepared = std::mem::take(&mut self.prepared);
        for (send, [sent, arrived]) in prepared.drain(..) {
            if shape == Shape::Batch {
                self.post(Batch::new().send(send).wait(sent).wait(arrived))?;
                continue;
            }
            self.operations += self.stream.post_send(send).map_err(|error| error.to_string())?.operations;
            self.post(Batch::new().wait(sent))?;
            self.post(Batch::new().wait(arrived))?;
        }
        self.prepared = prepared;
        Ok(())
    }

    fn collect(&mut self, count: usize) -> Result<(), Failure> {
        self.ends.collect(count)
    }
}

/// A stream that takes operations without the library in between.
pub(super) trait Bare: MemOpStream + Sized {
    /// An operation as the stream's driver wants it.
    type Op: Copy;

    fn write32(addr: StreamAddr, value: u32) -> Self::Op;
    fn write64(addr: StreamAddr, value: u64) -> Self::Op;
    fn wait32(addr: StreamAddr, condition: Condition, value: u32) -> Self::Op;

    /// Enqueues operations.
    ///
    /// # Safety
    /// Every address is valid for the stream, and aligned, until the stream has passed the operation. No
    /// other thread submits to it.
    unsafe fn enqueue(&self, ops: &mut [Self::Op]) -> Result<(), Failure>;
}

impl Bare for SoftStream {
    type Op = MemOp;

    fn write32(addr: StreamAddr, value: u32) -> MemOp {
        MemOp::Write32 { addr, value }
    }

    fn write64(addr: StreamAddr, value: u64) -> MemOp {
        MemOp::Write64 { addr, value }
    }

    fn wait32(addr: StreamAddr, condition: Condition, value: u32) -> MemOp {
        MemOp::Wait32 { addr, condition, value }
    }

    unsafe fn enqueue(&self, ops: &mut [MemOp]) -> Result<(), Failure> {
        // SAFETY: the caller's; the addresses were translated by the stream.
        Ok(unsafe { self.submit(ops) }?)
    }
}

impl Bare for CudaStream {
    type Op = CUstreamBatchMemOpParams;

    fn write32(addr: StreamAddr, value: u32) -> Self::Op {
        by_hand::write(addr, value.into(), false)
    }

    fn write64(addr: StreamAddr, value: u64) -> Self::Op {
        by_hand::write(addr, value, true)
    }

    fn wait32(addr: StreamAddr, condition: Condition, value: u32) -> Self::Op {
        by_hand::wait_for(addr, condition, value)
    }

    unsafe fn enqueue(&self, ops: &mut [Self::Op]) -> Result<(), Failure> {
        // SAFETY: the caller's.
        unsafe { by_hand::submit(self, ops) }
    }
}

/// By hand.
pub(super) struct Hand<B: Bare> {
    /// For its addresses and its end only.
    stream: Stream<B>,
    ends: Ends,
    prepared: Vec<Prepared<B::Op>>,
    /// Words of the library's that a batch leaves out, as the library's batch does, and their values.
    flags: Vec<Flag>,
    /// The stream's names for addresses: a program that does this by hand has them.
    known: HashMap<HostAddr, StreamAddr>,
    operations: usize,
}

struct Prepared<Op> {
    ring: [Op; 2],
    /// For each wait: itself, and the write that tells the library that it is over.
    waits: [[Op; 2]; 2],
    /// The first of these writes.
    flag: Flag,
}

/// A word of the library's by which a wait says that it is over, and its value.
type Flag = (HostAddr, u32);

impl<B: Bare> Hand<B> {
    /// # Errors
    /// The stream does not reach the card's register: there is nothing that could be done by hand.
    pub(super) fn new(place: &(Device, u8), backend: B) -> Result<Self, Failure> {
        let options = StreamOptions::default().doorbells(DoorbellPath::Direct);
        let (stream, ends) = (Stream::with_options(backend, options)?, Ends::new(place)?);
        // Maps the register for the stream.
        stream.doorbells(&ends.queue_pair)?;
        Ok(Hand {
            stream,
            ends,
            prepared: Vec::with_capacity(CHUNK),
            flags: Vec::new(),
            known: HashMap::new(),
            operations: 0,
        })
    }

    fn translate(&mut self, at: HostAddr, len: usize) -> Result<StreamAddr, Failure> {
        if let Some(known) = self.known.get(&at) {
            return Ok(*known);
        }
        let translated = self.stream.translate(at, len)?;
        self.known.insert(at, translated);
        Ok(translated)
    }

    fn ring(&mut self, send: PreparedSend) -> Result<[B::Op; 2], Failure> {
        let send = send.give_to_kernel()?;
        let (record_at, register) = (self.translate(send.record_at, 4)?, self.translate(send.register, 8)?);
        Ok([B::write32(record_at, send.record), B::write64(register, send.doorbell)])
    }

    /// The wait, and the write after it.
    fn wait(&mut self, wait: PreparedWait) -> Result<([B::Op; 2], Flag), Failure> {
        let wait = wait.give_to_kernel()?;
        let (word_at, flag_at) = (self.translate(wait.word_at, 4)?, self.translate(wait.flag_at, 4)?);
        let ops = [B::wait32(word_at, wait.condition, wait.value), B::write32(flag_at, wait.flag)];
        Ok((ops, (wait.flag_at, wait.flag)))
    }

    fn enqueue(&mut self, ops: &mut [B::Op]) -> Result<(), Failure> {
        self.operations += ops.len();
        // SAFETY: the addresses are those of the queue pair's record, register and completion entries, which
        // outlive the stream's work (`drop` waits for it), and of words that stay for ever. Only this
        // thread submits.
        unsafe { self.stream.enqueue(ops) }
    }
}

impl<B: Bare> Way for Hand<B> {
    by_ends!();

    fn prepare(&mut self, shape: Shape, count: usize) -> Result<(), Failure> {
        for place in 0..if shape == Shape::Calls { 0 } else { count } {
            let send = self.ends.prepare_send(place)?;
            let ring = self.ring(send)?;
            let [sent, arrived] = self.ends.prepare_waits()?;
            let ((sent, flag), (arrived, _)) = (self.wait(sent)?, self.wait(arrived)?);
            self.prepared.push(Prepared { ring, waits: [sent, arrived], flag });
        }
        Ok(())
    }

    fn post(&mut self, shape: Shape, count: usize) -> Result<(), Failure> {
        if shape == Shape::Calls {
            for place in 0..count {
                let send = self.ends.prepare_send(place)?;
                let mut ring = self.ring(send)?;
                self.enqueue(&mut ring)?;
                for queue in [self.ends.queue_pair.send_cq(), self.ends.queue_pair.recv_cq()] {
                    let mut wait = self.wait(queue.prepare_wait()?)?.0;
                    self.enqueue(&mut wait)?;
                }
            }
            return Ok(());
        }
        let mut prepared = std::mem::take(&mut self.prepared);
        for Prepared { mut ring, waits: [mut sent, mut arrived], flag } in prepared.drain(..) {
            if shape == Shape::Batch {
                let mut all = [ring[0], ring[1], sent[0], arrived[0], arrived[1]];
                self.enqueue(&mut all)?;
                self.flags.push(flag);
                continue;
            }
            self.enqueue(&mut ring)?;
            self.enqueue(&mut sent)?;
            self.enqueue(&mut arrived)?;
        }
        self.prepared = prepared;
        Ok(())
    }

    fn collect(&mut self, count: usize) -> Result<(), Failure> {
        for (at, value) in self.flags.drain(..) {
            // SAFETY: a word that the library keeps for the life of the process, aligned, and only the
            // owner of the wait writes it.
            unsafe { AtomicU32::from_ptr(at.get() as *mut u32) }.store(value, Ordering::Release);
        }
        self.ends.collect(count)
    }
}

impl<B: Bare> Drop for Hand<B> {
    /// The library knows nothing of what the stream has been given, and would give queues back under it.
    fn drop(&mut self) {
        // Failing the queue pair satisfies whatever is still waited for.
        let _ = self.ends.queue_pair.abort();
        let _ = self.stream.synchronize_timeout(PATIENCE);
    }
}
