//! One side of a pingpong.
//!
//! The CPU prepares exchanges ahead of the stream, a *chunk* at a time, and looks at completions only when the stream has
//! passed a whole chunk: between prepare and collect no message needs it.

use super::channel::{Channel, Message};
use super::pattern::Pattern;
use super::report::{Report, Timing};
use super::runner::Runner;
use crate::Failure;
use crate::cli::{Operation, PingpongOptions};
use gdsync::{
    Access, Batch, CompletionQueue, Condition, ConnectOptions, Device, Event, MemoryRegion, PreparedSend,
    ProtectionDomain, QueueError, QueuePair, QueuePairConfig, RemoteMemory, Slice, WorkRequest,
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Chunks that are enqueued at a time: while the stream works on one, the CPU prepares the next.
const CHUNKS: u64 = 2;
/// How long the other side may take to get ready.
const SETUP: Duration = Duration::from_secs(30);
/// How long the last acknowledgements may take.
const SETTLE: Duration = Duration::from_secs(10);
/// How long it takes until progress is shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// The first error of a side; what fails after it is its consequence.
#[derive(Clone, Default)]
struct FirstError(Arc<Mutex<Option<String>>>);

impl FirstError {
    fn set(&self, error: impl FnOnce() -> String) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert_with(error);
    }

    fn check(&self) -> Result<(), Failure> {
        match &*self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            Some(error) => Err(error.clone().into()),
            None => Ok(()),
        }
    }
}

pub(super) struct Side {
    options: PingpongOptions,
    rank: u64,
    channel: Channel,
    card: String,
    queue_pair: Arc<QueuePair>,
    source: MemoryRegion,
    target: MemoryRegion,
    /// The word that the other side writes after its data, where they come by RDMA write.
    flag: MemoryRegion,
    remote_data: RemoteMemory,
    remote_flag: RemoteMemory,
    runner: Runner,
    timing: Arc<Mutex<Timing>>,
    error: FirstError,
    operations: u64,
    /// Sends that have completed.
    sent: u64,
}

impl Side {
    /// Makes the side's objects, connects them with the other side's, and posts the first receives.
    pub(super) fn new(options: &PingpongOptions, rank: u64, mut channel: Channel) -> Result<Self, Failure> {
        let device = Device::software()?;
        let card = device.name().to_owned();
        let pd = ProtectionDomain::new(&device)?;
        let window = u32::try_from(options.batch * CHUNKS)?;
        // A write is two work requests; and one chunk's sends may still be unacknowledged when the next is prepared.
        let config = QueuePairConfig::default().send_depth(4 * window).recv_depth(2 * window);
        let queue_pair = Arc::new(QueuePair::new(&pd, config)?);
        let size = usize::try_from(options.size)?;
        let source = MemoryRegion::allocate(&pd, size, Access::empty())?;
        let target = MemoryRegion::allocate(&pd, size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let flag = MemoryRegion::allocate(&pd, 4, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        channel.send(&Message::Hello {
            endpoint: queue_pair.endpoint()?.to_string(),
            data: target.remote().to_string(),
            flag: flag.remote().to_string(),
        })?;
        let Message::Hello { endpoint, data, flag: remote_flag } = channel.receive(Some(SETUP))? else {
            return Err("the other side says something else than hello".into());
        };
        queue_pair.connect(&endpoint.parse()?, ConnectOptions::default())?;
        let side = Side {
            options: options.clone(),
            rank,
            channel,
            card,
            queue_pair,
            source,
            target,
            flag,
            remote_data: data.parse()?,
            remote_flag: remote_flag.parse()?,
            runner: Runner::new(options.trigger)?,
            timing: Arc::new(Mutex::new(Timing::new(options.warmup))),
            error: FirstError::default(),
            operations: 0,
            sent: 0,
        };
        if side.options.op != Operation::Write {
            (0..window).try_for_each(|_| side.post_recv())?;
        }
        Ok(side)
    }

    /// Runs all exchanges.
    pub(super) fn run(mut self) -> Result<Report, Failure> {
        let (error, queue_pair, flag) = (self.error.clone(), self.queue_pair.clone(), self.flag.clone());
        self.channel.on_loss().set(move || {
            error.set(|| "the other side is gone".to_owned());
            if let Err(failure) = release(&queue_pair, &flag) {
                error.set(|| failure.to_string());
            }
        });
        let result = self.exchange_all();
        if let Err(failure) = &result {
            let text = failure.to_string();
            self.error.set(|| text);
            // The other side's waits end when it hears of the failure.
            release(&self.queue_pair, &self.flag)?;
            let _ = self.runner.synchronize();
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
        let mut chunks: VecDeque<(u64, Option<Event>)> = VecDeque::new();
        let mut progress = Progress::new(total);
        let timing = self.timing.clone();
        self.runner.launch(move || lock(&timing).begin())?;
        let mut next = 0;
        while next < total || !chunks.is_empty() {
            if next < total && (chunks.len() as u64) < CHUNKS {
                let count = self.options.batch.min(total - next);
                (next..next + count).try_for_each(|sequence| self.enqueue(sequence))?;
                next += count;
                chunks.push_back((count, self.runner.mark()?));
                continue;
            }
            if let Some((count, mark)) = chunks.pop_front() {
                if let Some(mark) = mark {
                    mark.synchronize();
                }
                self.collect(count)?;
                progress.advance(count);
            }
        }
        self.runner.synchronize()?;
        self.settle(total)
    }

    /// Enqueues one exchange: the first side sends and waits, the second waits and sends.
    fn enqueue(&mut self, sequence: u64) -> Result<(), Failure> {
        self.error.check()?;
        if self.rank == 0 {
            self.produce(sequence)?;
            let sends = self.prepare_send(sequence)?;
            let batch = self.add_wait(sends.into_iter().fold(Batch::new(), Batch::send), sequence)?;
            self.post(batch)?;
            self.consume(sequence)
        } else {
            let batch = self.add_wait(Batch::new(), sequence)?;
            self.post(batch)?;
            self.consume(sequence)?;
            self.produce(sequence)?;
            let sends = self.prepare_send(sequence)?;
            self.post(sends.into_iter().fold(Batch::new(), Batch::send))
        }
    }

    fn post(&mut self, batch: Batch) -> Result<(), Failure> {
        let posted =
            self.runner.post(batch).map_err(|failure| self.error.check().err().unwrap_or(failure))?;
        self.operations += posted.operations as u64;
        Ok(())
    }

    /// A kernel fills the message.
    fn produce(&self, sequence: u64) -> Result<(), Failure> {
        if !self.options.check {
            return Ok(());
        }
        let (source, pattern) = (self.source.clone(), Pattern::new(self.rank, sequence));
        self.runner.launch(move || pattern.fill(&source))
    }

    /// A kernel checks the message that has come, and the first side's takes the time.
    fn consume(&self, sequence: u64) -> Result<(), Failure> {
        let check = self.options.check.then(|| Pattern::new(1 - self.rank, sequence));
        let timing = (self.rank == 0).then(|| self.timing.clone());
        let (target, error) = (self.target.clone(), self.error.clone());
        self.runner.launch(move || {
            if let Some(Err(at)) = check.map(|pattern| pattern.check(&target)) {
                error.set(|| format!("message {sequence} is wrong at byte {at}"));
            }
            if let Some(timing) = timing {
                lock(&timing).exchanged();
            }
        })
    }

    fn prepare_send(&mut self, sequence: u64) -> Result<Vec<PreparedSend>, Failure> {
        let slices = [self.source.slice(..)?];
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
        loop {
            match self.queue_pair.prepare(request(slices)) {
                Ok(send) => return Ok(send),
                Err(
                    QueueError::SendQueueFull { .. }
                    | QueueError::CompletionQueueFull { .. }
                    | QueueError::WouldBlock(_),
                ) => {
                    self.collect_sends()?;
                    std::thread::sleep(Duration::from_micros(50));
                }
                Err(error) => return Err(self.error.check().err().unwrap_or_else(|| error.into())),
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
        let slices = [self.target.slice(..)?];
        let slices: &[Slice] = if self.options.op == Operation::Send { &slices } else { &[] };
        Ok(self.queue_pair.post_recv(slices, 0)?)
    }

    /// Takes the completions of exchanges that the stream has passed, and posts receives for later ones.
    fn collect(&mut self, count: u64) -> Result<(), Failure> {
        self.error.check()?;
        if self.options.op != Operation::Write {
            for _ in 0..count {
                // The stream has waited for it, so it is there.
                if poll(&self.queue_pair.recv_cq(), &self.error)?.is_none() {
                    return Err("the stream has passed a completion that is not there".into());
                }
                self.post_recv()?;
            }
        }
        self.collect_sends()
    }

    fn collect_sends(&mut self) -> Result<(), Failure> {
        while poll(&self.queue_pair.send_cq(), &self.error)?.is_some() {
            self.sent += 1;
        }
        self.error.check()
    }

    /// Waits for the last acknowledgements: a side that leaves before would leave the other hanging.
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

    /// Tells the other side how it went, and hears how it went there.
    fn finish(mut self, result: Result<(), Failure>) -> Result<Report, Failure> {
        let own = result.and_then(|()| self.error.check());
        let error =
            own.as_ref().err().map(|_| self.error.check().err().map_or(String::new(), |e| e.to_string()));
        let told = self.channel.send(&Message::Done { error });
        if let Err(failure) = own {
            self.channel.on_loss().clear();
            return Err(self.error.check().err().unwrap_or(failure));
        }
        told?;
        let answer = self.channel.receive(None);
        self.channel.on_loss().clear();
        match answer? {
            Message::Done { error: None } => {}
            Message::Done { error: Some(error) } => return Err(format!("the other side: {error}").into()),
            other => return Err(format!("the other side goes on: {other:?}").into()),
        }
        let timing = lock(&self.timing);
        Ok(Report::new(&self.options, self.card.clone(), &timing, self.operations))
    }
}

/// Wakes a stream that waits for what will never come: completions by failing the queue pair, the flag by moving it far
/// ahead. In this order: a failed queue pair takes no late write of the flag any more.
fn release(queue_pair: &QueuePair, flag: &MemoryRegion) -> Result<(), Failure> {
    queue_pair.abort()?;
    let word = flag.word32(0)?;
    word.store(word.load().wrapping_add(1 << 30));
    Ok(())
}

/// What the flag says when message `sequence` has come. Never 0, which it says in the beginning; compared cyclically.
fn flag_value(sequence: u64) -> u32 {
    (sequence + 1) as u32
}

fn lock(timing: &Mutex<Timing>) -> std::sync::MutexGuard<'_, Timing> {
    timing.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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

/// A progress bar that appears only when it takes long, and somebody looks.
struct Progress {
    total: u64,
    done: u64,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    fn new(total: u64) -> Self {
        Progress { total, done: 0, started: Instant::now(), bar: None }
    }

    fn advance(&mut self, count: u64) {
        self.done += count;
        if self.bar.is_none() && self.started.elapsed() > PATIENCE && std::io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(self.total), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} exchanges, {eta} left");
            self.bar = Some(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
