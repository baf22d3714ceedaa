//! One side of a pingpong, and the thread that watches for failures.
//!
//! The CPU prepares exchanges ahead of the stream, a *chunk* at a time, and polls completions only after the stream has
//! passed a whole chunk: from prepare to collect, no message needs the CPU. A wait for a flag that the other side
//! writes ends by that write alone, so a second thread polls for failed sends on either side, and ends the waits on a
//! failure.

use super::Report;
use crate::cli::{Operation, PingpongOptions, Service};
use crate::failure::Failure;
use crate::interrupt::{self, NothingYet};
use crate::progress::Progress;
use crate::sides::side::{Requirements, SETUP, Side, SideRun};
use crate::sides::timing::Times;
use crate::sides::{CHUNKS, Channel, Connection, Peer, RunLength, Usage, Work, start_thread};
use gdsync::memop::Condition;
use gdsync::queue::GRH_BYTES;
use gdsync::verbs::{AddressHandle, Mtu, Transport};
use gdsync::{
    Access, Batch, ConnectOptions, Endpoint, MemoryRegion, PreparedSend, ProtectionDomain, QueuePair,
    QueuePairConfig, RemoteMemory, Slice, WorkRequest,
};
use softhca::Speed;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// RNR retries. Receives are posted before the other side can send into them, so a receiver that is not ready after
/// this many never will be.
const RNR_RETRIES: u8 = 6;

pub(super) struct Pingpong {
    options: PingpongOptions,
    side: Side,
    datagrams: Option<Datagrams>,
    remote_data: RemoteMemory,
    remote_flag: RemoteMemory,
    /// Exchanges performed: all, unless the run was interrupted.
    exchanges: u64,
    /// The first of them, which are not measured.
    warm_up: u64,
    /// Elapsed and CPU time from the CPU's preparation of the first measured exchange until it has seen the last.
    usage: Option<(Duration, Duration)>,
}

/// Objects for datagrams, in addition to those of a connection.
struct Datagrams {
    to: AddressHandle,
    remote_qpn: u32,
    /// The place of the GRH before each message.
    header: MemoryRegion,
}

impl Datagrams {
    fn new(queue_pair: &QueuePair, pd: &ProtectionDomain, remote: &Endpoint) -> Result<Self, Failure> {
        let to = queue_pair.address_handle(remote, ConnectOptions::default())?;
        let header = MemoryRegion::allocate(pd, GRH_BYTES, Access::LOCAL_WRITE)?;
        Ok(Datagrams { to, remote_qpn: remote.qpn, header })
    }
}

impl Pingpong {
    /// Creates the side's objects, connects them with the other side's, and posts the first receives.
    pub(super) fn new(
        options: &PingpongOptions,
        rank: u64,
        other: Peer,
        channel: &mut Channel,
    ) -> Result<Self, Failure> {
        let window = u32::try_from(options.batch() * CHUNKS)?;
        // A write is two work requests, and one chunk's sends may be unacknowledged when the next is prepared.
        let config = QueuePairConfig::default().send_depth(4 * window).recv_depth(2 * window);
        let needs = Requirements {
            queue_pairs: 1,
            config: config.transport(options.transport.into()),
            words: (4, Access::LOCAL_WRITE | Access::REMOTE_WRITE),
            work: Work { size: options.size, batch: options.batch(), source: Access::empty() },
            divisor: 2,
        };
        let (side, remote) = Side::new(&options.sides, (rank, other), needs, channel)?;
        let queue_pair = side.connection.queue_pair();
        let mtu = options.sides.mtu.and_then(Mtu::from_bytes);
        let endpoint = remote.endpoints.first().ok_or("the other side has no queue pair")?;
        let mut datagrams = None;
        match queue_pair.transport() {
            Transport::Ud => datagrams = Some(Datagrams::new(queue_pair, &side.pd, endpoint)?),
            _ => queue_pair.connect(endpoint, ConnectOptions::default().mtu(mtu).rnr_retry(RNR_RETRIES))?,
        }
        let pingpong = Pingpong {
            options: options.clone(),
            side,
            datagrams,
            remote_data: remote.data,
            remote_flag: remote.words,
            exchanges: 0,
            warm_up: 0,
            usage: None,
        };
        if options.op != Operation::Write {
            // One more than is enqueued: the other side may answer the last message before its receive is reposted, and
            // only RC retries.
            (0..=window).try_for_each(|_| pingpong.post_recv())?;
        }
        Ok(pingpong)
    }

    /// Returns the exchanges of the chunk that begins with exchange `next`; a chunk does not span warm-up and
    /// measurement.
    fn chunk(&self, next: u64, limit: &RunLength) -> u64 {
        let (warm_up, end) = (limit.warm_up(), limit.end());
        let end = if next < warm_up { warm_up.min(end) } else { end };
        self.options.batch().min(end.saturating_sub(next))
    }

    /// Enqueues one exchange: the first side sends and waits, the second waits and sends.
    fn enqueue(&mut self, sequence: u64) -> Result<(), Failure> {
        self.side.results.error.check()?;
        if self.side.rank == 0 {
            self.side.driver.produce(sequence)?;
            let sends = self.prepare_send(sequence)?;
            let batch = self.add_wait(sends.into_iter().fold(Batch::new(), Batch::send), sequence)?;
            self.side.post(batch)?;
            self.side.driver.consume(sequence)
        } else {
            let batch = self.add_wait(Batch::new(), sequence)?;
            self.side.post(batch)?;
            self.side.driver.consume(sequence)?;
            self.side.driver.produce(sequence)?;
            let sends = self.prepare_send(sequence)?;
            self.side.post(sends.into_iter().fold(Batch::new(), Batch::send))
        }
    }

    fn prepare_send(&mut self, sequence: u64) -> Result<Vec<PreparedSend>, Failure> {
        let slices = [self.side.driver.source(0..usize::try_from(self.options.size)?)?];
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

    /// Prepares a send; while there is no room, polls completions.
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
            if let Some(send) = self.side.connection.prepare(0, request)? {
                return Ok(send);
            }
            self.side.connection.collect_sends()?;
        }
    }

    fn add_wait(&self, batch: Batch, sequence: u64) -> Result<Batch, Failure> {
        Ok(match self.options.op {
            Operation::Write => batch.wait_value32(
                &self.side.connection.words.word32(0)?,
                Condition::Geq,
                flag_value(sequence),
            ),
            _ => batch.wait(self.side.connection.queue_pair().recv_cq().prepare_wait()?),
        })
    }

    fn post_recv(&self) -> Result<(), Failure> {
        let mut slices = Vec::new();
        if let Some(datagrams) = &self.datagrams {
            slices.push(datagrams.header.slice(..)?);
        }
        if self.options.op == Operation::Send {
            slices.push(self.side.driver.target(0..usize::try_from(self.options.size)?)?);
        }
        Ok(self.side.connection.queue_pair().post_recv(&slices, 0)?)
    }

    /// Takes the completions of exchanges that the stream has passed, and reposts receives.
    fn collect(&mut self, count: u64) -> Result<(), Failure> {
        self.side.results.error.check()?;
        if self.options.op != Operation::Write {
            for _ in 0..count {
                // The stream has waited for it, so it is there.
                if !self.side.connection.take_receive()? {
                    return Err("the stream has passed a completion that is not there".into());
                }
                self.post_recv()?;
            }
        }
        self.side.connection.collect_sends()
    }

    /// Waits for the last acknowledgements: a side that left earlier would leave the other hanging. Each arrives, or
    /// its send fails.
    fn settle(&mut self, total: u64) -> Result<(), Failure> {
        loop {
            self.side.connection.collect_sends()?;
            if self.side.connection.sent() == total {
                return Ok(());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl SideRun for Pingpong {
    type Report = Report;

    fn side(&mut self) -> &mut Side {
        &mut self.side
    }

    fn run(&mut self, channel: &mut Channel) -> Result<(), Failure> {
        let total = self.options.exchanges().ok_or("the exchanges are more than 64 bits hold")?;
        let limit = channel.run_length().clone();
        limit.set(self.options.sides.warmup(), total);
        self.side.meet(channel, Some(SETUP))?;
        let lossy = (self.options.transport != Service::Rc).then_some(self.options.size);
        let _watch = Watch::start(Arc::clone(&self.side.connection), lossy)?;
        let (mut asked, mut ends) = (false, None);
        let (mut is_measuring, mut warm_up_ends) =
            (false, self.options.sides.warm_up_time().map(|time| Instant::now() + time));
        let mut chunks: VecDeque<u64> = VecDeque::new();
        let hidden = self.side.hides_progress(self.options.sides.duration);
        let mut progress = Progress::new(hidden, total, "exchanges");
        self.side.driver.begin()?;
        let (mut next, mut before) = (0, Usage::now()?);
        while next < limit.end() || !chunks.is_empty() {
            if self.side.rank == 0
                && !asked
                && (interrupt::requested() || ends.is_some_and(|at| Instant::now() >= at))
            {
                asked = true;
                limit.shorten(channel.agree_on_end(next)?);
            }
            if self.side.rank == 0
                && next > 0
                && next < limit.warm_up()
                && warm_up_ends.is_some_and(|at| Instant::now() >= at)
            {
                warm_up_ends = None;
                let warm_up = channel.end_warm_up(next)?;
                self.side.results.timing().warm_up_ends_at(warm_up);
            }
            if next < limit.end() && (chunks.len() as u64) < CHUNKS {
                let count = limit.claim(next, self.chunk(next, &limit));
                if count == 0 {
                    continue;
                }
                if next >= limit.warm_up() && !is_measuring {
                    is_measuring = true;
                    before = Usage::now()?;
                    ends = self.options.sides.duration.map(|duration| Instant::now() + duration);
                }
                (next..next + count).try_for_each(|sequence| self.enqueue(sequence))?;
                next += count;
                self.side.driver.mark(count)?;
                chunks.push_back(count);
            } else if let Some(count) = chunks.pop_front() {
                self.side.driver.pass()?;
                self.collect(count)?;
                progress.advance(count);
            }
        }
        self.side.driver.synchronize()?;
        self.usage = Some(Usage::now()?.since(&before));
        (self.exchanges, self.warm_up) = (limit.end(), limit.warm_up());
        self.settle(limit.end())
    }

    fn report(&self) -> Result<Report, Failure> {
        let (sides, exchanges) = (&self.options.sides, self.exchanges);
        let usage = self.usage.ok_or("nothing was measured")?;
        if self.side.rank == 0 && exchanges <= self.warm_up {
            return Err(NothingYet.into());
        }
        let (iterations, timing) = (exchanges.saturating_sub(self.warm_up), self.side.results.timing());
        let messages_per_s = 2.0 * iterations as f64 / timing.elapsed().as_secs_f64().max(1e-9);
        let interrupted_of = (iterations < sides.iters).then_some(sides.iters);
        let sizes = (self.options.batch(), self.options.size);
        let setting = self.side.setting(sizes, interrupted_of, usage)?;
        Ok(Report {
            transport: self.options.transport,
            op: self.options.op,
            mps: setting.shared_by_mps,
            setting,
            iterations,
            warmup: self.warm_up,
            times: Times::new(&timing),
            messages_per_s,
            bytes_per_s: messages_per_s * self.options.size as f64,
            memory_operations_per_iteration: self.side.operations as f64 / exchanges as f64,
        })
    }
}

/// Returns the flag's value once message `sequence` has arrived. It is never 0, the initial value, and is compared
/// cyclically.
fn flag_value(sequence: u64) -> u32 {
    (sequence + 1) as u32
}

/// Polling interval; long, as polling takes CPU time from the measurement.
const LOOK: Duration = Duration::from_millis(10);
/// Time limit of an exchange on a transport that loses messages without an error, at the speed of hardware's time-outs;
/// extended by the time of its bytes at [`SLOWEST`].
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes per second of the slowest network.
const SLOWEST: u64 = 1 << 20;

/// The thread that watches a connection; it ends when this is dropped, or after a failure.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// `lossy`: the message size, if the transport may lose messages.
    pub(super) fn start(connection: Arc<Connection>, lossy: Option<u64>) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let patience = Speed::from_environment()?.of(PATIENCE);
        let patience = lossy.map(|size| patience + Duration::from_secs(size / SLOWEST));
        let stopped = Arc::clone(&stop);
        let thread = start_thread("pingpong-watch", move || watch(&connection, patience, &stopped))?;
        Ok(Watch { stop, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, the message would be on stderr.
            let _ = thread.join();
        }
    }
}

fn watch(connection: &Connection, patience: Option<Duration>, stop: &AtomicBool) {
    let (mut sent, mut since) = (connection.sent(), Instant::now());
    while !stop.load(Ordering::Acquire) {
        connection.read_events();
        let failed = connection.collect_sends().is_err();
        if connection.sent() != sent {
            (sent, since) = (connection.sent(), Instant::now());
        }
        if let Some(patience) = patience.filter(|patience| since.elapsed() > *patience) {
            connection.error.set(|| {
                format!(
                    "no message has come for {patience:?}: this transport loses messages without an error"
                )
            });
        } else if !failed {
            std::thread::sleep(LOOK);
            continue;
        }
        if !connection.error.has_cause() && !connection.has_failed() {
            // The other side has failed. Aborting now would flush the completion that tells the cause.
            connection.find_cause();
        }
        if let Err(failure) = connection.release() {
            connection.error.set(|| failure.to_string());
        }
        return;
    }
}
