//! The cost of a stream's wait for a completion. `gdsync bench cq`: by the memory of the completion queue. `gdsync
//! bench checked`: a wait that tells success from failure, beside a plain one, on a software stream, and on a GPU's if
//! there is one.

use super::gpu::{END, Gpu, START};
use super::pair::{self, Pair};
use super::table::{Outcome, Row};
use super::{in_turns, micros_since};
use gdsync::cuda::{Placement, QueuePlacement};
use gdsync::memop::{Condition, MemOpStream};
use gdsync::{
    Access, Batch, CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, SoftStream,
    Stream, WorkRequest,
};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::{hca, interrupt};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const ROUNDS: u32 = 200;
/// Queue pairs, each with its own completion queue: waits for different queues are never merged.
const MANY: usize = 32;

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let gpu = Gpu::new(options.gpu())?;
    let (device, port) = hca::open(options.hca.as_ref())?;
    let pd = ProtectionDomain::new(&device)?;
    let set = |placement| Set::new(&pd, port, placement);
    let sets = [set(Placement::Gpu(options.gpu()))?, set(Placement::Host)?];
    let rounds = || interrupt::rounds(1..=ROUNDS);
    let waits: Vec<[f64; 3]> = in_turns(rounds(), |variant, round| match sets.get(variant) {
        Some(set) => set.waits(&gpu, round),
        None => span(&gpu, round, Batch::new()),
    })?;
    let one_more =
        |[in_gpu, in_host, none]: [f64; 3]| [in_gpu, in_host].map(|time| (time - none) / MANY as f64);
    let waits: Vec<_> = waits.into_iter().map(one_more).collect();
    let wakes = in_turns(rounds(), |variant, round| sets[variant].wake(&gpu, round))?;
    let polls = in_turns(rounds(), |variant, _| sets[variant].poll_all())?;
    let rows = [
        Row::named("one more wait for a completion that has come").compared(&waits),
        Row::named("a send, until the stream has seen its completion").compared(&wakes),
        Row::named("one completion that the CPU polls").compared(&polls),
    ];
    let name = gpu.name()?;
    let titles = [&*format!("COMPLETION QUEUES, {name}"), "IN THE GPU µs", "IN THE HOST µs"];
    let picture = "Completion queues by the memory they lie in";
    Ok(Outcome::compared(Row::default().key("gpu", name), titles, picture, &rows))
}

/// Returns the time from the flip of the word that the stream waits for until the CPU sees the write after the batch,
/// in µs.
fn span(gpu: &Gpu, round: u32, batch: Batch) -> Result<f64, Failure> {
    gpu.word(START).store(0, Ordering::Relaxed);
    let start = Batch::new().wait_value32(&gpu.handle(START)?, Condition::Eq, round);
    gpu.stream.post(start)?;
    gpu.stream.post(batch.write_value32(&gpu.handle(END)?, round))?;
    let time = gpu.flip(round, Duration::from_micros(200))?;
    gpu.word(END).store(0, Ordering::Relaxed);
    Ok(time)
}

/// Queue pairs whose completion queues have the same placement.
struct Set {
    pairs: Vec<(QueuePair, QueuePair)>,
    source: MemoryRegion,
    target: MemoryRegion,
}

impl Set {
    fn new(pd: &ProtectionDomain, port: u8, placement: Placement) -> Result<Self, Failure> {
        let config = QueuePairConfig::default().port(port).send_depth(4).recv_depth(4);
        let config = config.placement(QueuePlacement::HOST.completions(placement));
        let region = || MemoryRegion::allocate(pd, 8, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let pairs = (0..MANY).map(|_| pair::connected(pd, config)).collect::<Result<_, _>>()?;
        Ok(Set { pairs, source: region()?, target: region()? })
    }

    fn queues(&self) -> impl Iterator<Item = CompletionQueue> {
        self.pairs.iter().map(|(left, _)| left.send_cq())
    }

    fn write_all(&self) -> Result<(), Failure> {
        let slices = [self.source.slice(..)?];
        for (left, _) in &self.pairs {
            left.post_send(WorkRequest::write(&slices, self.target.remote()))?;
        }
        Ok(())
    }

    /// Measures a wait on each queue, for a completion that has arrived.
    fn waits(&self, gpu: &Gpu, round: u32) -> Result<f64, Failure> {
        self.write_all()?;
        let batch = self
            .queues()
            .try_fold(Batch::new(), |batch, queue| Ok::<_, Failure>(batch.wait(queue.prepare_wait()?)))?;
        let time = span(gpu, round, batch)?;
        self.drain()?;
        Ok(time)
    }

    /// Measures a send that the stream rings and waits for.
    fn wake(&self, gpu: &Gpu, round: u32) -> Result<f64, Failure> {
        let (left, _) = &self.pairs[0];
        let slices = [self.source.slice(..)?];
        let send = left.prepare(WorkRequest::write(&slices, self.target.remote()))?;
        let time = span(gpu, round, Batch::new().send(send).wait(left.send_cq().prepare_wait()?))?;
        pair::collect(&left.send_cq(), 1)?;
        Ok(time)
    }

    /// Measures the CPU's time for a completion that has arrived.
    fn poll_all(&self) -> Result<f64, Failure> {
        self.write_all()?;
        std::thread::sleep(Duration::from_millis(1));
        let begin = Instant::now();
        self.drain()?;
        Ok(micros_since(begin) / MANY as f64)
    }

    fn drain(&self) -> Result<(), Failure> {
        self.queues().try_for_each(|queue| pair::collect(&queue, 1))
    }
}

/// Rounds, unless interrupted; each measures both waits one after the other.
const CHECKED_ROUNDS: u32 = 4000;
const WARM_UP: u32 = 200;

/// Two connected queue pairs of one process; the left one writes to the memory of the right one.
struct CheckedWaits {
    pair: Pair,
    target: MemoryRegion,
}

pub(super) fn run_checked(options: &BenchOptions) -> Result<Outcome, Failure> {
    let bench = CheckedWaits::new()?;
    let mut rows = vec![bench.compare("a software stream", &Stream::new(SoftStream::new()?)?)?];
    // Without a GPU, and after an interrupt, only the software stream is measured.
    if let (false, Ok(gpu)) = (interrupt::requested(), Gpu::new(options.gpu())) {
        rows.push(bench.compare(&gpu.name()?, &gpu.stream)?);
    }
    let what = "8 B WRITTEN, FROM POST UNTIL THE STREAM IS PAST THE WAIT";
    let titles = [what, "CHECKED µs", "PLAIN µs"];
    Ok(Outcome::compared(Row::default(), titles, "A wait that tells success from failure", &rows))
}

impl CheckedWaits {
    fn new() -> Result<Self, Failure> {
        let pair = Pair::with(None, QueuePairConfig::default())?;
        let target = MemoryRegion::allocate(&pair.pd, 8, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(CheckedWaits { pair, target })
    }

    fn compare<B: MemOpStream>(&self, what: &str, stream: &Stream<B>) -> Result<Row, Failure> {
        (0..2 * WARM_UP).try_for_each(|turn| self.turn(stream, turn % 2 == 0).map(drop))?;
        let pairs =
            in_turns(interrupt::rounds(0..CHECKED_ROUNDS), |variant, _| self.turn(stream, variant == 0))?;
        Ok(Row::named(what).compared(&pairs))
    }

    /// Returns the stream's time for a write and the wait for it, in µs.
    fn turn<B: MemOpStream>(&self, stream: &Stream<B>, checked: bool) -> Result<f64, Failure> {
        let queue = self.pair.left.send_cq();
        let send = self.pair.left.prepare(WorkRequest::write_inline(&[7; 8], self.target.remote()))?;
        let wait = queue.prepare_wait()?;
        let batch = Batch::new().send(send);
        let batch = if checked { batch.wait_checked(wait.checked()?) } else { batch.wait(wait) };
        let start = Instant::now();
        stream.post(batch).map_err(|error| error.to_string())?;
        stream.synchronize()?;
        let time = micros_since(start);
        queue.poll()?.ok_or("the stream is past a completion that is not there")?.status?;
        Ok(time)
    }
}
