//! The options of `gdsync run`.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Most ranks of a run: each needs two pipes of the launcher, whose limit of open files is commonly 1024.
const MAX_RANKS: i64 = 256;

#[derive(Clone, Debug, Args)]
pub struct RunOptions {
    /// Number of ranks, 1 to 256
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS), allow_hyphen_values = true)]
    pub ranks: u32,
    /// Start the ranks on the hosts of this file, by ssh: a line is `HOST slots=N`, for up to N ranks
    #[arg(long, value_name = "FILE")]
    pub hosts: Option<PathBuf>,
    /// A variable that ranks on other hosts get, too, beside those named GDSYNC_* and SOFTHCA_*; may be repeated
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", requires = "hosts")]
    pub env: Vec<String>,
    /// The program of every rank, and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}
