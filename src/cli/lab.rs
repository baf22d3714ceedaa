//! The options of `gdsync lab`.

use super::{BenchOptions, values};
use crate::hca::{self, Hca};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
pub struct LabOptions {
    #[command(subcommand)]
    pub(super) what: Lab,
}

#[derive(Debug, Subcommand)]
pub(super) enum Lab {
    /// Measure a part of gdsync, beside a reference in the same run
    Bench(BenchOptions),
    /// Random work on many queue pairs between several processes, with random faults: everything is accounted for
    Soak(SoakOptions),
    /// Random programs on simulated cards, each in one thread and at no time's cost: a seed repeats to the bit
    Simulate(SimulateOptions),
}

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct SoakOptions {
    /// How long, in minutes
    #[arg(long, default_value = "1", value_parser = values::minutes, allow_hyphen_values = true)]
    pub minutes: f64,
    /// Seed of everything random
    #[arg(long, default_value = "1", allow_hyphen_values = true)]
    pub seed: u64,
    /// Processes, 2 to 64
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(2..=64), allow_hyphen_values = true)]
    pub procs: u32,
    /// Pairs of connected queue pairs
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u32).range(1..=1024), allow_hyphen_values = true)]
    pub links: u32,
    /// The card: softhca0, softhca1 ... are software, others the system's [default: the first software card]
    #[arg(long, value_name = "NAME[:PORT]", value_parser = hca::parse)]
    pub hca: Option<Hca>,
    /// Faults that the cards inject: a plan as in docs/liberties.md, or `none` [default: all kinds, made of the seed]
    #[arg(long, value_name = "PLAN", value_parser = values::soak_faults)]
    pub faults: Option<String>,
    /// Let the software card do at random what specifications allow and real cards do: a seed, and words
    /// such as `fetch,pieces` for some of it only (docs/liberties.md); SOFTHCA_LIBERTIES does the same
    #[arg(long, value_name = "SEED[ KINDS]", value_parser = values::liberties, allow_hyphen_values = true)]
    pub liberties: Option<String>,
    /// Let streams of GPU N drive half of the links, and its kernels some others, with their messages
    /// in the memory of the GPU
    #[arg(long, value_name = "N", value_parser = values::ordinal, allow_hyphen_values = true)]
    pub gpu: Option<u32>,
    /// No GPU: software streams, threads and host memory in its place
    #[arg(long, conflicts_with = "gpu")]
    pub stand_in: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct SimulateOptions {
    /// How many operations, such as 1e6
    #[arg(long = "iters", alias = "operations", value_name = "N", default_value = "1e5", value_parser = values::operations, allow_hyphen_values = true)]
    pub operations: u64,
    /// Seed of the first episode; the next ones have the seeds after it
    #[arg(long, default_value = "1", allow_hyphen_values = true)]
    pub seed: u64,
    /// The episodes with the seeds from A on, up to B and without it
    #[arg(long, value_name = "A..B", value_parser = values::seeds, conflicts_with_all = ["operations", "seed"], allow_hyphen_values = true)]
    pub seeds: Option<(u64, u64)>,
    /// How many threads perform episodes: the result is the same [default: as many as there are cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), allow_hyphen_values = true)]
    pub jobs: Option<u32>,
    /// Faults of all episodes: a plan as in docs/liberties.md, or `none` [default: made of their seeds]
    #[arg(long, value_name = "PLAN", value_parser = values::simulated_faults)]
    pub faults: Option<String>,
    /// Liberties of all cards, a seed, and words such as `fetch,pieces` (docs/liberties.md) [default: made of the seeds]
    #[arg(long, value_name = "SEED[ KINDS]", value_parser = values::liberties, allow_hyphen_values = true)]
    pub liberties: Option<String>,
    /// A file with the schedule that all cards follow (docs/missing-order.md)
    #[arg(long, value_name = "FILE", conflicts_with = "liberties")]
    pub schedule: Option<PathBuf>,
}
