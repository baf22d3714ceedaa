//! A ring under an MPI launcher, without MPI: each rank sends to the next one and receives from the previous one, for
//! many rounds. A stream rings the card and waits; the CPU prepares rounds ahead, and checks every byte of every round.
//!
//! `mpirun -n 4 target/release/examples/ring`, or `srun`; `cargo run --release --example ring -p gdsync-notify`
//! starts four processes itself. The default are software streams and the software card. `--gpu N` uses CUDA streams and GPU memory;
//! `--gpu 0,1` and `--gpu all` use one rank per GPU (without a launcher as many processes; `mpirun`'s ranks take the
//! GPUs in turn); `--system` uses the system's first mlx5 card; `--rounds N`, `--size BYTES`.

use gdsync::cuda::{self, GpuList, GpuMemory, Gpus};
use gdsync::memop::MemOpStream;
use gdsync::verbs::{GpuMemoryRegion, provider};
use gdsync::{
    Access, Batch, CompletionQueue, ConnectOptions, CudaStream, Device, MemoryRegion, ProtectionDomain,
    QueuePair, QueuePairConfig, Slice, SoftStream, Stream, WorkRequest,
};
use gdsync_notify::Connection;
use gdsync_notify::bootstrap::{Bootstrap, BootstrapError, Job};
use std::error::Error;
use std::io::Write;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

type Failure = Box<dyn Error + Send + Sync>;

/// Number of processes if this program starts them.
const OWN: u32 = 4;
/// Rounds enqueued before the CPU waits for one.
const WINDOW: usize = 8;
/// Time limit of each step.
const LONG: Duration = Duration::from_secs(20);

struct Options {
    gpus: Option<Gpus>,
    system: bool,
    rounds: usize,
    size: usize,
}

fn options() -> Result<Options, Failure> {
    let mut options = Options { gpus: None, system: false, rounds: 1000, size: 4096 };
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{option} needs a value"));
        match &option[..] {
            "--gpu" => options.gpus = Some(value()?.parse::<GpuList>()?.resolve()?),
            "--system" => options.system = true,
            "--rounds" => options.rounds = value()?.parse()?,
            "--size" => options.size = value()?.parse()?,
            _ => return Err("usage: ring [--gpu N,N...|all] [--system] [--rounds N] [--size BYTES]".into()),
        }
    }
    Ok(options)
}

enum Memory {
    Host(MemoryRegion),
    Gpu(GpuMemoryRegion),
}

impl Memory {
    fn new(pd: &ProtectionDomain, gpu: Option<u32>, len: usize) -> Result<Memory, Failure> {
        let access = Access::LOCAL_WRITE;
        Ok(match gpu {
            None => Memory::Host(MemoryRegion::allocate(pd, len, access)?),
            Some(gpu) => {
                let memory = GpuMemory::allocate(&cuda::context(gpu)?, len)?;
                Memory::Gpu(GpuMemoryRegion::register(pd, memory, access)?)
            }
        })
    }

    fn slice(&self, start: usize, len: usize) -> Result<Slice, Failure> {
        Ok(match self {
            Memory::Host(region) => region.slice(start..start + len)?,
            Memory::Gpu(region) => region.slice(start..start + len)?,
        })
    }

    fn write(&self, start: usize, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Memory::Host(region) => _ = region.write(start, bytes),
            Memory::Gpu(region) => region.memory().write(start, bytes)?,
        }
        Ok(())
    }

    fn read(&self, start: usize, into: &mut [u8]) -> Result<(), Failure> {
        match self {
            Memory::Host(region) => _ = region.read(start, into),
            Memory::Gpu(region) => region.memory().read(start, into)?,
        }
        Ok(())
    }
}

fn content(rank: u32, round: usize, size: usize) -> Vec<u8> {
    let seed = rank as usize * 151 + round * 7;
    (0..size).map(|i| (i * 13 + i / 251 + seed) as u8).collect()
}

/// A rank, connected to its neighbours. Its memory has `WINDOW` buffers to send from, and twice as many to receive
/// into, so that the neighbour may be a window ahead.
struct Ring {
    memory: Memory,
    next: QueuePair,
    before: QueuePair,
    rank: u32,
    size: u32,
    bytes: usize,
}

fn gpu_of(options: &Options, rank: u32) -> Option<u32> {
    options.gpus.as_ref().map(|gpus| gpus.of_rank(rank))
}

impl Ring {
    fn new(bootstrap: &mut Bootstrap, options: &Options) -> Result<Ring, Failure> {
        let device = match options.system {
            true => Device::open(provider::system()?, None)?,
            false => Device::software()?,
        };
        let pd = ProtectionDomain::new(&device)?;
        let (next, before) = (
            QueuePair::new(&pd, QueuePairConfig::default())?,
            QueuePair::new(&pd, QueuePairConfig::default())?,
        );
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        // The tag of a connection is the rank that sends by it.
        let previous = (rank + size - 1) % size;
        let connections = [
            Connection { queue_pair: &next, rank: (rank + 1) % size, tag: rank },
            Connection { queue_pair: &before, rank: previous, tag: previous },
        ];
        bootstrap.connect(&connections, ConnectOptions::default())?;
        let memory = Memory::new(&pd, gpu_of(options, rank), 3 * WINDOW * options.size)?;
        let ring = Ring { memory, next, before, rank, size, bytes: options.size };
        ring.receive(0, WINDOW.min(options.rounds))?;
        // No rank sends before all can receive.
        bootstrap.barrier()?;
        Ok(ring)
    }

    fn sent_from(&self, round: usize) -> usize {
        round % WINDOW * self.bytes
    }

    fn received_at(&self, round: usize) -> usize {
        (WINDOW + round % (2 * WINDOW)) * self.bytes
    }

    fn receive(&self, first: usize, last: usize) -> Result<(), Failure> {
        for round in first..last {
            self.before
                .post_recv(&[self.memory.slice(self.received_at(round), self.bytes)?], round as u64)?;
        }
        Ok(())
    }

    fn run<B: MemOpStream>(&self, stream: &Stream<B>, rounds: usize) -> Result<(), Failure> {
        for first in (0..rounds).step_by(WINDOW) {
            let last = (first + WINDOW).min(rounds);
            self.receive(last, (last + WINDOW).min(rounds))?;
            for round in first..last {
                let at = self.sent_from(round);
                self.memory.write(at, &content(self.rank, round, self.bytes))?;
                let slices = [self.memory.slice(at, self.bytes)?];
                let send = self.next.prepare(WorkRequest::send(&slices).wr_id(round as u64))?;
                let (sent, came) =
                    (self.next.send_cq().prepare_wait()?, self.before.recv_cq().prepare_wait()?);
                stream.post(Batch::new().send(send).wait(sent).wait(came))?;
            }
            if !stream.synchronize_timeout(LONG)? {
                return Err(format!("the stream hangs at {:?}", stream.explain_wait()).into());
            }
            for round in first..last {
                self.check(round)?;
            }
        }
        Ok(())
    }

    fn check(&self, round: usize) -> Result<(), Failure> {
        let completed = |queue: CompletionQueue| -> Result<(), Failure> {
            let completion = queue.poll()?.ok_or("a stream has passed a wait, and there is no completion")?;
            completion.status?;
            if completion.wr_id != round as u64 {
                return Err("completions are out of order".into());
            }
            Ok(())
        };
        completed(self.next.send_cq())?;
        completed(self.before.recv_cq())?;
        let mut bytes = vec![0; self.bytes];
        self.memory.read(self.received_at(round), &mut bytes)?;
        let from = (self.rank + self.size - 1) % self.size;
        if bytes != content(from, round, self.bytes) {
            return Err(format!("round {round}: rank {} did not get what rank {from} sent", self.rank).into());
        }
        Ok(())
    }
}

fn take_part(job: &Job, options: &Options) -> Result<(), Failure> {
    let mut bootstrap = Bootstrap::join(job, LONG)?;
    let ring = Ring::new(&mut bootstrap, options)?;
    let started = Instant::now();
    let kind = match gpu_of(options, job.rank()) {
        None => {
            ring.run(&Stream::new(SoftStream::new()?)?, options.rounds)?;
            "software streams".to_owned()
        }
        Some(gpu) => {
            let stream = CudaStream::new(cuda::context(gpu)?.new_stream()?)?;
            ring.run(&Stream::new(stream)?, options.rounds)?;
            let gpus = options.gpus.as_ref().map_or(String::new(), Gpus::to_string);
            format!("CUDA streams and GPU memory ({gpus})")
        }
    };
    // No rank exits while others still send to it.
    bootstrap.barrier()?;
    if job.rank() == 0 {
        let round = started.elapsed().as_secs_f64() * 1e6 / options.rounds.max(1) as f64;
        writeln!(
            std::io::stdout(),
            "ring: {} ranks, {} rounds of {} bytes on {kind}, every byte as sent; {round:.1} us a round",
            job.size(),
            options.rounds,
            options.size
        )?;
    }
    Ok(())
}

/// Starts processes of this program like a launcher: one per GPU if several are named.
fn launch(options: &Options) -> Result<(), Failure> {
    let named = options.gpus.as_ref().map_or(0, |gpus| gpus.numbers().len());
    let own = if named > 1 { u32::try_from(named)? } else { OWN };
    let start = |rank: u32| -> Result<Child, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1));
        command.env("GDSYNC_RANK", rank.to_string()).env("GDSYNC_SIZE", own.to_string());
        Ok(command.env("GDSYNC_JOB", format!("ring-{}", std::process::id())).spawn()?)
    };
    let mut running = (0..own).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut failed = false;
    while !running.is_empty() {
        let mut left = Vec::new();
        for mut child in running {
            match child.try_wait()? {
                Some(status) => failed |= !status.success(),
                None => left.push(child),
            }
        }
        // The others would wait for it until they time out.
        left.iter_mut().filter(|_| failed).try_for_each(Child::kill)?;
        running = left;
        std::thread::sleep(Duration::from_millis(5));
    }
    if failed { Err("a rank has failed".into()) } else { Ok(()) }
}

fn main() -> Result<(), Failure> {
    let options = options()?;
    match Job::from_env() {
        Ok(job) => take_part(&job, &options),
        Err(BootstrapError::NoLauncher) => launch(&options),
        Err(error) => Err(error.into()),
    }
}
