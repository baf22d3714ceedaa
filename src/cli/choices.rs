//! The words that options of the command line take.

use clap::ValueEnum;
use gdsync::stream::DoorbellPath;
use gdsync::verbs::{QueueApi, Transport};
use gdsync_notify::ConnectionKind;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Send into a posted receive
    Send,
    /// RDMA write, then an inline RDMA write of a flag word that the other side waits for
    Write,
    /// RDMA write with immediate, which completes a receive
    WriteImm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// Reliable connection
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagrams
    Ud,
}

impl From<Service> for Transport {
    fn from(service: Service) -> Self {
        match service {
            Service::Rc => Transport::Rc,
            Service::Uc => Transport::Uc,
            Service::Ud => Transport::Ud,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// A stream
    Stream,
    /// The CPU
    Cpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DoorbellChoice {
    /// The stream stores to the card's register where it can reach it, else as with `proxy`
    Auto,
    /// The stream stores to the card's register
    Direct,
    /// The stream stores to a mailbox, and a thread forwards it
    Proxy,
    /// None: the CPU hands sends to the card at once, and the card waits for a word that the stream
    /// writes
    Card,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueChoice {
    /// Verbs
    Verbs,
    /// Commands in the device's own language
    Devx,
}

impl From<QueueChoice> for QueueApi {
    fn from(choice: QueueChoice) -> Self {
        match choice {
            QueueChoice::Verbs => QueueApi::Verbs,
            QueueChoice::Devx => QueueApi::Devx,
        }
    }
}

impl From<DoorbellChoice> for DoorbellPath {
    fn from(choice: DoorbellChoice) -> Self {
        match choice {
            // A stream whose sends the card waits with rings nothing.
            DoorbellChoice::Auto | DoorbellChoice::Card => DoorbellPath::Auto,
            DoorbellChoice::Direct => DoorbellPath::Direct,
            DoorbellChoice::Proxy => DoorbellPath::Proxy,
        }
    }
}

/// What connects the ranks of a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Connections {
    /// What a team of the size has by default
    Size,
    /// A queue pair to each rank
    Each,
    /// Dynamically connected transport
    Dynamic,
}

impl From<Connections> for ConnectionKind {
    fn from(connections: Connections) -> Self {
        match connections {
            Connections::Size => ConnectionKind::BySize,
            Connections::Each => ConnectionKind::Each,
            Connections::Dynamic => ConnectionKind::Dynamic,
        }
    }
}
