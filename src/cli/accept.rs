//! The options of `gdsync accept`.

use crate::hca::{self, Hca};
use clap::Args;
use std::path::PathBuf;

#[derive(Clone, Debug, Args)]
pub struct AcceptOptions {
    /// The card, one of the system's [default: the first]
    #[arg(long, value_name = "NAME[:PORT]", value_parser = hca::parse)]
    pub hca: Option<Hca>,
    /// Try GPU N with the card, too
    #[arg(long, value_name = "N")]
    pub gpu: Option<u32>,
    /// Measure with another host, too, on which `gdsync accept --server` runs
    #[arg(long, value_name = "HOST")]
    pub peer: Option<String>,
    /// First of the two TCP ports of the measurements between hosts, on either side
    #[arg(short, long, value_name = "N", default_value = "18515", value_parser = clap::value_parser!(u16).range(1..65535))]
    pub port: u16,
    /// Only this step, such as one that has failed; may be given again
    #[arg(long = "step", value_name = "NAME")]
    pub steps: Vec<String>,
    /// Leave out the figures, and the steps that wait for time-outs: a minute
    #[arg(long)]
    pub quick: bool,
    /// Serve the measurements of `gdsync accept --peer` of another host, and end
    #[arg(long, conflicts_with_all = ["peer", "quick", "output", "show", "gpu", "steps"])]
    pub server: bool,
    /// The file to write [default: accept-DATE.tar.zst]
    #[arg(long, value_name = "FILE", conflicts_with = "show")]
    pub output: Option<PathBuf>,
    /// Show a file that this command has written, here or elsewhere, and try nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hca", "gpu", "peer", "quick", "steps"])]
    pub show: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}
