//! A request's peers, the queue pair that connects it with each, and the line of text by which both sides set it up.
//!
//! Where the card waits in front of everything that a queue pair sends (`GDSYNC_MPI_CARD_WAITS`), a probe would wait, too.
//! Such a connection has a second queue pair for probes; both end together.

use crate::device::Domain;
use crate::error::{Class, Failure, cut};
use gdsync::qp::CardWord;
use gdsync::{Endpoint, QueuePair, QueuePairConfig, RemoteMemory, WorkRequest};
use std::fmt;
use std::str::FromStr;

/// One side of a message between two ranks, as matching knows it. Two ranks have at most one in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Side {
    /// The rank of the peer. Unused by transfers, whose peer the C part knows.
    pub(crate) rank: u32,
    pub(crate) sends: bool,
    /// True if the side gets a queue pair; otherwise the sides only compare their requests.
    pub(crate) has_queue_pair: bool,
}

/// A peer of a request, in one direction.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) side: Side,
    pub(crate) connection: Option<Connection>,
    /// On a transfer's sending side, the word that its receiver counts up, if the card waits for words.
    pub(crate) clear_to_send: Option<CardWord>,
    starts: u64,
    /// The other side, once it is known.
    pub(crate) remote: Option<ConnectionInfo>,
}

impl Peer {
    pub(crate) fn new(side: Side) -> Self {
        Peer { side, connection: None, clear_to_send: None, starts: 0, remote: None }
    }

    pub(crate) fn count_start(&mut self) {
        self.starts += 1;
    }

    /// Probes the other side. A send that waits for clear-to-send is released; the card repeats
    /// it if its receive is not posted. With a probe queue pair, that one asks, as the message must not overtake its receive.
    pub(crate) fn probe(&mut self) {
        if self.remote.is_none() {
            return;
        }
        match (&self.clear_to_send, &mut self.connection) {
            (_, Some(connection)) if connection.card_waits() => connection.probe(),
            (Some(word), _) => {
                if let Err(error) = word.raise(self.starts) {
                    tracing::warn!(%error, "a send that is held back stays so");
                }
            }
            (None, Some(connection)) if !self.side.sends => connection.probe(),
            _ => {}
        }
    }

    pub(crate) fn clear_to_send(&self) -> ClearToSend {
        let writable = self.remote.as_ref().map(|remote| remote.writable).filter(|memory| memory.len > 0);
        match (&self.clear_to_send, writable) {
            (Some(word), _) => ClearToSend::Await(word.clone()),
            (None, Some(word)) => ClearToSend::Notify(word),
            (None, None) => ClearToSend::Unused,
        }
    }
}

/// How the sending side's card learns that the receives of a start are posted.
#[derive(Debug)]
pub(crate) enum ClearToSend {
    /// The sending side: its card waits for this word, which the receiving side counts up.
    Await(CardWord),
    /// The receiving side: it counts up this word of the sending side.
    Notify(RemoteMemory),
    /// The sending side's card does not wait: it repeats a message until its receive is posted.
    Unused,
}

/// The local end of a connection with a peer.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) queue_pair: QueuePair,
    probe_queue_pair: Option<QueuePair>,
    is_probing: bool,
}

impl Connection {
    /// Makes the queue pairs of a side that sends or receives, with up to `depth` outstanding work requests. `card_waits`: the
    /// card waits in front of each of them.
    pub(crate) fn new(domain: &Domain, sends: bool, depth: u32, card_waits: bool) -> Result<Self, Failure> {
        let config = QueuePairConfig::default().send_segments(1).recv_segments(1).inline(0);
        let list_waits = if card_waits { depth } else { 0 };
        // A send may have a WAIT in front of it. The receiving side's send queue has clear-to-send writes and probes.
        let own = if sends {
            config.send_depth(depth.saturating_mul(2).saturating_add(list_waits)).recv_depth(1)
        } else {
            config.inline(8).send_depth(depth.saturating_add(2).saturating_add(list_waits)).recv_depth(depth)
        };
        let probe = card_waits.then(|| QueuePair::new(&domain.pd, config.send_depth(1).recv_depth(1)));
        let queue_pair = QueuePair::new(&domain.pd, own)?;
        Ok(Connection { queue_pair, probe_queue_pair: probe.transpose()?, is_probing: false })
    }

    /// The endpoints to which the other side connects its queue pair, and its probe queue pair.
    pub(crate) fn endpoints(&self) -> Result<(Endpoint, Option<Endpoint>), Failure> {
        let probe = self.probe_queue_pair.as_ref().map(QueuePair::endpoint).transpose()?;
        Ok((self.queue_pair.endpoint()?, probe))
    }

    /// Returns whether the card waits in front of everything that the queue pair sends.
    pub(crate) fn card_waits(&self) -> bool {
        self.probe_queue_pair.is_some()
    }

    /// Connects the queue pairs with the other side's.
    ///
    /// # Errors
    /// A card of the other provider, settings that differ, or the card's refusal.
    pub(crate) fn connect(&self, domain: &Domain, remote: &ConnectionInfo) -> Result<(), Failure> {
        let (own, other) = (domain.provider(), &remote.provider);
        if own != other {
            let text = format!(
                "this rank has the {own} card, and the peer the {other} card: set GDSYNC_MPI_DEVICE alike for all ranks"
            );
            return Err(Failure::new(Class::Other, text));
        }
        match (&self.probe_queue_pair, &remote.probe_endpoint) {
            (None, None) => {}
            (Some(probe), Some(remote)) => probe.connect(remote, domain.connection)?,
            (own, _) => {
                let (own, other) = if own.is_some() { ("1", "0") } else { ("0", "1") };
                let text = format!(
                    "GDSYNC_MPI_CARD_WAITS is {own} on this rank, and {other} on the peer: set it alike for all ranks"
                );
                return Err(Failure::new(Class::Other, text));
            }
        }
        let text = "the peer has no queue pair for a message: is its library the same version as this one?";
        let endpoint = remote.endpoint.as_ref().ok_or_else(|| Failure::new(Class::Other, text))?;
        Ok(self.queue_pair.connect(endpoint, domain.connection)?)
    }

    /// Posts a write of no bytes, to which a live peer's card responds. If none does, the queue pair fails after its retries,
    /// and with it the work that a stream waits for.
    pub(crate) fn probe(&mut self) {
        let probed = self.probe_queue_pair.as_ref().unwrap_or(&self.queue_pair);
        // Without a probe queue pair, clear-to-send writes complete here, too. Until their completions are polled, the library
        // does not know that the stream has passed them, and refuses posts of the CPU.
        let polled = probed.send_cq().poll();
        self.is_probing &= matches!(polled, Ok(None));
        if !self.is_probing {
            let nothing = RemoteMemory { addr: 0, len: 0, rkey: 0 };
            // A failed queue pair needs no probe.
            self.is_probing = probed.post_send(WorkRequest::write(&[], nothing)).is_ok();
        }
        self.end_together();
    }

    /// Ends both queue pairs if one of them has failed.
    pub(crate) fn end_together(&self) {
        let Some(probe) = &self.probe_queue_pair else { return };
        if probe.failure().is_some() != self.queue_pair.failure().is_some() {
            self.abort();
        }
    }

    /// Ends all work in both directions: what a stream waits for ends with an error, here at once and at the other side after
    /// its retries.
    pub(crate) fn abort(&self) {
        for queue_pair in [&self.queue_pair].into_iter().chain(&self.probe_queue_pair) {
            if let Err(error) = queue_pair.abort() {
                tracing::warn!(%error, "a queue pair could not be aborted");
            }
        }
    }
}

/// Bytes of a [`ConnectionInfo`] or refusal as C has it, with its zero: `GDSYNC_MPI_INFO_BYTES` of `c/engine.h`.
pub(crate) const INFO_BYTES: usize = 320;
const MAGIC: &str = "gdsync-mpi/4";
const NO_ENDPOINT: &str = "none";

/// The line of text that one side sends the other when they match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionInfo {
    /// A word on which both sides must agree: `transfer`, or the collective with its shape.
    pub(crate) shape: String,
    pub(crate) bytes: u64,
    /// The largest length of a work request (`GDSYNC_MPI_PART_BYTES`).
    pub(crate) fragment_bytes: u64,
    pub(crate) provider: String,
    /// None if the side has no queue pair.
    pub(crate) endpoint: Option<Endpoint>,
    /// Memory that the other side may write: a partitioned receive's buffer, or a send's clear-to-send word, if its card waits
    /// for words; otherwise of length 0.
    pub(crate) writable: RemoteMemory,
    /// The probe queue pair, where the card waits for lists of transfers.
    pub(crate) probe_endpoint: Option<Endpoint>,
}

impl fmt::Display for ConnectionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConnectionInfo { shape, bytes, fragment_bytes, provider, endpoint, writable, probe_endpoint } =
            self;
        write!(f, "{MAGIC} offer {shape} {bytes} {fragment_bytes} {provider} ")?;
        match endpoint {
            Some(endpoint) => write!(f, "{endpoint}")?,
            None => f.write_str(NO_ENDPOINT)?,
        }
        write!(f, " {writable}")?;
        probe_endpoint.iter().try_for_each(|endpoint| write!(f, " {endpoint}"))
    }
}

/// The line of a side that cannot match.
pub(crate) fn refusal(failure: &Failure) -> String {
    format!("{MAGIC} refusal {} {}", failure.class as i32, failure.text)
}

/// Returns the line in C's form, cut if it is too long; only refusals are.
pub(crate) fn to_bytes(line: &str) -> [u8; INFO_BYTES] {
    let mut bytes = [0; INFO_BYTES];
    let line = cut(line, INFO_BYTES - 1).as_bytes();
    bytes[..line.len()].copy_from_slice(line);
    bytes
}

/// Parses the other side's line.
///
/// # Errors
/// Its refusal, with its class; a line of another format.
pub(crate) fn read(bytes: &[u8; INFO_BYTES]) -> Result<ConnectionInfo, Failure> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(INFO_BYTES);
    let line = String::from_utf8_lossy(&bytes[..end]);
    let not_ours = || {
        let text = format!("the peer says {line:?}: is its library the same version as this one?");
        Failure::new(Class::Other, text)
    };
    let rest = line.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix(' ')).ok_or_else(not_ours)?;
    if let Some(refusal) = rest.strip_prefix("refusal ") {
        let (class, text) = refusal.split_once(' ').unwrap_or((refusal, ""));
        let class = Class::of(class.parse().unwrap_or_default());
        return Err(Failure::new(class, format!("the peer cannot match: {text}")));
    }
    rest.strip_prefix("offer ").and_then(|info| info.parse().ok()).ok_or_else(not_ours)
}

impl FromStr for ConnectionInfo {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split(' ');
        let mut word = || words.next().ok_or(());
        let (shape, bytes, fragment_bytes) = (word()?.to_owned(), word()?.parse(), word()?.parse::<u64>());
        let (provider, endpoint) = (word()?.to_owned(), word()?);
        let endpoint = (endpoint != NO_ENDPOINT).then(|| endpoint.parse().map_err(drop)).transpose()?;
        let fragment_bytes = fragment_bytes.ok().filter(|bytes| *bytes > 0).ok_or(())?;
        let bytes = bytes.map_err(drop)?;
        let writable = word()?.parse().map_err(drop)?;
        let probe_endpoint = words.next().map(str::parse).transpose().map_err(drop)?;
        Ok(ConnectionInfo { shape, bytes, fragment_bytes, provider, endpoint, writable, probe_endpoint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> ConnectionInfo {
        ConnectionInfo {
            shape: "transfer".to_owned(),
            bytes: 1 << 40,
            fragment_bytes: 1 << 30,
            provider: "software".to_owned(),
            endpoint: Some("roce2:0:12:3:3:00000000000000000000ffff0a000001".parse().unwrap()),
            writable: RemoteMemory { addr: 0x7fff_0000_1000, len: 1 << 40, rkey: 0x1234 },
            probe_endpoint: None,
        }
    }

    #[test]
    fn infos_and_refusals_arrive_as_they_were() {
        let with_probe = ConnectionInfo { probe_endpoint: info().endpoint, ..info() };
        for info in [info(), with_probe, ConnectionInfo { endpoint: None, ..info() }] {
            assert_eq!(read(&to_bytes(&info.to_string())).unwrap(), info);
        }
        let failure = Failure::new(Class::Truncate, "x".repeat(2 * INFO_BYTES));
        let error = read(&to_bytes(&refusal(&failure))).unwrap_err();
        assert_eq!(error.class, Class::Truncate);
        assert!(error.text.contains("xxx"), "{error}");
    }

    #[test]
    fn the_longest_info_has_room() {
        let shape = format!("partitions-{}-of-{}-bytes", u32::MAX, u64::MAX);
        let writable = RemoteMemory { addr: u64::MAX, len: u64::MAX, rkey: u32::MAX };
        let longest = ConnectionInfo {
            shape,
            bytes: u64::MAX,
            fragment_bytes: u64::MAX,
            writable,
            probe_endpoint: info().endpoint,
            ..info()
        };
        assert_eq!(read(&to_bytes(&longest.to_string())).unwrap(), longest);
    }

    #[test]
    fn lines_of_others_are_refused() {
        let good = info().to_string();
        let lines = ["", "hello", "gdsync-mpi/4", "gdsync-mpi/3 offer", &good.replace(" 1073741824 ", " 0 ")];
        for line in lines {
            let error = read(&to_bytes(line)).unwrap_err();
            assert_eq!(error.class, Class::Other);
            assert!(error.text.contains("version"), "{line}: {error}");
        }
    }
}
