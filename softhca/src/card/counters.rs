//! The counters of a port. Several processes, each with its own card, may share a file of counters, so that together
//! they look like one device.

use crate::os::memory::SharedMemory;
use crate::packet::{Header, NakCode, PacketKind};
use gdsync_status::Traffic;
use gdsync_sys::file_limit::within_file_limit;
use gdsync_sys::shared::SharedU64;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Octets of a packet besides its payload, as `PortXmitData` counts them: local route header, base transport header and
/// invariant CRC (InfiniBand specification, 16.1.3.5 and chapter 5). The fabric has no extended headers.
const HEADERS: u64 = 8 + 12 + 4;

/// A counter of a port. The discriminant is its index in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Octets sent, divided by 4.
    XmitData,
    /// Octets received, divided by 4.
    RcvData,
    /// Packets sent.
    XmitPackets,
    /// Packets received.
    RcvPackets,
    /// Packets of RDMA writes received.
    WriteRequests,
    /// RDMA reads received.
    ReadRequests,
    /// Atomic operations received.
    AtomicRequests,
    /// Requests that arrived out of sequence: NAKs sent for that reason.
    OutOfSequence,
    /// NAKs received for requests out of sequence.
    PacketSequenceErrors,
    /// RNR NAKs received.
    ReceiverNotReady,
    /// Requests refused because no receive was posted: RNR NAKs sent.
    OutOfBuffer,
    /// Packets dropped for their partition key (`P_KeyViolations` of `PortInfo`). No file of sysfs has it.
    BadPkeys,
}

impl Counter {
    /// The counters with a sysfs file, and its path below the port's folder.
    pub const ALL: [(Counter, &'static str); 13] = [
        (Counter::XmitData, "counters/port_xmit_data"),
        (Counter::RcvData, "counters/port_rcv_data"),
        (Counter::XmitPackets, "counters/port_xmit_packets"),
        (Counter::RcvPackets, "counters/port_rcv_packets"),
        (Counter::XmitPackets, "counters/unicast_xmit_packets"),
        (Counter::RcvPackets, "counters/unicast_rcv_packets"),
        (Counter::WriteRequests, "hw_counters/rx_write_requests"),
        (Counter::ReadRequests, "hw_counters/rx_read_requests"),
        (Counter::AtomicRequests, "hw_counters/rx_atomic_requests"),
        (Counter::OutOfSequence, "hw_counters/out_of_sequence"),
        (Counter::PacketSequenceErrors, "hw_counters/packet_seq_err"),
        (Counter::ReceiverNotReady, "hw_counters/rnr_nak_retry_err"),
        (Counter::OutOfBuffer, "hw_counters/out_of_buffer"),
    ];
    /// Number of counters in the file.
    const COUNT: usize = Counter::BadPkeys as usize + 1;
}

/// The counters of a port.
pub struct Counters {
    memory: SharedMemory,
}

// SAFETY: all accesses to the memory are to shared words, which any thread may access at any time.
unsafe impl Sync for Counters {}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts = Counter::ALL.map(|(counter, name)| (name, self.get(counter)));
        f.debug_map().entries(counts).finish()
    }
}

impl Counters {
    /// Opens a file of counters, or creates it with all counters 0. No process may shorten the file while one uses it.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn in_file(path: &Path) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let len = Counter::COUNT * size_of::<u64>();
        // Another process may do the same concurrently: the length only grows.
        if file.metadata()?.len() < len as u64 {
            within_file_limit(|| file.set_len(len as u64))?;
        }
        Ok(Counters { memory: SharedMemory::of_file(file.as_fd(), len)? })
    }

    fn word(&self, counter: Counter) -> &SharedU64 {
        // SAFETY: the memory has a word for each counter, is page-aligned, and is mapped as long as `self` lives; other
        // processes also access it as words.
        unsafe { SharedU64::from_ptr(self.memory.base().cast::<u64>().add(counter as usize).cast()) }
    }

    /// Returns the value of a counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.word(counter).load(Ordering::Relaxed)
    }

    fn add(&self, counter: Counter, count: u64) {
        self.word(counter).fetch_add(count, Ordering::Relaxed);
    }

    fn sent(&self, header: &Header, payload: u64) {
        self.add(Counter::XmitPackets, 1);
        self.add(Counter::XmitData, (HEADERS + payload).div_ceil(4));
        match nak_of(header) {
            Some(NakCode::Sequence) => self.add(Counter::OutOfSequence, 1),
            Some(NakCode::ReceiverNotReady) => self.add(Counter::OutOfBuffer, 1),
            _ => {}
        }
    }

    fn received(&self, header: &Header, payload: u64) {
        self.add(Counter::RcvPackets, 1);
        self.add(Counter::RcvData, (HEADERS + payload).div_ceil(4));
        match PacketKind::try_from(header.kind) {
            Ok(PacketKind::Write) => self.add(Counter::WriteRequests, 1),
            Ok(PacketKind::Read) => self.add(Counter::ReadRequests, 1),
            Ok(PacketKind::CompareSwap | PacketKind::FetchAdd) => self.add(Counter::AtomicRequests, 1),
            _ => {}
        }
        match nak_of(header) {
            Some(NakCode::Sequence) => self.add(Counter::PacketSequenceErrors, 1),
            Some(NakCode::ReceiverNotReady) => self.add(Counter::ReceiverNotReady, 1),
            _ => {}
        }
    }
}

/// The counters of a card: its own, and those in the file of its port if it has one.
#[derive(Debug, Default)]
pub(crate) struct CardCounters {
    pub(crate) file: Option<Arc<Counters>>,
    pub(crate) own: Own,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) sent: Traffic,
    pub(crate) received: Traffic,
    /// RNR NAKs received.
    pub(crate) not_ready: u64,
    /// NAKs received for requests out of sequence.
    pub(crate) out_of_sequence: u64,
    bad_pkeys: u64,
}

fn add(traffic: &mut Traffic, payload: u64) {
    traffic.packets += 1;
    traffic.bytes += payload;
}

impl CardCounters {
    pub(crate) fn sent(&mut self, header: &Header, payload: u64) {
        add(&mut self.own.sent, payload);
        if let Some(file) = &self.file {
            file.sent(header, payload);
        }
    }

    pub(crate) fn received(&mut self, header: &Header, payload: u64) {
        add(&mut self.own.received, payload);
        match nak_of(header) {
            Some(NakCode::Sequence) => self.own.out_of_sequence += 1,
            Some(NakCode::ReceiverNotReady) => self.own.not_ready += 1,
            _ => {}
        }
        if let Some(file) = &self.file {
            file.received(header, payload);
        }
    }

    /// Counts a packet that is dropped for its partition key.
    #[cold]
    pub(crate) fn bad_pkey(&mut self) {
        self.own.bad_pkeys += 1;
        if let Some(file) = &self.file {
            file.add(Counter::BadPkeys, 1);
        }
    }

    /// Returns the number of packets that the port has dropped for their partition keys.
    pub(crate) fn bad_pkeys(&self) -> u64 {
        self.file.as_ref().map_or(self.own.bad_pkeys, |file| file.get(Counter::BadPkeys))
    }
}

fn nak_of(header: &Header) -> Option<NakCode> {
    let is_nak = PacketKind::try_from(header.kind) == Ok(PacketKind::Nak);
    is_nak.then(|| NakCode::try_from(header.imm[0]).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_by_kind_and_by_all_who_count_in_a_file() {
        let path = std::env::temp_dir().join(format!("softhca-counters-{}", std::process::id()));
        let (one, other) = (Counters::in_file(&path).unwrap(), Counters::in_file(&path).unwrap());
        one.sent(&Header::new(PacketKind::Write, 1, 2, 3), 4096);
        other.received(&Header::new(PacketKind::Write, 1, 2, 3), 4096);
        let refused = Header::nak((1, 2, 3), NakCode::ReceiverNotReady, 0);
        other.sent(&refused, 0);
        one.received(&refused, 0);
        one.received(&Header::new(PacketKind::FetchAdd, 1, 2, 3), 0);
        for counters in [&one, &other] {
            let get = |counter| counters.get(counter);
            assert_eq!((get(Counter::XmitPackets), get(Counter::RcvPackets)), (2, 3));
            assert_eq!((get(Counter::XmitData), get(Counter::RcvData)), (1030 + 6, 1030 + 12));
            assert_eq!((get(Counter::WriteRequests), get(Counter::AtomicRequests)), (1, 1));
            assert_eq!((get(Counter::OutOfBuffer), get(Counter::ReceiverNotReady)), (1, 1));
            assert_eq!((get(Counter::ReadRequests), get(Counter::OutOfSequence)), (0, 0));
        }
        std::fs::remove_file(&path).unwrap();
        let mut port = CardCounters { file: Some(Arc::new(one)), own: Own::default() };
        port.sent(&refused, 0);
        port.sent(&Header::new(PacketKind::Send, 1, 2, 3), 100);
        port.received(&refused, 0);
        let traffic = |packets, bytes| Traffic { packets, bytes };
        let own = Own { sent: traffic(2, 100), received: traffic(1, 0), not_ready: 1, ..Own::default() };
        assert_eq!((port.own, other.get(Counter::XmitPackets)), (own, 4));
        CardCounters { file: port.file.clone(), own: Own::default() }.bad_pkey();
        assert_eq!((port.bad_pkeys(), port.own.bad_pkeys, other.get(Counter::BadPkeys)), (1, 0, 1));
        assert!(Counters::in_file(&path.join("below")).is_err(), "no folder");
    }
}
