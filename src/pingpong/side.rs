//! One side of a pingpong.
//!
//! The CPU prepares exchanges ahead of the stream, a *chunk* at a time, and looks at completions
//! only when the stream has passed a whole chunk: between prepare and collect no message needs it.

use super::channel::{Channel, GONE, Message};
use super::driver::{CHUNKS, Driver};
use super::findings::{Findings, FirstError};
use super::gpu::GpuDriver;
use super::host::HostDriver;
use super::progress::Progress;
use super::report::{Measured, Report};
use super::timing::Usage;
use crate::cli::{Operation, PingpongOptions, Trigger};
use crate::failure::Failure;
use crate::hca;
use gdsync::memop::Condition;
use gdsync::queue::{GRH_BYTES, QueueFull};
use gdsync::stream::Cpu;
use gdsync::verbs::{AddressHandle, Mtu, Transport};
use gdsync::{
    Access, Batch, CompletionQueue, ConnectOptions, Endpoint, MemoryRegion, PreparedSend, ProtectionDomain,
    QueueError, QueuePair, QueuePairConfig, RemoteMemory, Slice, SoftStream, WorkRequest,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the other side may take to get ready.
const SETUP: Duration = Duration::from_secs(30);
/// How long the last acknowledgements may take.
const SETTLE: Duration = Duration::from_secs(10);

pub(super) struct Side {
    options: PingpongOptions,
    rank: u64,
    /// Before the driver, so that it is dropped first: its end wakes the other side's stream, for
    /// which a GPU that both sides use might wait while it releases what the driver holds.
    channel: Channel,
    card: String,
    queue_pair: Arc<QueuePair>,
    datagrams: Option<Datagrams>,
    /// The word that the other side writes after its data, where they come by RDMA write.
    flag: MemoryRegion,
    remote_data: RemoteMemory,
    remote_flag: RemoteMemory,
    driver: Box<dyn Driver>,
    findings: Findings,
    operations: u64,
    /// Sends that have completed.
    sent: u64,
    /// From when the CPU prepares the first exchange that is measured, until it has seen the last.
    usage: Option<(Usage, Usage)>,
}

/// What datagrams need beside what connections do.
struct Datagrams {
    to: AddressHandle,
    remote_qpn: u32,
    /// The place of the header before each message.
    header: MemoryRegion,
}

impl Datagrams {
    fn new(queue_pair: &QueuePair, pd: &ProtectionDomain, remote: &Endpoint) -> Result<Self, Failure> {
        let to = queue_pair.address_handle(remote, ConnectOptions::default())?;
        let header = MemoryRegion::allocate(pd, GRH_BYTES, Access::LOCAL_WRITE)?;
        Ok(Datagrams { to, remote_qpn: remote.qpn, header })
    }
}

impl Side {
    /// Makes the side's objects, connects them with the other side's, and posts the first receives.
    pub(super) fn new(options: &PingpongOptions, rank: u64, mut channel: Channel) -> Result<Self, Failure> {
        let (device, port) = hca::open(options.hca.as_ref())?;
        let card = device.name().to_owned();
        let pd = ProtectionDomain::new(&device)?;
        let window = u32::try_from(options.batch * CHUNKS)?;
        // A write is two work requests; and one chunk's sends may still be unacknowledged when the
        // next is prepared.
        let config = QueuePairConfig::default().send_depth(4 * window).recv_depth(2 * window);
        let config = config.port(port).gid_index(options.gid_index).transport(options.transport.into());
        let config = config.placement(options.layout.placement(options.gpu));
        let config = config.queues(options.queues.into());
        let queue_pair = Arc::new(QueuePair::new(&pd, config)?);
        let findings = Findings::new(options.warmup);
        let driver = driver(options, rank, &pd, &findings)?;
        let flag = MemoryRegion::allocate(&pd, 4, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        channel.send(&Message::Hello {
            endpoint: queue_pair.endpoint()?.to_string(),
            data: driver.messages().remote.to_string(),
            flag: flag.remote().to_string(),
        })?;
        let Message::Hello { endpoint, data, flag: remote_flag } = channel.receive(Some(SETUP))? else {
            return Err("the other side says something else than hello".into());
        };
        let mtu = options.mtu.and_then(Mtu::from_bytes);
        let endpoint = endpoint.parse()?;
        let mut datagrams = None;
        match queue_pair.transport() {
            Transport::Ud => datagrams = Some(Datagrams::new(&queue_pair, &pd, &endpoint)?),
            _ => queue_pair.connect(&endpoint, ConnectOptions::default().mtu(mtu))?,
        }
        let side = Side {
            options: options.clone(),
            rank,
            channel,
            card,
            queue_pair,
            datagrams,
            flag,
            remote_data: data.parse()?,
            remote_flag: remote_flag.parse()?,
            driver,
            findings,
            operations: 0,
            sent: 0,
            usage: None,
        };
        if side.options.op != Operation::Write {
            // One more than is enqueued: the other side may answer the last before its receive is
            // posted again, and only RC waits.
            (0..=window).try_for_each(|_| side.post_recv())?;
        }
        Ok(side)
    }

    /// Runs all exchanges.
    pub(super) fn run(mut self) -> Result<Report, Failure> {
        let (error, queue_pair, flag) =
            (self.findings.error.clone(), self.queue_pair.clone(), self.flag.clone());
        self.channel.on_loss().set(move || {
            error.set(|| GONE.to_owned());
            if let Err(failure) = release(&queue_pair, &flag) {
                error.set(|| failure.to_string());
            }
        });
        let result = self.exchange_all();
        if self.findings.error.check().is_err() {
            self.look_for_failed_work();
        }
        if let Err(failure) = &result {
            let text = failure.to_string();
            self.findings.error.set(|| text);
            // The other side's waits end when it hears of the failure.
            release(&self.queue_pair, &self.flag)?;
            let _ = self.driver.synchronize();
        }
        self.finish(result)
    }

    fn exchange_all(&mut self) -> Result<(), Failure> {
        self.channel.send(&Message::Ready)?;
        match self.channel.receive(Some(SETUP))? {
            Message::Ready => {}
            other => return Err(format!("the other side is not ready: {other:?}").into()),
        }
        let total = self.options.warmup + self.options.iters;
        let mut chunks: VecDeque<u64> = VecDeque::new();
        let mut progress = Progress::new(total);
        self.driver.begin()?;
        let (mut next, mut before) = (0, Usage::now()?);
        while next < total || !chunks.is_empty() {
            if next < total && (chunks.len() as u64) < CHUNKS {
                let count = self.chunk(next, total);
                if next == self.options.warmup {
                    before = Usage::now()?;
                }
                (next..next + count).try_for_each(|sequence| self.enqueue(sequence))?;
                next += count;
                self.driver.mark(count)?;
                chunks.push_back(count);
            } else if let Some(count) = chunks.pop_front() {
                self.driver.pass()?;
                self.collect(count)?;
                progress.advance(count);
            }
        }
        self.driver.synchronize()?;
        self.usage = Some((before, Usage::now()?));
        self.settle(total)
    }

    /// Exchanges of the chunk that begins with exchange `next`: of the warm-up, or of the
    /// measurement.
    fn chunk(&self, next: u64, total: u64) -> u64 {
        let warmup = self.options.warmup;
        let end = if next < warmup { warmup } else { total };
        self.options.batch.min(end - next)
    }

    /// Enqueues one exchange: the first side sends and waits, the second waits and sends.
    fn enqueue(&mut self, sequence: u64) -> Result<(), Failure> {
        self.findings.error.check()?;
        if self.rank == 0 {
            self.driver.produce(sequence)?;
            let sends = self.prepare_send(sequence)?;
            let batch = self.add_wait(sends.into_iter().fold(Batch::new(), Batch::send), sequence)?;
            self.post(batch)?;
            self.driver.consume(sequence)
        } else {
            let batch = self.add_wait(Batch::new(), sequence)?;
            self.post(batch)?;
            self.driver.consume(sequence)?;
            self.driver.produce(sequence)?;
            let sends = self.prepare_send(sequence)?;
            self.post(sends.into_iter().fold(Batch::new(), Batch::send))
        }
    }

    fn post(&mut self, batch: Batch) -> Result<(), Failure> {
        let posted = self.driver.post(batch).map_err(|failure| self.findings.error.or(failure))?;
        self.operations += posted.operations as u64;
        Ok(())
    }

    fn prepare_send(&mut self, sequence: u64) -> Result<Vec<PreparedSend>, Failure> {
        let slices = [self.driver.messages().source.clone()];
        let imm = sequence as u32;
        Ok(match self.options.op {
            Operation::Send => {
                vec![self.prepare(&slices, |slices| WorkRequest::send(slices).immediate(imm))?]
            }
            Operation::WriteImm => {
                let remote = self.remote_data;
                vec![self.prepare(&slices, |slices| WorkRequest::write(slices, remote).immediate(imm))?]
            }
            Operation::Write => {
                let (data, flag) = (self.remote_data, self.remote_flag);
                // The flag follows the data on the same connection, so it arrives after them.
                let value = flag_value(sequence).to_ne_bytes();
                vec![
                    self.prepare(&slices, |slices| WorkRequest::write(slices, data).unsignaled())?,
                    self.prepare(&[], |_| WorkRequest::write_inline(&value, flag))?,
                ]
            }
        })
    }

    /// Prepares a send; collects completions meanwhile where there is no room.
    fn prepare<'a>(
        &mut self,
        slices: &'a [Slice],
        request: impl Fn(&'a [Slice]) -> WorkRequest<'a>,
    ) -> Result<PreparedSend, Failure> {
        let to = self.datagrams.as_ref().map(|datagrams| (datagrams.to.clone(), datagrams.remote_qpn));
        let qkey = QueuePairConfig::default().qkey;
        loop {
            let mut request = request(slices);
            if let Some((handle, qpn)) = &to {
                request = request.to(handle, *qpn, qkey);
            }
            match self.queue_pair.prepare(request) {
                Ok(send) => return Ok(send),
                Err(QueueError::Full(
                    QueueFull::SendQueue { .. } | QueueFull::CompletionQueue { .. } | QueueFull::Stream(_),
                )) => {
                    self.collect_sends()?;
                    std::thread::sleep(Duration::from_micros(50));
                }
                Err(error) => return Err(self.findings.error.or(error.into())),
            }
        }
    }

    fn add_wait(&self, batch: Batch, sequence: u64) -> Result<Batch, Failure> {
        Ok(match self.options.op {
            Operation::Write => {
                batch.wait_value32(&self.flag.word32(0)?, Condition::Geq, flag_value(sequence))
            }
            _ => batch.wait(self.queue_pair.recv_cq().prepare_wait()?),
        })
    }

    fn post_recv(&self) -> Result<(), Failure> {
        let mut slices = Vec::new();
        if let Some(datagrams) = &self.datagrams {
            slices.push(datagrams.header.slice(..)?);
        }
        if self.options.op == Operation::Send {
            slices.push(self.driver.messages().target.clone());
        }
        Ok(self.queue_pair.post_recv(&slices, 0)?)
    }

    /// Takes the completions of exchanges that the stream has passed, and posts receives for later
    /// ones.
    fn collect(&mut self, count: u64) -> Result<(), Failure> {
        self.findings.error.check()?;
        if self.options.op != Operation::Write {
            for _ in 0..count {
                // The stream has waited for it, so it is there.
                if poll(&self.queue_pair.recv_cq(), &self.findings.error)?.is_none() {
                    return Err("the stream has passed a completion that is not there".into());
                }
                self.post_recv()?;
            }
        }
        self.collect_sends()
    }

    /// Whatever a stream found, a work request that failed explains it.
    fn look_for_failed_work(&self) {
        for queue in [self.queue_pair.recv_cq(), self.queue_pair.send_cq()] {
            while let Ok(Some(())) = poll(&queue, &self.findings.error) {}
        }
    }

    fn collect_sends(&mut self) -> Result<(), Failure> {
        while poll(&self.queue_pair.send_cq(), &self.findings.error)?.is_some() {
            self.sent += 1;
        }
        self.findings.error.check()
    }

    /// Waits for the last acknowledgements: a side that leaves before would leave the other
    /// hanging.
    fn settle(&mut self, total: u64) -> Result<(), Failure> {
        let deadline = Instant::now() + SETTLE;
        loop {
            self.collect_sends()?;
            if self.sent == total {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("only {} of {total} sends have completed", self.sent).into());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Exchanges results with the other side.
    fn finish(mut self, result: Result<(), Failure>) -> Result<Report, Failure> {
        let own = result.and_then(|()| self.findings.error.check());
        let own = own.map_err(|failure| self.findings.error.or(failure));
        let told = self.channel.send(&Message::Done { error: own.as_ref().err().map(ToString::to_string) });
        if own.is_err() {
            self.channel.on_loss().clear();
        }
        own?;
        told?;
        let answer = self.channel.receive(None);
        self.channel.on_loss().clear();
        match answer? {
            Message::Done { error: None } => {}
            Message::Done { error: Some(error) } => return Err(format!("the other side: {error}").into()),
            other => return Err(format!("the other side goes on: {other:?}").into()),
        }
        let (before, after) = self.usage.ok_or("nothing was measured")?;
        let measured = Measured {
            card: &self.card,
            gpu: self.driver.gpu(),
            doorbells: self.driver.doorbells(&self.queue_pair)?.to_string(),
            timing: &self.findings.timing(),
            usage: after.since(&before),
            operations: self.operations,
        };
        Ok(Report::new(&self.options, measured))
    }
}

/// The driver that the options ask for, with everything allocated that it will need.
fn driver(
    options: &PingpongOptions,
    rank: u64,
    pd: &ProtectionDomain,
    findings: &Findings,
) -> Result<Box<dyn Driver>, Failure> {
    let findings = findings.clone();
    Ok(match (options.gpu, options.trigger) {
        (Some(ordinal), _) => Box::new(GpuDriver::new(ordinal, options, rank, pd, findings)?),
        (None, Trigger::Stream) => {
            Box::new(HostDriver::new(SoftStream::new()?, options, rank, pd, findings)?)
        }
        (None, Trigger::Cpu) => Box::new(HostDriver::new(Cpu::new(), options, rank, pd, findings)?),
    })
}

/// Ends the waits of a stream for completions by failing the queue pair, and those for the flag by
/// moving the flag far ahead. In this order: a failed queue pair takes no late write of the flag.
fn release(queue_pair: &QueuePair, flag: &MemoryRegion) -> Result<(), Failure> {
    queue_pair.abort()?;
    let word = flag.word32(0)?;
    word.store(word.load().wrapping_add(1 << 30));
    Ok(())
}

/// The flag's value when message `sequence` has arrived. Never 0, its first value; compared
/// cyclically.
fn flag_value(sequence: u64) -> u32 {
    (sequence + 1) as u32
}

/// The next completion. A failed one is this side's error.
fn poll(queue: &CompletionQueue, error: &FirstError) -> Result<Option<()>, Failure> {
    let Some(completion) = queue.poll()? else { return Ok(None) };
    if let Err(status) = completion.status {
        error.set(|| format!("{:?} failed: {status}", completion.kind));
        error.check()?;
    }
    Ok(Some(()))
}
