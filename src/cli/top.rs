//! The options of `gdsync top`.

use super::values;
use clap::Args;
use std::time::Duration;

#[derive(Clone, Debug, Args)]
pub struct TopOptions {
    /// Print one table, and end: rates are those of one interval
    #[arg(long)]
    pub once: bool,
    /// Print one JSON object instead of the table
    #[arg(long, requires = "once")]
    pub json: bool,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = values::interval)]
    pub interval: Duration,
}
