//! The displayed data, as printed in JSON.

use serde::Serialize;

/// A sample of all processes.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct View {
    /// Seconds between the two samples of the rates.
    pub(super) interval_s: f64,
    pub(super) processes: Vec<Process>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Process {
    /// 0 for a process of an invisible PID namespace.
    pub(super) pid: u32,
    pub(super) name: String,
    /// Reason why it did not report its status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    pub(super) cards: Vec<Card>,
    pub(super) cards_left_out: u32,
    pub(super) streams: Vec<Stream>,
    pub(super) streams_left_out: u32,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Card {
    /// `LID 0x5`, or its IPv4 address.
    pub(super) address: String,
    pub(super) link: &'static str,
    pub(super) gid: String,
    /// True if it was too busy to report.
    pub(super) is_busy: bool,
    pub(super) sent: Traffic,
    pub(super) received: Traffic,
    /// Received RNR NAKs: the peer had no receive.
    pub(super) not_ready_refusals: u64,
    /// Received NAKs for requests out of sequence.
    pub(super) sequence_refusals: u64,
    pub(super) faults_injected: u64,
    /// Findings of its checker.
    pub(super) findings: u32,
    pub(super) queue_pairs: Vec<QueuePair>,
    pub(super) queue_pairs_left_out: u32,
}

/// Traffic since the card's start; rates if the previous sample has the card.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Traffic {
    pub(super) packets: u64,
    pub(super) payload_bytes: u64,
    pub(super) packets_per_s: Option<f64>,
    pub(super) payload_bytes_per_s: Option<f64>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct QueuePair {
    pub(super) number: u32,
    pub(super) transport: String,
    pub(super) state: String,
    pub(super) peer: Option<Peer>,
    /// Work requests read but not completed by the card.
    pub(super) outstanding_requests: u32,
    /// 64-byte blocks announced but not completed.
    pub(super) outstanding_blocks: u32,
    pub(super) resends: u64,
    pub(super) wait: Option<Wait>,
}

/// The other side of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Peer {
    /// `LID 0x5 queue pair 0x40`.
    pub(super) address: String,
    /// The card's process, if it belongs to this user on this host.
    pub(super) pid: Option<u32>,
    pub(super) process: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Stream {
    pub(super) number: u64,
    /// Unmet waits for completions.
    pub(super) waits: u32,
    pub(super) wait: Wait,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Wait {
    /// The awaited event.
    pub(super) what: String,
    pub(super) waited_ms: f64,
    /// True if the wait may be longer: its begin was not seen.
    pub(super) is_at_least: bool,
    /// The process's queue pairs that complete the wait.
    pub(super) queue_pairs: Vec<u32>,
    /// The sides that must act.
    pub(super) peers: Vec<Peer>,
}
