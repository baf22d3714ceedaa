//! One side of a pingpong.
//!
//! The CPU prepares exchanges ahead of the stream, a *chunk* at a time, and looks at completions
//! only when the stream has passed a whole chunk: between prepare and collect no message needs it.

use super::report::{Measured, Report};
use super::watch::Watch;
use crate::cli::{self, DoorbellChoice, Operation, PingpongOptions, Service};
use crate::failure::Failure;
use crate::hca;
use crate::interrupt::{self, NothingYet};
use crate::progress::Progress;
use crate::sides::{
    CHUNKS, Channel, Connection, Driver, Findings, Message, Other, Timing, Usage, Work, driver, fail,
    forward_ends, gpus_of_sides,
};
use gdsync::memop::Condition;
use gdsync::queue::{GRH_BYTES, QueueFull};
use gdsync::verbs::{AddressHandle, Mtu, Transport};
use gdsync::{
    Access, Batch, ConnectOptions, Endpoint, MemoryRegion, PreparedSend, ProtectionDomain, QueueError,
    QueuePair, QueuePairConfig, RemoteMemory, Slice, Trigger, WorkRequest,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a receiver may be not ready: receives are posted before the other side can send into
/// them, so that one that is not ready for so long never will be.
const RNR_RETRIES: u8 = 6;
/// How long the other side may take to get ready.
const SETUP: Duration = Duration::from_secs(30);

/// Plays one side. The other side hears how it fails, from the first step on.
pub(super) fn play(
    options: &PingpongOptions,
    rank: u64,
    other: Other,
    mut channel: Channel,
) -> Result<Report, Failure> {
    match Side::new(options, rank, other, &mut channel) {
        Ok(side) => side.run(channel),
        Err(failure) => {
            let error = Some(failure.to_string());
            // Where the other side is gone, there is nothing to say to it.
            let _ = channel.send(&Message::Done { error, is_cause: true });
            Err(failure)
        }
    }
}

struct Side {
    options: PingpongOptions,
    rank: u64,
    other: Other,
    /// The GPU of each side.
    gpus: Option<[u32; 2]>,
    card: String,
    connection: Arc<Connection>,
    datagrams: Option<Datagrams>,
    remote_data: RemoteMemory,
    remote_flag: RemoteMemory,
    driver: Box<dyn Driver>,
    findings: Findings,
    operations: u64,
    /// Exchanges that were made: all, unless the run was interrupted.
    exchanges: u64,
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
    fn new(
        options: &PingpongOptions,
        rank: u64,
        other: Other,
        channel: &mut Channel,
    ) -> Result<Self, Failure> {
        let (device, port) = hca::open(options.sides.hca.as_ref())?;
        let card = device.name().to_owned();
        let pd = ProtectionDomain::new(&device)?;
        let window = u32::try_from(options.batch * CHUNKS)?;
        // A write is two work requests; and one chunk's sends may still be unacknowledged when the
        // next is prepared.
        let config = QueuePairConfig::default().send_depth(4 * window).recv_depth(2 * window);
        let config = config.port(port).gid_index(options.sides.gid_index).transport(options.transport.into());
        let gpus = gpus_of_sides(&options.sides)?;
        let gpu = gpus.map(|gpus| gpus[rank as usize % 2]);
        let config = config.placement(options.sides.layout.placement(gpu));
        let config = config.queues(options.sides.queues.into());
        let by_card = options.sides.doorbells == DoorbellChoice::Card;
        let trigger = by_card.then(|| Trigger::new(&pd)).transpose()?;
        let config = trigger.as_ref().map_or(config, |trigger| config.trigger(trigger));
        let queue_pair = QueuePair::new(&pd, config)?;
        let findings = Findings::new(Timing::new(options.sides.warmup, 2));
        let work = Work { size: options.size, batch: options.batch, source: Access::empty() };
        let driver = driver(&options.sides, work, (rank, gpu), &pd, &findings)?;
        let flag = MemoryRegion::allocate(&pd, 4, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        channel.send(&Message::Hello {
            endpoints: vec![queue_pair.endpoint()?.to_string()],
            data: driver.messages().remote.to_string(),
            source: driver.messages().readable.to_string(),
            words: flag.remote().to_string(),
        })?;
        let Message::Hello { endpoints, data, words: remote_flag, .. } = channel.receive(Some(SETUP))? else {
            return Err("the other side says something else than hello".into());
        };
        let mtu = options.sides.mtu.and_then(Mtu::from_bytes);
        let endpoint = endpoints.first().ok_or("the other side has no queue pair")?.parse()?;
        let mut datagrams = None;
        match queue_pair.transport() {
            Transport::Ud => datagrams = Some(Datagrams::new(&queue_pair, &pd, &endpoint)?),
            _ => queue_pair.connect(&endpoint, ConnectOptions::default().mtu(mtu).rnr_retry(RNR_RETRIES))?,
        }
        let connection = Connection::new(device, vec![queue_pair], flag, findings.error.clone());
        let side = Side {
            options: options.clone(),
            rank,
            other,
            gpus,
            card,
            connection: Arc::new(connection),
            datagrams,
            remote_data: data.parse()?,
            remote_flag: remote_flag.parse()?,
            driver,
            findings,
            operations: 0,
            exchanges: 0,
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
    ///
    /// The channel is dropped before `self`: its end wakes the other side's stream, for which a GPU
    /// that both sides use might wait while it releases what the driver holds.
    fn run(mut self, mut channel: Channel) -> Result<Report, Failure> {
        forward_ends(&channel, self.findings.error.clone());
        let result = self.exchange_all(&mut channel).and_then(|()| self.findings.error.check());
        match result {
            Ok(()) => self.finish(channel),
            Err(failure) => Err(fail(&self.connection, self.driver.as_mut(), failure, channel)),
        }
    }

    fn exchange_all(&mut self, channel: &mut Channel) -> Result<(), Failure> {
        channel.send(&Message::Ready)?;
        match channel.receive(Some(SETUP))? {
            Message::Ready => {}
            other => return Err(format!("the other side is not ready: {other:?}").into()),
        }
        let lossy = (self.options.transport != Service::Rc).then_some(self.options.size);
        let _watch = Watch::start(Arc::clone(&self.connection), lossy)?;
        let total = self.options.exchanges().ok_or("the exchanges are more than 64 bits hold")?;
        let limit = channel.limit().clone();
        limit.shorten(total);
        let (mut asked, mut ends) = (false, None);
        let mut chunks: VecDeque<u64> = VecDeque::new();
        // Of both sides, one shows it.
        let hidden = self.options.sides.json || self.rank > 0 || self.options.sides.duration.is_some();
        let mut progress = Progress::new(hidden, total, "exchanges");
        self.driver.begin()?;
        let (mut next, mut before) = (0, Usage::now()?);
        while next < limit.end() || !chunks.is_empty() {
            if self.rank == 0
                && !asked
                && (interrupt::requested() || ends.is_some_and(|at| Instant::now() >= at))
            {
                asked = true;
                limit.shorten(channel.agree_on_end(next)?);
            }
            if next < limit.end() && (chunks.len() as u64) < CHUNKS {
                let count = limit.claim(next, self.chunk(next, total));
                if count == 0 {
                    continue;
                }
                if next == self.options.sides.warmup {
                    before = Usage::now()?;
                    ends = self.options.sides.duration.map(|duration| Instant::now() + duration);
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
        self.exchanges = limit.end();
        self.settle(limit.end())
    }

    /// Exchanges of the chunk that begins with exchange `next`: of the warm-up, or of the
    /// measurement.
    fn chunk(&self, next: u64, total: u64) -> u64 {
        let warmup = self.options.sides.warmup;
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
            match self.connection.queue_pair().prepare(request) {
                Ok(send) => return Ok(send),
                Err(QueueError::Full(
                    QueueFull::SendQueue { .. } | QueueFull::CompletionQueue { .. } | QueueFull::Stream(_),
                )) => {
                    self.connection.collect_sends()?;
                    std::thread::sleep(Duration::from_micros(50));
                }
                Err(error) => return Err(self.findings.error.or(error.into())),
            }
        }
    }

    fn add_wait(&self, batch: Batch, sequence: u64) -> Result<Batch, Failure> {
        Ok(match self.options.op {
            Operation::Write => {
                batch.wait_value32(&self.connection.words.word32(0)?, Condition::Geq, flag_value(sequence))
            }
            _ => batch.wait(self.connection.queue_pair().recv_cq().prepare_wait()?),
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
        Ok(self.connection.queue_pair().post_recv(&slices, 0)?)
    }

    /// Takes the completions of exchanges that the stream has passed, and posts receives for later
    /// ones.
    fn collect(&mut self, count: u64) -> Result<(), Failure> {
        self.findings.error.check()?;
        if self.options.op != Operation::Write {
            for _ in 0..count {
                // The stream has waited for it, so it is there.
                if !self.connection.take_receive()? {
                    return Err("the stream has passed a completion that is not there".into());
                }
                self.post_recv()?;
            }
        }
        self.connection.collect_sends()
    }

    /// Waits for the last acknowledgements: a side that leaves before would leave the other
    /// hanging. Each comes, or its send fails.
    fn settle(&mut self, total: u64) -> Result<(), Failure> {
        loop {
            self.connection.collect_sends()?;
            if self.connection.sent() == total {
                return Ok(());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Exchanges results with the other side.
    fn finish(self, mut channel: Channel) -> Result<Report, Failure> {
        channel.send(&Message::Done { error: None, is_cause: true })?;
        let answer = channel.receive(None);
        channel.on_end().clear();
        match answer? {
            Message::Done { .. } => {}
            other => return Err(format!("the other side goes on: {other:?}").into()),
        }
        let (before, after) = self.usage.ok_or("nothing was measured")?;
        if self.rank == 0 && self.exchanges <= self.options.sides.warmup {
            return Err(NothingYet.into());
        }
        let measured = Measured {
            card: &self.card,
            gpus: self.other.gpus(self.gpus)?,
            server: self.other.host(),
            doorbells: match self.options.sides.doorbells {
                DoorbellChoice::Card => cli::word(&DoorbellChoice::Card),
                _ => self.driver.doorbells(self.connection.queue_pair())?.to_string(),
            },
            timing: &self.findings.timing(),
            usage: after.since(&before),
            operations: self.operations,
            exchanges: self.exchanges,
        };
        Ok(Report::new(&self.options, measured))
    }
}

/// The flag's value when message `sequence` has arrived. Never 0, its first value; compared
/// cyclically.
fn flag_value(sequence: u64) -> u32 {
    (sequence + 1) as u32
}
