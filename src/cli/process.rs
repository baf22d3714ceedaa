//! The processes that commands start. They are no commands of the user's: help, suggestions, completions and manual pages do
//! not know them.

use super::Connections;
use crate::hca::Hca;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::ffi::OsString;

/// A process that a command has started: its name is the first word of the command line, and the second one has its
/// options, as JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    /// Removes the private folder of a run that was killed: the folder is the second word
    SoftWatch,
}

impl Process {
    /// The process that a command line names, if it names one.
    pub(super) fn of(words: &[OsString]) -> Option<Self> {
        let name = words.get(1)?.to_str()?;
        let options = words.get(2).and_then(|word| serde_json::from_str::<Value>(word.to_str()?).ok());
        let process = options.map_or_else(|| json!(name), |options| json!({ name: options }));
        serde_json::from_value(process).ok()
    }

    /// The words of its command line behind the name of the program.
    pub fn words(&self) -> Vec<String> {
        match json!(self) {
            Value::Object(named) => {
                named.into_iter().flat_map(|(name, what)| [name, what.to_string()]).collect()
            }
            name => name.as_str().map(str::to_owned).into_iter().collect(),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchFirstOptions {
    /// Which of the runs
    pub run: usize,
    /// The GPU, if not a software stream
    pub gpu: Option<u32>,
    /// The card
    pub hca: Option<Hca>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchScaleOptions {
    /// Ranks of the team
    pub ranks: u32,
    /// Rounds of each kind
    pub rounds: u64,
    /// What it connects by
    pub connections: Connections,
    /// The card
    pub hca: Option<Hca>,
}
