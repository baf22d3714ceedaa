//! The work of one side of an exchange: by the Rust interface, and by hand. By hand uses the library's queue pairs and
//! the memory operations that it reports, but not its stream.

use crate::bench::gpu::by_hand::Bare;
use crate::bench::pair::collect;
use gdsync::memop::MemOpStream;
use gdsync::memory::{HostAddr, StreamAddr};
use gdsync::stream::{DoorbellPath, StreamOptions};
use gdsync::{
    Access, Batch, ConnectOptions, Device, MemoryRegion, PreparedSend, PreparedWait, ProtectionDomain,
    QueuePair, QueuePairConfig, Stream, WorkRequest,
};
use gdsync_cli::failure::Failure;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Exchanges enqueued at a time, without the CPU taking part. Three submissions each stay below the limit of a driver,
/// which blocks the caller at about 1000.
pub(super) const CHUNK: usize = 64;
const MESSAGE: usize = 8;
/// Time limit of a chunk; after it the other side counts as lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// How an exchange (a send, a wait for its completion, and a wait for the other side's message) is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Shape {
    /// A call for each, which also prepares it.
    Calls,
    /// A call for each, all prepared before: only posting is measured.
    Prepared,
    /// One call for all, prepared before.
    Batch,
}

impl Shape {
    pub(super) const ALL: [Shape; 3] = [Shape::Calls, Shape::Prepared, Shape::Batch];

    pub(super) fn name(self) -> &'static str {
        match self {
            Shape::Calls => "three calls, which prepare",
            Shape::Prepared => "three calls, prepared before",
            Shape::Batch => "one call, prepared before",
        }
    }
}

pub(super) trait Interface {
    fn ends(&self) -> &Ends;

    /// Prepares what the shape prepares in advance.
    fn prepare(&mut self, shape: Shape, count: usize) -> Result<(), Failure>;
    /// Hands a chunk over to the stream.
    fn post(&mut self, shape: Shape, count: usize) -> Result<(), Failure>;
    fn synchronize(&mut self) -> Result<(), Failure>;
    fn collect(&mut self, count: usize) -> Result<(), Failure> {
        self.ends().collect(count)
    }
}

fn finish<B: MemOpStream>(stream: &Stream<B>) -> Result<(), Failure> {
    match stream.synchronize_timeout(PATIENCE)? {
        true => Ok(()),
        false => Err(format!(
            "the stream has not come to its end within {PATIENCE:?}: the other side is gone, or the card is"
        )
        .into()),
    }
}

/// A queue pair, and a place for each message of a chunk in both directions.
pub(super) struct Ends {
    queue_pair: QueuePair,
    source: MemoryRegion,
    target: MemoryRegion,
    pub(super) operations: usize,
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
            operations: 0,
        })
    }

    /// Returns the address that the other side connects to.
    pub(super) fn address(&self) -> Result<String, Failure> {
        Ok(self.queue_pair.endpoint()?.to_string())
    }

    pub(super) fn connect(&self, other: &str) -> Result<(), Failure> {
        // Each side has posted its receives when a chunk begins.
        Ok(self.queue_pair.connect(&other.parse()?, ConnectOptions::default())?)
    }

    /// Writes the number that a place sends.
    pub(super) fn write(&self, place: usize, number: u64) {
        self.source.words64()[place].store(number, Ordering::Relaxed);
    }

    pub(super) fn read(&self, place: usize) -> u64 {
        self.target.words64()[place].load(Ordering::Relaxed)
    }

    pub(super) fn receive(&self, count: usize) -> Result<(), Failure> {
        for place in 0..count {
            let at = place * MESSAGE;
            self.queue_pair.post_recv(&[self.target.slice(at..at + MESSAGE)?], 0)?;
        }
        Ok(())
    }

    /// Calls `call` with the request that sends a place.
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

pub(super) struct Rust<B: MemOpStream> {
    stream: Stream<B>,
    ends: Ends,
    prepared: Vec<(PreparedSend, [PreparedWait; 2])>,
}

impl<B: MemOpStream> Rust<B> {
    pub(super) fn new(place: &(Device, u8), backend: B) -> Result<Self, Failure> {
        let (stream, ends) = (Stream::new(backend)?, Ends::new(place)?);
        Ok(Rust { stream, ends, prepared: Vec::with_capacity(CHUNK) })
    }

    fn post(&mut self, batch: Batch) -> Result<(), Failure> {
        self.ends.operations += self.stream.post(batch).map_err(|error| error.to_string())?.operations;
        Ok(())
    }
}

impl<B: MemOpStream> Interface for Rust<B> {
    fn ends(&self) -> &Ends {
        &self.ends
    }

    fn synchronize(&mut self) -> Result<(), Failure> {
        finish(&self.stream)
    }

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
                self.ends.operations += self.ends.sending(place, queue)??.operations;
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
            self.ends.operations +=
                self.stream.post_send(send).map_err(|error| error.to_string())?.operations;
            self.post(Batch::new().wait(sent))?;
            self.post(Batch::new().wait(arrived))?;
        }
        self.prepared = prepared;
        Ok(())
    }
}

pub(super) struct Hand<B: Bare> {
    /// For its addresses, and for waiting only.
    stream: Stream<B>,
    ends: Ends,
    prepared: Vec<Prepared<B::Op>>,
    /// Words of the library that a batch omits, as the library's batch does, and their values.
    flags: Vec<Flag>,
    /// The stream's addresses; a program that does this by hand knows them.
    known: HashMap<HostAddr, StreamAddr>,
}

struct Prepared<Op> {
    ring: [Op; 2],
    /// Each wait, with the write that reports its end to the library.
    waits: [[Op; 2]; 2],
    /// The first of these writes.
    flag: Flag,
}

/// A word of the library that reports a wait's end, and its value.
type Flag = (HostAddr, u32);

impl<B: Bare> Hand<B> {
    /// # Errors
    /// The stream does not reach the card's register, so nothing can be done by hand.
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

    /// Returns the wait, and the write after it.
    fn wait(&mut self, wait: PreparedWait) -> Result<([B::Op; 2], Flag), Failure> {
        let wait = wait.give_to_kernel()?;
        let (word_at, flag_at) = (self.translate(wait.word_at, 4)?, self.translate(wait.flag_at, 4)?);
        let ops = [B::wait32(word_at, wait.condition, wait.value), B::write32(flag_at, wait.flag)];
        Ok((ops, (wait.flag_at, wait.flag)))
    }

    fn enqueue(&mut self, ops: &mut [B::Op]) -> Result<(), Failure> {
        self.ends.operations += ops.len();
        // SAFETY: the addresses are those of the queue pair's record, register and completion entries, which outlive
        // the stream's work (`drop` waits for it), and of words that are never freed. Only this thread submits.
        unsafe { self.stream.enqueue(ops) }
    }
}

impl<B: Bare> Interface for Hand<B> {
    fn ends(&self) -> &Ends {
        &self.ends
    }

    fn synchronize(&mut self) -> Result<(), Failure> {
        finish(&self.stream)
    }

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
            // SAFETY: the library keeps this aligned word for the life of the process, and only the owner of the wait
            // writes it.
            unsafe { AtomicU32::from_ptr(at.get() as *mut u32) }.store(value, Ordering::Release);
        }
        self.ends.collect(count)
    }
}

impl<B: Bare> Drop for Hand<B> {
    /// The library does not know the stream's work, and would free queues that the work still uses.
    fn drop(&mut self) {
        // Failing the queue pair satisfies all pending waits.
        let _ = self.ends.queue_pair.abort();
        let _ = self.stream.synchronize_timeout(PATIENCE);
    }
}
