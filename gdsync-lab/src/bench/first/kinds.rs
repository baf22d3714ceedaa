//! The kinds of posts: what each needs, and how its outcome is looked at.

use super::Played;
use super::by_hand::ByHand;
use crate::bench::pair::{collect, connected};
use crate::bench::timed;
use gdsync::batch::MemoryWrite;
use gdsync::memop::{Condition, MemOpStream, Word32, Word64};
use gdsync::persistent::{PersistentRecv, PersistentSend, start_all, wait_all};
use gdsync::{
    Access, Batch, Collector, MemoryRegion, PinnedMemory, PreparedWait, ProtectionDomain, QueuePair,
    QueuePairConfig, Stream, Trigger, WorkRequest,
};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::{self, Hca};
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

/// Posts of each kind.
pub(super) const POSTS: usize = 110;
/// Sends of a batch of many, and waits.
const MANY: u64 = 16;
/// For anything to come.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    PreparedSend,
    QueueSend,
    Wait,
    CheckedWait,
    ByHand,
    Write32,
    Write64,
    WaitWord,
    Bytes,
    Many,
    Start,
    WaitStarted,
    Ticket,
    Collected,
    CpuSend,
    CpuReceive,
}

pub(super) const KINDS: [Kind; 17] = [
    Kind::Send,
    Kind::PreparedSend,
    Kind::QueueSend,
    Kind::Wait,
    Kind::CheckedWait,
    Kind::ByHand,
    Kind::Write32,
    Kind::Write64,
    Kind::WaitWord,
    Kind::Bytes,
    Kind::Many,
    Kind::Start,
    Kind::WaitStarted,
    Kind::Ticket,
    Kind::Collected,
    Kind::CpuSend,
    Kind::CpuReceive,
];

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Send => "a send",
            Kind::PreparedSend => "a prepared send, post_send",
            Kind::QueueSend => "queue_send",
            Kind::Wait => "a wait for a completion",
            Kind::CheckedWait => "a checked wait",
            Kind::ByHand => "a write of 32 bits, by the stream's own call",
            Kind::Write32 => "a write of 32 bits",
            Kind::Write64 => "a write of 64 bits",
            Kind::WaitWord => "a wait for a word",
            Kind::Bytes => "a write of 1000 bytes",
            Kind::Many => "16 sends, 16 waits and a write",
            Kind::Start => "a start of a persistent send",
            Kind::WaitStarted => "a wait for a persistent send",
            Kind::Ticket => "a send that a trigger releases",
            Kind::Collected => "a wait for a collector's word",
            Kind::CpuSend => "by the CPU: post_send",
            Kind::CpuReceive => "by the CPU: post_recv",
        }
    }

    /// Posts so many times, and looks at each outcome before the next.
    pub(super) fn play<B: ByHand>(self, hca: Option<&Hca>, stream: &Stream<B>) -> Result<Played, Failure> {
        let link = Link::new(hca, self)?;
        let us = match self {
            Kind::Send => link.sends(|batch| timed(|| post(stream, batch)), stream),
            Kind::PreparedSend => link.prepared_sends(stream),
            Kind::QueueSend => link.queued_sends(stream),
            Kind::Wait => link.waits(stream, |wait| Ok(Batch::new().wait(wait))),
            Kind::CheckedWait => link.waits(stream, |wait| Ok(Batch::new().wait_checked(wait.checked()?))),
            Kind::ByHand => link.words.write_by_hand(stream),
            Kind::Write32 => link.words.write32(stream),
            Kind::Write64 => link.words.write64(stream),
            Kind::WaitWord => link.words.wait(stream),
            Kind::Bytes => link.words.bytes(stream),
            Kind::Many => link.many(stream),
            Kind::Start => link.persistent(stream, true),
            Kind::WaitStarted => link.persistent(stream, false),
            Kind::Ticket => link.sends(|batch| timed(|| post(stream, batch)), stream),
            Kind::Collected => link.collected(stream),
            Kind::CpuSend => link.cpu_sends(),
            Kind::CpuReceive => link.cpu_receives(),
        };
        Ok(self.played(us?))
    }

    fn played(self, us: Vec<f64>) -> Played {
        let checked = us.len() as u64;
        Played { what: self.name().to_owned(), us, checked }
    }
}

fn post<B: MemOpStream>(stream: &Stream<B>, batch: Batch) -> Result<(), Failure> {
    Ok(stream.post(batch).map(drop).map_err(|error| error.to_string())?)
}

/// Until the stream has performed everything.
fn finish<B: MemOpStream>(stream: &Stream<B>) -> Result<(), Failure> {
    match stream.synchronize_timeout(TIMEOUT)? {
        true => Ok(()),
        false => Err(format!("the stream is stuck: {:?}", stream.oldest_wait()).into()),
    }
}

/// The times of all posts. Each post gets its number.
fn each(mut one: impl FnMut(u64) -> Result<f64, Failure>) -> Result<Vec<f64>, Failure> {
    (1..=POSTS as u64).map(&mut one).collect()
}

fn expect<T: PartialEq + std::fmt::Debug>(found: T, sent: T) -> Result<(), Failure> {
    if found == sent { Ok(()) } else { Err(format!("{found:?} came, and {sent:?} was sent").into()) }
}

/// Two connected queue pairs, and what their work names.
struct Link {
    left: QueuePair,
    right: QueuePair,
    source: MemoryRegion,
    target: MemoryRegion,
    collector: Option<Collector>,
    words: Words,
}

impl Link {
    fn new(hca: Option<&Hca>, kind: Kind) -> Result<Self, Failure> {
        let (device, port) = hca::open(hca)?;
        let pd = ProtectionDomain::new(&device)?;
        let trigger = (kind == Kind::Ticket).then(|| Trigger::new(&pd)).transpose()?;
        let config = QueuePairConfig::default().port(port);
        let (left, right) = match &trigger {
            None => connected(&pd, config)?,
            Some(trigger) => connected(&pd, config.trigger(trigger))?,
        };
        let region = || MemoryRegion::allocate(&pd, 8, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let (source, target) = (region()?, region()?);
        let collector = (kind == Kind::Collected).then(|| Collector::new(&device)).transpose()?;
        Ok(Link { left, right, source, target, collector, words: Words::new()? })
    }

    fn write(&self, value: &[u8; 8]) -> Result<gdsync::PreparedSend, Failure> {
        Ok(self.left.prepare(WorkRequest::write_inline(value, self.target.remote()))?)
    }

    /// A write's completion, and its value.
    fn arrived(&self, number: u64) -> Result<(), Failure> {
        collect(&self.left.send_cq(), 1)?;
        self.holds(number)
    }

    fn holds(&self, number: u64) -> Result<(), Failure> {
        let mut found = [0; 8];
        self.target.read(0, &mut found);
        expect(u64::from_ne_bytes(found), number)
    }

    fn sends<B: MemOpStream>(
        &self,
        posted: impl Fn(Batch) -> Result<f64, Failure>,
        stream: &Stream<B>,
    ) -> Result<Vec<f64>, Failure> {
        each(|number| {
            let time = posted(Batch::new().send(self.write(&number.to_ne_bytes())?))?;
            finish(stream)?;
            self.arrived(number)?;
            Ok(time)
        })
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

    /// Has the CPU send.
    fn send_now(&self, number: u64) -> Result<(), Failure> {
        let value = number.to_ne_bytes();
        Ok(self.left.post_send(WorkRequest::write_inline(&value, self.target.remote()))?)
    }

    fn waits<B: MemOpStream>(
        &self,
        stream: &Stream<B>,
        batch: impl Fn(PreparedWait) -> Result<Batch, Failure>,
    ) -> Result<Vec<f64>, Failure> {
        each(|number| {
            self.send_now(number)?;
            let batch = batch(self.left.send_cq().prepare_wait()?)?;
            let time = timed(|| post(stream, batch))?;
            finish(stream)?;
            // Where the stream is past the wait, the value is there.
            self.holds(number)?;
            self.arrived(number)?;
            Ok(time)
        })
    }

    fn many<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<Vec<f64>, Failure> {
        each(|number| {
            let mut batch = Batch::new();
            for _ in 0..MANY {
                batch = batch.send(self.write(&number.to_ne_bytes())?);
            }
            for _ in 0..MANY {
                batch = batch.wait(self.left.send_cq().prepare_wait()?);
            }
            let batch = batch.write_value32(&self.words.short, number as u32);
            let time = timed(|| post(stream, batch))?;
            finish(stream)?;
            expect(u64::from(self.words.short.load()), number)?;
            collect(&self.left.send_cq(), MANY)?;
            self.holds(number)?;
            Ok(time)
        })
    }

    /// The times of the starts, or of the waits for them.
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
        each(|number| {
            self.send_now(number)?;
            let reached = collector.collect([self.left.send_cq().prepare_wait()?])?;
            let batch = Batch::new().wait_value64(collector.word(), Condition::Geq, reached);
            let time = timed(|| post(stream, batch))?;
            finish(stream)?;
            self.holds(number)?;
            self.arrived(number)?;
            Ok(time)
        })
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
}

/// Words of pinned memory, and a write of bytes.
struct Words {
    memory: PinnedMemory,
    short: Word32,
    long: Word64,
    done: Word32,
}

/// Where the bytes go, and how many.
const BYTES: std::ops::Range<usize> = 101..1101;

impl Words {
    fn new() -> Result<Self, Failure> {
        let memory = PinnedMemory::allocate(4096)?;
        let (short, long) = (Word32::new(&memory, 0)?, Word64::new(&memory, 8)?);
        Ok(Words { done: Word32::new(&memory, 64)?, memory, short, long })
    }

    fn write32<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<Vec<f64>, Failure> {
        each(|number| {
            let batch = Batch::new().write_value32(&self.short, number as u32);
            let time = timed(|| post(stream, batch))?;
            finish(stream)?;
            expect(u64::from(self.short.load()), number)?;
            Ok(time)
        })
    }

    fn write_by_hand<B: ByHand>(&self, stream: &Stream<B>) -> Result<Vec<f64>, Failure> {
        let addr = stream.translate(self.short.addr(), 4)?;
        // Where the stream fails, it may have the write yet.
        let memory = ManuallyDrop::new(self.memory.clone());
        let times = each(|number| {
            // SAFETY: the word is aligned, and in this memory, which is dropped only once all has been written.
            let time = timed(|| unsafe { stream.write_by_hand(addr, number as u32) })?;
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

    fn write64<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<Vec<f64>, Failure> {
        each(|number| {
            let batch = Batch::new().write_value64(&self.long, number << 32 | 1);
            let time = timed(|| post(stream, batch))?;
            finish(stream)?;
            expect(self.long.load(), number << 32 | 1)?;
            Ok(time)
        })
    }

    /// A wait that holds what is posted after it.
    fn wait<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<Vec<f64>, Failure> {
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
        each(|number| {
            let sent: Vec<u8> = BYTES.map(|at| (at as u64 * number % 251) as u8).collect();
            let batch = Batch::new().write_memory(MemoryWrite::new(&self.memory, BYTES.start, &sent)?);
            let time = timed(|| post(stream, batch))?;
            finish(stream)?;
            let mut found = vec![0; BYTES.len()];
            self.memory.read(BYTES.start, &mut found);
            expect(found, sent)?;
            Ok(time)
        })
    }
}
