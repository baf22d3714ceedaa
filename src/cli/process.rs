//! The processes that commands start. They are no commands of the user's: help, suggestions, completions and manual pages do
//! not know them.

use clap::ValueEnum;
use std::ffi::OsString;

/// A process that a command has started: its name is the first word of the command line. Its options, if it has any, come
/// in the first line of its standard input ([`crate::child::options`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Process {
    /// The other process of a pingpong
    PingpongPeer,
    /// The other process of `bench net`
    NetPeer,
    /// The process of a run of `bench first`
    BenchFirst,
    /// The process of a team of `bench scale`
    BenchScale,
    /// A process of a soak
    SoakWorker,
    /// The other process of `bench exchange`
    ExchangePeer,
    /// Draws the charts of which its input has the JSON
    Draw,
    /// Removes the private folder of a run that was killed: the folder is the second word
    SoftWatch,
}

impl Process {
    /// The process that a command line names, if it names one.
    pub(super) fn of(words: &[OsString]) -> Option<Self> {
        Self::from_str(words.get(1)?.to_str()?, false).ok()
    }
}
