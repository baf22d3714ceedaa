//! The options of `gdsync run`.

use clap::Args;
use std::ffi::OsString;

/// Most ranks of a run: each needs two pipes of the launcher, whose limit of open files is commonly 1024.
const MAX_RANKS: i64 = 256;

#[derive(Clone, Debug, Args)]
pub struct RunOptions {
    /// Number of ranks, 1 to 256
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS), allow_hyphen_values = true)]
    pub ranks: u32,
    /// The program of every rank, and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}
