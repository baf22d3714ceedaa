//! What is shown: plain data, as JSON has it.

use serde::Serialize;

/// Everything at one time.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct View {
    /// Seconds between the two looks of which rates are made.
    pub(super) interval_s: f64,
    pub(super) processes: Vec<Process>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Process {
    /// 0 for a process of a PID namespace that is not seen here.
    pub(super) pid: u32,
    pub(super) name: String,
    /// Why it has not said what it does.
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
    /// It was occupied for so long that it could not say more.
    pub(super) is_busy: bool,
    pub(super) sent: Traffic,
    pub(super) received: Traffic,
    /// Refusals received because the peer had no receive.
    pub(super) not_ready_refusals: u64,
    /// Refusals received because a request was out of sequence.
    pub(super) sequence_refusals: u64,
    pub(super) faults_injected: u64,
    /// Findings of its checker.
    pub(super) findings: u32,
    pub(super) queue_pairs: Vec<QueuePair>,
    pub(super) queue_pairs_left_out: u32,
}

/// Since the card began; rates where the card was there at the look before.
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
    /// Work requests that the card has read and not completed.
    pub(super) outstanding_requests: u32,
    /// Blocks of 64 bytes that were rung and are not completed.
    pub(super) outstanding_blocks: u32,
    pub(super) resends: u64,
    pub(super) wait: Option<Wait>,
}

/// The other side of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Peer {
    /// `LID 0x5 queue pair 0x40`.
    pub(super) address: String,
    /// The process that has the card, if one of this user on this host has.
    pub(super) pid: Option<u32>,
    pub(super) process: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Stream {
    pub(super) number: u64,
    /// Waits for completions that are posted on it and not met.
    pub(super) waits: u32,
    pub(super) wait: Wait,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Wait {
    /// What is waited for.
    pub(super) what: String,
    pub(super) waited_ms: f64,
    /// It may have waited for longer: it is only known since when it was seen.
    pub(super) is_at_least: bool,
    /// Queue pairs of the process that complete what is waited for.
    pub(super) queue_pairs: Vec<u32>,
    /// Who has to do something.
    pub(super) peers: Vec<Peer>,
}
