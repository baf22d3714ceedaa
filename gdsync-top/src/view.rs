//! The displayed data, as printed in JSON.

use serde::Serialize;

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct View {
    /// Seconds between the two samples of the rates.
    pub(crate) interval_s: f64,
    pub(crate) processes: Vec<Process>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Process {
    /// 0 for a process of an invisible PID namespace.
    pub(crate) pid: u32,
    pub(crate) name: String,
    /// Reason why it did not report its status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    pub(crate) cards: Vec<Card>,
    pub(crate) cards_left_out: u32,
    pub(crate) streams: Vec<Stream>,
    pub(crate) streams_left_out: u32,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Card {
    /// `LID 0x5`, or its IPv4 address.
    pub(crate) address: String,
    pub(crate) link: &'static str,
    pub(crate) gid: String,
    /// True if it was too busy to report.
    pub(crate) is_busy: bool,
    pub(crate) sent: Traffic,
    pub(crate) received: Traffic,
    /// Received RNR NAKs: the peer had no receive.
    pub(crate) not_ready_refusals: u64,
    /// Received NAKs for requests out of sequence.
    pub(crate) sequence_refusals: u64,
    pub(crate) faults_injected: u64,
    /// Findings of its checker.
    pub(crate) findings: u32,
    pub(crate) queue_pairs: Vec<QueuePair>,
    pub(crate) queue_pairs_left_out: u32,
}

/// Traffic since the card's start; rates if the previous sample has the card.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Traffic {
    pub(crate) packets: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) packets_per_s: Option<f64>,
    pub(crate) payload_bytes_per_s: Option<f64>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct QueuePair {
    pub(crate) number: u32,
    pub(crate) transport: String,
    pub(crate) state: String,
    pub(crate) peer: Option<Peer>,
    /// Work requests read but not completed by the card.
    pub(crate) outstanding_requests: u32,
    /// 64-byte blocks announced but not completed.
    pub(crate) outstanding_blocks: u32,
    pub(crate) resends: u64,
    pub(crate) wait: Option<Wait>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Peer {
    /// `queue pair 0x28040`, on the fabric of several hosts after the card's IPv4 address.
    pub(crate) address: String,
    /// The card's process, if it belongs to this user on this host.
    pub(crate) pid: Option<u32>,
    pub(crate) process: Option<String>,
    /// The rank that a launcher has given it.
    pub(crate) rank: Option<u32>,
    /// `stopped` or `ended`; `null` if it runs, or if that is not known.
    pub(crate) state: Option<&'static str>,
    /// All of it, in words.
    #[serde(skip)]
    pub(crate) text: String,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Stream {
    pub(crate) number: u64,
    /// Unmet waits for completions, and the wait for a word at which it stands.
    pub(crate) waits: u32,
    pub(crate) wait: Wait,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Wait {
    /// The awaited event.
    pub(crate) what: String,
    pub(crate) waited_ms: f64,
    /// True if the wait may be longer: its begin was not seen.
    pub(crate) is_at_least: bool,
    /// The process's queue pairs that complete the wait.
    pub(crate) queue_pairs: Vec<u32>,
    /// The sides that must act.
    pub(crate) peers: Vec<Peer>,
    /// The event and its cause, in words.
    pub(crate) description: String,
}
