//! The command lines of processes that commands start. They are no commands of the user's: help, suggestions,
//! completions and manual pages do not know them.

use super::Connections;
use crate::hca::{self, Hca};
use clap::{Args, Parser, Subcommand};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// A process that a command has started.
#[derive(Debug, Subcommand)]
pub enum Process {
    /// The other process of a pingpong
    PingpongPeer,
    /// The other process of `bench net`
    NetPeer,
    /// The process of a run of `bench first`
    BenchFirst(BenchFirstOptions),
    /// The process of a team of `bench scale`
    BenchScale(BenchScaleOptions),
    /// A process of a soak
    SoakWorker,
    /// The other process of `bench exchange`
    ExchangePeer,
    /// Draws the charts of which its input has the JSON
    Draw,
    /// Removes the private folder of a run that was killed
    SoftWatch {
        /// The folder
        folder: PathBuf,
    },
}

#[derive(Debug, Parser)]
#[command(name = "gdsync")]
struct Line {
    #[command(subcommand)]
    process: Process,
}

impl Process {
    /// Whether the first word of a command line names one.
    pub(super) fn is_named(word: &OsStr) -> bool {
        word.to_str().is_some_and(Self::has_subcommand)
    }

    /// Parses the whole command line.
    pub(super) fn parse(words: Vec<OsString>) -> Result<Self, clap::Error> {
        Line::try_parse_from(words).map(|line| line.process)
    }
}

#[derive(Clone, Debug, Args)]
pub struct BenchFirstOptions {
    /// Which of the runs
    #[arg(long)]
    pub run: u32,
    /// The GPU, if not a software stream
    #[arg(long)]
    pub gpu: Option<u32>,
    /// The card
    #[arg(long, value_parser = hca::parse)]
    pub hca: Option<Hca>,
}

#[derive(Clone, Debug, Args)]
pub struct BenchScaleOptions {
    /// Ranks of the team
    #[arg(long)]
    pub ranks: u32,
    /// Rounds of each kind
    #[arg(long)]
    pub rounds: u64,
    /// What it connects by
    #[arg(long, value_enum)]
    pub connections: Connections,
    /// The card
    #[arg(long, value_parser = hca::parse)]
    pub hca: Option<Hca>,
}
