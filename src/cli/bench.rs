//! The options of `gdsync bench`, and of the processes that it starts.

use super::values::Sizes;
use super::{Connections, NetOptions, values};
use crate::hca::{self, Hca};
use clap::{Args, Subcommand, ValueEnum};
use gdsync::cuda::GpuList;
use std::path::PathBuf;

const POSTS: u64 = 100_000;
const ROUNDS: u64 = 100;

#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct BenchOptions {
    #[command(subcommand)]
    pub between: Option<Between>,
    /// The benchmark
    #[arg(value_enum, default_value_t = Benchmark::Card)]
    pub what: Benchmark,
    /// The card: softhca0 is software, others the system's [default: the software one; for `post`, the system's first]
    #[arg(long, value_name = "NAME[:PORT]", value_parser = hca::parse)]
    pub hca: Option<Hca>,
    /// Posts of each kind, for `fanout` at most, as it has 200 rounds at most [default: 100000]; of `alltoall`, `scale` and
    /// each of the ten runs of `persistent` and `exchange` the rounds, but of large teams fewer [default: 100]
    #[arg(long, value_name = "N", value_parser = values::posts, allow_hyphen_values = true)]
    pub iters: Option<u64>,
    /// As `--iters`, for benchmarks that count posts
    #[arg(long, value_name = "N", hide = true, conflicts_with = "iters", value_parser = values::posts, allow_hyphen_values = true)]
    pub posts: Option<u64>,
    /// As `--iters`, for benchmarks that count rounds
    #[arg(long, value_name = "N", hide = true, conflicts_with = "iters", value_parser = values::positive, allow_hyphen_values = true)]
    pub rounds: Option<u64>,
    /// The GPU to measure on [default: 0; for `exchange` none, which is on software streams, and for `card` none, which is in host
    /// memory]; for `card`, `exchange` and `turnaround` also several, such as `0,1` or `all`: between every two of them
    #[arg(long, value_name = "N[,N...]", allow_hyphen_values = true)]
    pub gpu: Option<GpuList>,
    /// Bytes of the writes of `card --gpu`: a list such as `64,4K,1M`, or powers of two, such as `64..16M`
    /// [default: 64,1K,4K,8K,64K,1M,16M]
    #[arg(long, value_name = "LIST", value_parser = values::card_sizes, requires = "gpu", allow_hyphen_values = true)]
    pub sizes: Option<Sizes>,
    /// Where the word of `fanout` lies that the card writes for completions
    #[arg(long, value_enum, default_value_t = Memory::Host)]
    pub arrivals: Memory,
    /// Ranks, a thread each: of `alltoall` 2 to 256, of the largest team of `scale` 2 to 1024 [default: 8, and 512]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1024), allow_hyphen_values = true)]
    pub ranks: Option<u32>,
    /// Connections of the teams of `scale`
    #[arg(long, value_enum, default_value_t = Connections::Size)]
    pub connections: Connections,
    /// Processes of `exchange`: 2, or 1 for both sides in one [default: both]
    #[arg(long, alias = "processes", value_name = "N", value_parser = values::procs, allow_hyphen_values = true)]
    pub procs: Option<u64>,
    /// Draw what was measured into a file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Write what was measured into a file as a web page, with tables, pictures, and what `gdsync doctor` sees of the
    /// machine
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

impl BenchOptions {
    /// Returns the number of posts of each kind.
    pub fn posts(&self) -> u64 {
        self.posts.or(self.iters).unwrap_or(POSTS)
    }

    /// Returns the number of rounds.
    pub fn rounds(&self) -> u64 {
        self.rounds.or(self.iters).unwrap_or(ROUNDS)
    }

    /// Returns the sizes of `card --gpu`.
    pub fn card_sizes(&self) -> Vec<u64> {
        let default = || [64, 1 << 10, 4 << 10, 8 << 10, 64 << 10, 1 << 20, 16 << 20].to_vec();
        self.sizes.as_ref().map_or_else(default, |sizes| sizes.0.clone())
    }

    /// Returns the GPU of a benchmark that uses a single one.
    pub fn gpu(&self) -> u32 {
        self.gpu.as_ref().and_then(GpuList::single).unwrap_or(0)
    }

    pub(super) fn conflict(&self) -> Option<String> {
        self.picture_conflict().or_else(|| self.gpu_conflict()).or_else(|| {
            let is_unused = self.sizes.is_some() && self.what != Benchmark::Card;
            is_unused.then(|| "--sizes is for `card --gpu`, whose writes it names".to_owned())
        })
    }

    fn picture_conflict(&self) -> Option<String> {
        self.plot.as_ref()?;
        match self.what {
            Benchmark::All => Some(
                "--plot is for one benchmark: for `all`, --html FILE has the pictures of each".to_owned(),
            ),
            Benchmark::Device => Some(
                "--plot is not for `device`: its cycles, factors, times and rates share no axis; --html FILE has its table"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    fn gpu_conflict(&self) -> Option<String> {
        let list = self.gpu.as_ref().filter(|list| list.single().is_none())?;
        let takes_several =
            matches!(self.what, Benchmark::Card | Benchmark::Exchange | Benchmark::Turnaround);
        (!takes_several).then(|| {
            format!(
                "--gpu {list} is for `card`, `exchange` and `turnaround`, which measure between GPUs: for `{}`, name one GPU",
                super::word(&self.what)
            )
        })
    }
}

/// Measurements between two sides, on one host or two.
#[derive(Clone, Debug, Subcommand)]
pub enum Between {
    /// Bandwidth, message rate and latency of sends, writes, reads and atomics that streams post, between two hosts, or
    /// two processes of one
    Net(Box<NetOptions>),
}

/// The owner of some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Memory {
    /// The host's
    Host,
    /// The GPU's
    Gpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Benchmark {
    /// The software card against memcpy; with --gpu, its writes between GPU memory against the driver's copies
    Card,
    /// A software stream's wait that tells success from failure, against a plain one
    Checked,
    /// A stream's waits for completions, the queue in the GPU's memory against in the host's
    Cq,
    /// Posting by the CPU, against libmlx5's own functions (`gdsync soft -- gdsync bench post`)
    Post,
    /// The first post of each kind on a fresh stream with fresh queue pairs, against the hundredth: on
    /// a software stream, and on a GPU's where there is one
    First,
    /// The cost of each kind of stream memory operation on a GPU
    Memops,
    /// The batch compiler: memory operations of a batch and the CPU's time for a descriptor, merged against plain
    Plan,
    /// Merged batches on a GPU's stream, from trigger to done, against plain ones
    Batch,
    /// Posting by kernels: a GPU's cycles for each way, latency and rate of threads and queue pairs
    Device,
    /// Sends to many queue pairs by one word that the card waits for, and waits that the card
    /// collects, against doorbells and waits of the stream
    Fanout,
    /// Rounds in which every rank sends to every other, by the card's waits and by doorbells, every
    /// byte checked; on all software cards (SOFTHCA_DEVICES) where none is named
    Alltoall,
    /// The cost of a team as it grows, from 2 to 512 ranks: connecting, memory, and rounds in which every rank sends to
    /// every other, by notified writes and by the collective, a message beside one of 8 ranks
    Scale,
    /// The same rounds among 2, 4 and 8 ranks by persistent requests, together and one by one, against notified writes
    Persistent,
    /// Two streams that send to each other and wait for it, in one process and between two, against
    /// the same memory operations by hand
    Exchange,
    /// Waking and posting on a GPU's stream, against the same memory operations written by hand; with several GPUs,
    /// streams of every two that wake each other, by words in host memory and in either GPU's
    Turnaround,
    /// How soon a GPU's stream is idle once its last write is seen, against the driver's calls alone
    Quiet,
    /// Launching a graph with fresh sends and waits, against posting on the stream
    Graph,
    /// A stream that computes and a stream that communicates, together and each alone, and the CPU meanwhile
    Overlap,
    /// All that need nothing but this machine, one after the other: card, checked, plan, first, exchange, fanout,
    /// persistent, alltoall and scale
    All,
}
