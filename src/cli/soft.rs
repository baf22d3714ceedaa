//! The options of `gdsync soft`.

use super::values::{self, SoftDevices};
use clap::Args;
use softhca::FaultPlan;
use softhca::liberties::LibertyKinds;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Clone, Debug, Args)]
pub struct SoftOptions {
    /// Devices: how many, or their link layers, such as `ib,roce`
    #[arg(long, value_name = "LIST", default_value = "1", value_parser = values::soft_devices)]
    pub devices: SoftDevices,
    /// Inject faults by a plan such as `seed=7; drop p=0.01; rnr every=100` (docs/liberties.md); SOFTHCA_FAULTS
    /// does the same. With --explore, rules with `p` say which faults the search may choose
    #[arg(long, value_name = "PLAN")]
    pub faults: Option<FaultPlan>,
    /// Let the software card do at random what specifications allow and real cards do: a seed, and words
    /// such as `fetch,pieces` for some of it only (docs/liberties.md); SOFTHCA_LIBERTIES does the same
    #[arg(long, value_name = "SEED[ KINDS]", value_parser = values::liberties, allow_hyphen_values = true)]
    pub liberties: Option<String>,
    /// Follow a schedule, such as one that --explore has written (docs/missing-order.md); SOFTHCA_SCHEDULE does
    /// the same
    #[arg(long, value_name = "FILE", conflicts_with_all = ["liberties", "explore"])]
    pub schedule: Option<PathBuf>,
    /// Search for the order that the command lacks: run it again and again, let cards do what they may, and name
    /// what makes it fail (docs/missing-order.md)
    #[arg(long, conflicts_with = "liberties")]
    pub explore: bool,
    /// Find what the command changes or destroys while a work request uses it, even if it works by luck
    /// (docs/missing-order.md); SOFTHCA_CHECKS=use does the same
    #[arg(long)]
    pub check_use: bool,
    /// Find reads of bytes that have not come yet: their pages are protected until they have, and who touches them is
    /// named (docs/missing-order.md). It stops threads; SOFTHCA_CHECKS=watch does the same
    #[arg(long)]
    pub watch: bool,
    /// Tell at the end what the command did that a card would not accept; if it did and has succeeded, the exit status
    /// is 3
    #[arg(long, conflicts_with = "explore")]
    pub strict: bool,
    /// With --explore: number of runs
    #[arg(long, value_name = "N", requires = "explore")]
    pub runs: Option<u64>,
    /// With --explore: time [default: 1, or without limit with --runs]
    #[arg(long, value_name = "MINUTES", requires = "explore", value_parser = values::minutes)]
    pub minutes: Option<f64>,
    /// With --explore: kinds of liberties and of faults, such as `relaxed,pieces` [default: all]
    #[arg(long, value_name = "KINDS", requires = "explore", value_parser = values::liberty_kinds)]
    pub kinds: Option<LibertyKinds>,
    /// With --explore: a run whose output lacks this text has failed, too
    #[arg(long, value_name = "TEXT", requires = "explore")]
    pub expect: Option<String>,
    /// With --explore: the file for the schedule under which the command fails
    #[arg(long, value_name = "FILE", default_value = "missing-order.txt", requires = "explore")]
    pub output: PathBuf,
    /// With --explore: print one JSON object instead of text
    #[arg(long, requires = "explore")]
    pub json: bool,
    /// Write the card's log to stderr; SOFTHCA_LOG says more exactly what of it
    #[arg(long)]
    pub log: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
