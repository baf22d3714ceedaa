//! Collectives in stream order: every byte of each round is checked, then as many rounds are enqueued ahead and timed.
//!
//! `cargo run --release --example collectives -p gdsync-notify` uses four threads as ranks (`--ranks N`); under `mpirun` or `srun`
//! each process is one. The default are software streams and the software card. `--gpu N` uses CUDA streams and GPU
//! memory, `--gpu 0,1` or `--gpu all` distributes ranks over these GPUs, `--system` uses the system's first mlx5
//! card; `--rounds N` of each, `--size BYTES` of a block.

use gdsync::cuda::{self, GpuList, Gpus};
use gdsync::verbs::provider;
use gdsync::{CudaStream, Device, ProtectionDomain, SoftStream, Stream};
use gdsync_notify::bootstrap::{Bootstrap, BootstrapError, Job};
use gdsync_notify::collective::{Collective, CollectiveStream, Collectives, Element, Operation, Plan};
use gdsync_notify::{Team, TeamConfig};
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

type Failure = Box<dyn Error + Send + Sync>;

/// Time limit of each step.
const LONG: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct Options {
    gpus: Option<Gpus>,
    system: bool,
    ranks: u32,
    rounds: u64,
    size: usize,
}

fn options() -> Result<Options, Failure> {
    let mut options = Options { gpus: None, system: false, ranks: 4, rounds: 300, size: 4096 };
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{option} needs a value"));
        match &option[..] {
            "--gpu" => options.gpus = Some(value()?.parse::<GpuList>()?.resolve()?),
            "--system" => options.system = true,
            "--ranks" => options.ranks = value()?.parse()?,
            "--rounds" => options.rounds = value()?.parse()?,
            "--size" => options.size = value()?.parse()?,
            _ => {
                return Err(
                    "usage: collectives [--gpu N,N...|all] [--system] [--ranks N] [--rounds N] [--size BYTES]"
                        .into(),
                );
            }
        }
    }
    Ok(options)
}

/// Returns the collectives to run. The last blocks are small, and pass through other ranks if there are many.
fn kinds(size: usize) -> Vec<Collective> {
    vec![
        Collective::Barrier,
        Collective::Broadcast { root: 0, len: size },
        Collective::AllGather { block: size },
        Collective::AllToAll { block: size },
        Collective::ReduceScatter {
            block: size.next_multiple_of(8),
            element: Element::I64,
            operation: Operation::Sum,
        },
        Collective::AllReduce {
            len: size.next_multiple_of(8),
            element: Element::I64,
            operation: Operation::Sum,
        },
        Collective::AllGather { block: 64 },
        Collective::AllToAll { block: 64 },
    ]
}

/// Returns byte `at` of a rank's data for another in a round.
fn byte(from: u32, to: u32, round: u64, at: usize) -> u8 {
    (u64::from(from) * 131 + u64::from(to) * 61 + round * 29 + at as u64 * 7 + at as u64 / 251) as u8
}

fn bytes(from: u32, to: u32, round: u64, len: usize) -> impl Iterator<Item = u8> {
    (0..len).map(move |at| byte(from, to, round, at))
}

fn numbers(from: u32, to: u32, round: u64, len: usize) -> impl Iterator<Item = i64> {
    (0..len / 8).map(move |at| i64::from(byte(from, to, round, at)) << 40)
}

/// Returns the sums of all ranks' numbers for a rank.
fn sums(plan: &Plan, to: u32, round: u64, len: usize) -> Vec<u8> {
    let mut sums = vec![0i64; len / 8];
    for from in plan.members() {
        let added = sums.iter_mut().zip(numbers(*from, to, round, len));
        added.for_each(|(sum, number)| *sum = sum.wrapping_add(number));
    }
    sums.into_iter().flat_map(i64::to_ne_bytes).collect()
}

/// Returns a rank's input and expected output of a round.
fn contents(plan: &Plan, rank: u32, round: u64) -> (Vec<u8>, Vec<u8>) {
    let all = || plan.members().iter().copied();
    match plan.collective() {
        Collective::Broadcast { root, len } => {
            let all = bytes(root, 0, round, len).collect();
            (if rank == root { bytes(root, 0, round, len).collect() } else { Vec::new() }, all)
        }
        Collective::AllGather { block } => (
            bytes(rank, 0, round, block).collect(),
            all().flat_map(|from| bytes(from, 0, round, block)).collect(),
        ),
        Collective::AllToAll { block } => (
            all().flat_map(|to| bytes(rank, to, round, block)).collect(),
            all().flat_map(|from| bytes(from, rank, round, block)).collect(),
        ),
        Collective::ReduceScatter { block, .. } => {
            let input = all().flat_map(|to| numbers(rank, to, round, block)).flat_map(i64::to_ne_bytes);
            (input.collect(), sums(plan, rank, round, block))
        }
        Collective::AllReduce { len, .. } => {
            (numbers(rank, 0, round, len).flat_map(i64::to_ne_bytes).collect(), sums(plan, 0, round, len))
        }
        _ => (Vec::new(), Vec::new()),
    }
}

fn synchronize<B: CollectiveStream>(stream: &Stream<B>, plan: &Plan) -> Result<(), Failure> {
    if !stream.synchronize_timeout(LONG)? {
        return Err(format!("the stream hangs at {:?}", stream.explain_wait()).into());
    }
    Ok(plan.check()?)
}

/// Runs a round and checks every byte.
fn checked<B: CollectiveStream>(stream: &Stream<B>, plan: &Plan, rank: u32) -> Result<(), Failure> {
    let round = plan.round();
    let (input, expected) = contents(plan, rank, round);
    plan.segment().write(plan.input(round).start, &input)?;
    plan.post(stream)?;
    synchronize(stream, plan)?;
    let mut output = vec![0; expected.len()];
    plan.segment().read(plan.output(round).start, &mut output)?;
    if output != expected {
        return Err(
            format!("round {round} of {}: the output of rank {rank} is wrong", plan.collective()).into()
        );
    }
    Ok(())
}

/// Runs each collective, and prints the time of its rounds.
fn run<B: CollectiveStream>(
    team: &Team,
    plans: &[Plan],
    stream: &Stream<B>,
    rounds: u64,
) -> Result<String, Failure> {
    let mut times = String::new();
    for plan in plans {
        (0..rounds).try_for_each(|_| checked(stream, plan, team.rank()))?;
        // Timing starts after all ranks have checked.
        team.barrier()?;
        let (started, mut operations) = (Instant::now(), 0);
        for _ in 0..rounds {
            operations += plan.post(stream)?;
        }
        synchronize(stream, plan)?;
        let micros = started.elapsed().as_secs_f64() * 1e6 / rounds.max(1) as f64;
        let each = operations as f64 / rounds.max(1) as f64;
        write!(times, "; {} {micros:.1} ({each:.0})", plan.collective())?;
    }
    Ok(times)
}

fn take_part(bootstrap: Bootstrap, options: &Options) -> Result<(), Failure> {
    let device = match options.system {
        true => Device::open(provider::system()?, None)?,
        false => Device::software()?,
    };
    let team = Team::new(&ProtectionDomain::new(&device)?, bootstrap, TeamConfig::default())?;
    let (kinds, size) = (kinds(options.size), team.size());
    let len = kinds.iter().map(|what| what.bytes(size).next_multiple_of(64)).sum();
    let notifications = kinds.iter().map(|what| what.notifications(size)).sum();
    let gpus = options.gpus.as_ref();
    let context = gpus.map(|gpus| cuda::context(gpus.of_rank(team.rank()))).transpose()?;
    let segment = match &context {
        None => team.allocate(len, notifications)?,
        Some(context) => team.allocate_gpu(context, len, notifications)?,
    };
    let queue = team.queue(0)?;
    let collectives = Collectives::new(&queue, &segment)?;
    let plans = kinds.into_iter().map(|what| collectives.plan(what)).collect::<Result<Vec<_>, _>>()?;
    let (kind, times) = match &context {
        None => {
            let stream = Stream::new(SoftStream::new()?)?;
            ("software streams".to_owned(), run(&team, &plans, &stream, options.rounds)?)
        }
        Some(context) => {
            let stream = Stream::new(CudaStream::new(context.new_stream()?)?)?;
            let gpus = gpus.map_or(String::new(), Gpus::to_string);
            (format!("CUDA streams and GPU memory ({gpus})"), run(&team, &plans, &stream, options.rounds)?)
        }
    };
    // No rank exits while others still send to it.
    queue.flush(LONG)?;
    team.barrier()?;
    if team.rank() == 0 {
        let Options { rounds, .. } = options;
        writeln!(
            std::io::stdout(),
            "collectives: {size} ranks, {rounds} rounds on {kind}, every byte right; us a round (memory operations){times}"
        )?;
    }
    Ok(())
}

fn threads(options: &Options) -> Result<(), Failure> {
    let ranks = Bootstrap::threads(options.ranks, LONG)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            ranks.into_iter().map(|one| scope.spawn(move || take_part(one, options))).collect();
        // Waits for all, and reports the first failure.
        let ended: Vec<Result<(), Failure>> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err("a rank panicked".into())))
            .collect();
        ended.into_iter().collect()
    })
}

fn main() -> Result<(), Failure> {
    let options = options()?;
    match Job::from_env() {
        Ok(job) => take_part(Bootstrap::join(&job, LONG)?, &options),
        Err(BootstrapError::NoLauncher) => threads(&options),
        Err(error) => Err(error.into()),
    }
}
