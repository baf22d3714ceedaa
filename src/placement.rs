//! `--cq`, `--dbrec`, `--wq`: whose memory the parts of a queue lie in.

use clap::{Args, ValueEnum};
use gdsync::cuda::{Placement, QueuePlacement};
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Where {
    /// The host's memory
    #[default]
    Host,
    /// The memory of the GPU that --gpu names
    Gpu,
    /// The host's, treated as if it were a GPU's
    StandIn,
}

/// Whose memory queues lie in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub struct Layout {
    /// Whose memory completion queues lie in
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = Where::Host)]
    pub cq: Where,
    /// Whose memory doorbell records lie in
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = Where::Host)]
    pub dbrec: Where,
    /// Whose memory send and receive queues lie in
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = Where::Host)]
    pub wq: Where,
}

impl Layout {
    fn parts(&self) -> [(&'static str, Where); 3] {
        [("cq", self.cq), ("dbrec", self.dbrec), ("wq", self.wq)]
    }

    /// The option that wants a GPU's memory, if one does.
    pub fn wants_gpu(&self) -> Option<&'static str> {
        self.parts().iter().find(|(_, place)| *place == Where::Gpu).map(|(name, _)| *name)
    }

    /// `gpu`: the number of the GPU, where there is one.
    pub fn placement(&self, gpu: Option<u32>) -> QueuePlacement {
        let place = |place| match place {
            Where::Host => Placement::Host,
            Where::Gpu => gpu.map_or(Placement::Host, Placement::Gpu),
            Where::StandIn => Placement::StandIn,
        };
        QueuePlacement { work: place(self.wq), completions: place(self.cq), records: place(self.dbrec) }
    }
}

impl fmt::Display for Layout {
    /// What is not in the host's memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, place) in self.parts() {
            match place {
                Where::Host => {}
                Where::Gpu => write!(f, ", {name} in the GPU's memory")?,
                Where::StandIn => write!(f, ", {name} in a stand-in for a GPU's memory")?,
            }
        }
        Ok(())
    }
}
