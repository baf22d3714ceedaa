//! The kinds of posts: their requirements, and the check of their outcomes.

use crate::bench::gpu::by_hand::Bare;
use crate::bench::pair::{collect, connected};
use crate::bench::timed;
use gdsync::advanced::Collector;
use gdsync::batch::MemoryWrite;
use gdsync::memop::{Condition, MemOpStream, Word32, Word64};
use gdsync::persistent::{PersistentRecv, PersistentSend, start_all, wait_all};
use gdsync::{
    Access, Batch, MemoryRegion, PinnedMemory, PreparedWait, ProtectionDomain, QueuePair, QueuePairConfig,
    Stream, Trigger, WorkRequest,
};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::{self, Hca};
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

pub(super) const POSTS: usize = 110;
const MANY: u64 = 16;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Requirements of a kind besides two queue pairs and words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    Trigger,
    Collector,
}

/// A kind: its name, its requirements, and its posts. The outcome of each post is checked before the next.
pub(super) type PostKind<B> = (&'static str, Needs, fn(&Link, &Stream<B>) -> Result<Vec<f64>, Failure>);

pub(super) fn kinds<B: Bare>() -> [PostKind<B>; 17] {
    use Needs::{Collector, Nothing, Trigger};
    [
        ("a send", Nothing, Link::sends),
        ("a prepared send, post_send", Nothing, Link::prepared_sends),
        ("queue_send", Nothing, Link::queued_sends),
        ("a wait for a completion", Nothing, |link, stream| {
            link.waits(stream, |wait| Ok(Batch::new().wait(wait)))
        }),
        ("a checked wait", Nothing, |link, stream| {
            link.waits(stream, |wait| Ok(Batch::new().wait_checked(wait.checked()?)))
        }),
        ("a write of 32 bits, by the stream's own call", Nothing, Link::writes_by_hand),
        ("a write of 32 bits", Nothing, |link, stream| {
            let write = |number: u64| Ok(Batch::new().write_value32(&link.short, number as u32));
            each_batch(stream, write, |number| expect(u64::from(link.short.load()), number))
        }),
        ("a write of 64 bits", Nothing, |link, stream| {
            let write = |number: u64| Ok(Batch::new().write_value64(&link.long, number << 32 | 1));
            each_batch(stream, write, |number| expect(link.long.load(), number << 32 | 1))
        }),
        ("a wait for a word", Nothing, Link::word_waits),
        ("a write of 1000 bytes", Nothing, Link::bytes),
        ("16 sends, 16 waits and a write", Nothing, Link::many),
        ("a start of a persistent send", Nothing, |link, stream| link.persistent(stream, true)),
        ("a wait for a persistent send", Nothing, |link, stream| link.persistent(stream, false)),
        ("a send that a trigger releases", Trigger, Link::sends),
        ("a wait for a collector's word", Collector, Link::collected),
        ("by the CPU: post_send", Nothing, |link, _| link.cpu_sends()),
        ("by the CPU: post_recv", Nothing, |link, _| link.cpu_receives()),
    ]
}

fn post<B: MemOpStream>(stream: &Stream<B>, batch: Batch) -> Result<(), Failure> {
    Ok(stream.post(batch).map(drop).map_err(|error| error.to_string())?)
}

fn finish<B: MemOpStream>(stream: &Stream<B>) -> Result<(), Failure> {
    match stream.synchronize_timeout(TIMEOUT)? {
        true => Ok(()),
        false => Err(format!("the stream is stuck: {:?}", stream.explain_wait()).into()),
    }
}

/// Returns the times of all posts. Each post gets its number.
fn each(mut one: impl FnMut(u64) -> Result<f64, Failure>) -> Result<Vec<f64>, Failure> {
    (1..=POSTS as u64).map(&mut one).collect()
}

/// Posts batches, and checks the outcome of each.
fn each_batch<B: MemOpStream>(
    stream: &Stream<B>,
    batch: impl Fn(u64) -> Result<Batch, Failure>,
    check: impl Fn(u64) -> Result<(), Failure>,
) -> Result<Vec<f64>, Failure> {
    each(|number| {
        let batch = batch(number)?;
        let time = timed(|| post(stream, batch))?;
        finish(stream)?;
        check(number)?;
        Ok(time)
    })
}

fn expect<T: PartialEq + std::fmt::Debug>(found: T, sent: T) -> Result<(), Failure> {
    if found == sent { Ok(()) } else { Err(format!("{found:?} came, and {sent:?} was sent").into()) }
}

/// Two connected queue pairs, and the memory of their work.
pub(super) struct Link {
    left: QueuePair,
    right: QueuePair,
    source: MemoryRegion,
    target: MemoryRegion,
    collector: Option<Collector>,
    /// Holds the words, and what [`Self::bytes`] writes.
    memory: PinnedMemory,
    short: Word32,
    long: Word64,
    done: Word32,
}

const BYTES: std::ops::Range<usize> = 101..1101;

impl Link {
    pub(super) fn new(hca: Option<&Hca>, needs: Needs) -> Result<Self, Failure> {
        let (device, port) = hca::open(hca)?;
        let pd = ProtectionDomain::new(&device)?;
        let trigger = (needs == Needs::Trigger).then(|| Trigger::new(&pd)).transpose()?;
        let config = QueuePairConfig::default().port(port);
        let (left, right) = match &trigger {
            None => connected(&pd, config)?,
            Some(trigger) => connected(&pd, config.trigger(trigger))?,
        };
        let region = || MemoryRegion::allocate(&pd, 8, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let memory = PinnedMemory::allocate(4096)?;
        Ok(Link {
            left,
            right,
            source: region()?,
            target: region()?,
            collector: (needs == Needs::Collector).then(|| Collector::new(&device)).transpose()?,
            short: Word32::new(&memory, 0)?,
            long: Word64::new(&memory, 8)?,
            done: Word32::new(&memory, 64)?,
            memory,
        })
    }

    fn write(&self, value: &[u8; 8]) -> Result<gdsync::PreparedSend, Failure> {
        Ok(self.left.prepare(WorkRequest::write_inline(value, self.target.remote()))?)
    }

    /// Takes a write's completion, and checks its value.
    fn arrived(&self, number: u64) -> Result<(), Failure> {
        collect(&self.left.send_cq(), 1)?;
        self.holds(number)
    }

    fn holds(&self, number: u64) -> Result<(), Failure> {
        let mut found = [0; 8];
        self.target.read(0, &mut found);
        expect(u64::from_ne_bytes(found), number)
    }

    fn sends<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<Vec<f64>, Failure> {
        let send = |number: u64| Ok(Batch::new().send(self.write(&number.to_ne_bytes())?));
        each_batch(stream, send, |number| self.arrived(number))
    }

    fn prepared_sends<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<Vec<f64>, Failure> {
        each(|number| {
            let send = self.write(&number.to_ne_bytes())?;
            let time = timed(|| Ok(stream.post_send(send).map(drop).map_err(|error| error.to_string())?))?;
            finish(stream)?;
            self.arrived(number)?;
            Ok(time)
        })
    }

    fn queued_sends<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<Vec<f64>, Failure> {
        each(|number| {
            let value = number.to_ne_bytes();
            let request = WorkRequest::write_inline(&value, self.target.remote());
            let time = timed(|| Ok(stream.queue_send(&self.left, request).map(drop)?))?;
            finish(stream)?;
            self.arrived(number)?;
            Ok(time)
        })
    }

    fn send_now(&self, number: u64) -> Result<(), Failure> {
        let value = number.to_ne_bytes();
        Ok(self.left.post_send(WorkRequest::write_inline(&value, self.target.remote()))?)
    }

    fn waits<B: MemOpStream>(
        &self,
        stream: &Stream<B>,
        batch: impl Fn(PreparedWait) -> Result<Batch, Failure>,
    ) -> Result<Vec<f64>, Failure> {
        let wait = |number| {
            self.send_now(number)?;
            batch(self.left.send_cq().prepare_wait()?)
        };
        // Once the stream is past the wait, the value is there.
        each_batch(stream, wait, |number| self.holds(number).and_then(|()| self.arrived(number)))
    }

    fn many<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<Vec<f64>, Failure> {
        let many = |number: u64| {
            let mut batch = Batch::new();
            for _ in 0..MANY {
                batch = batch.send(self.write(&number.to_ne_bytes())?);
            }
            for _ in 0..MANY {
                batch = batch.wait(self.left.send_cq().prepare_wait()?);
            }
            Ok(batch.write_value32(&self.short, number as u32))
        };
        each_batch(stream, many, |number| {
            expect(u64::from(self.short.load()), number)?;
            collect(&self.left.send_cq(), MANY)?;
            self.holds(number)
        })
    }

    /// Returns the times of the starts, or of the waits for them.
    fn persistent<B: MemOpStream>(&self, stream: &Stream<B>, starts: bool) -> Result<Vec<f64>, Failure> {
        let mut send = PersistentSend::send(&self.left, &[self.source.slice(..)?])?;
        let mut receive = PersistentRecv::new(&self.right, &[self.target.slice(..)?])?;
        each(|number| {
            self.source.write(0, &number.to_ne_bytes());
            receive.start(stream)?;
            let started = timed(|| Ok(start_all(&mut [&mut send], stream, TIMEOUT).map(drop)?))?;
            let waited = timed(|| Ok(wait_all(&mut [&mut send], stream, TIMEOUT).map(drop)?))?;
            receive.wait_on(stream)?;
            finish(stream)?;
            send.complete(TIMEOUT)?.ok_or("a send does not complete")?.status?;
            receive.complete(TIMEOUT)?.ok_or("a receive does not complete")?.status?;
            self.holds(number)?;
            Ok(if starts { started } else { waited })
        })
    }

    fn collected<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<Vec<f64>, Failure> {
        let collector = self.collector.as_ref().ok_or("there is no collector")?;
        let wait = |number| {
            self.send_now(number)?;
            let reached = collector.collect([self.left.send_cq().prepare_wait()?])?;
            Ok(Batch::new().wait_value64(collector.word(), Condition::Geq, reached))
        };
        each_batch(stream, wait, |number| self.holds(number).and_then(|()| self.arrived(number)))
    }

    fn cpu_sends(&self) -> Result<Vec<f64>, Failure> {
        each(|number| {
            let time = timed(|| self.send_now(number))?;
            self.arrived(number)?;
            Ok(time)
        })
    }

    fn cpu_receives(&self) -> Result<Vec<f64>, Failure> {
        let slices = [self.target.slice(..)?];
        each(|number| {
            let time = timed(|| Ok(self.right.post_recv(&slices, number)?))?;
            self.left.post_send(WorkRequest::send_inline(&number.to_ne_bytes()))?;
            collect(&self.right.recv_cq(), 1)?;
            self.arrived(number)?;
            Ok(time)
        })
    }

    fn writes_by_hand<B: Bare>(&self, stream: &Stream<B>) -> Result<Vec<f64>, Failure> {
        let addr = stream.translate(self.short.addr(), 4)?;
        // If the stream fails, the write may still be pending.
        let memory = ManuallyDrop::new(self.memory.clone());
        let times = each(|number| {
            // SAFETY: the word is aligned, and in this memory, which is dropped only after all writes.
            let time = timed(|| unsafe { stream.enqueue(&mut [B::write32(addr, number as u32)]) })?;
            let begun = Instant::now();
            while u64::from(self.short.load()) != number && begun.elapsed() < TIMEOUT {
                std::hint::spin_loop();
            }
            expect(u64::from(self.short.load()), number)?;
            Ok(time)
        })?;
        drop(ManuallyDrop::into_inner(memory));
        Ok(times)
    }

    /// Posts a wait that blocks what is posted after it.
    fn word_waits<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<Vec<f64>, Failure> {
        each(|number| {
            let value = number as u32;
            let batch = Batch::new().wait_value32(&self.short, Condition::Geq, value);
            let time = timed(|| post(stream, batch))?;
            post(stream, Batch::new().write_value32(&self.done, value))?;
            expect(self.done.load(), value - 1)?;
            self.short.store(value);
            finish(stream)?;
            expect(self.done.load(), value)?;
            Ok(time)
        })
    }

    fn bytes<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<Vec<f64>, Failure> {
        let sent = |number: u64| BYTES.map(|at| (at as u64 * number % 251) as u8).collect::<Vec<_>>();
        let write = |number| {
            let write = MemoryWrite::new(&self.memory, BYTES.start, &sent(number))?;
            Ok(Batch::new().write_memory(write))
        };
        each_batch(stream, write, |number| {
            let mut found = vec![0; BYTES.len()];
            self.memory.read(BYTES.start, &mut found);
            expect(found, sent(number))
        })
    }
}
