//! Bytes of entries and contexts that a record leaves out: they number objects, tell the time, or identify the host.

use super::record::{Layout, Value};
use gdsync_sys::prm::command::{ads, qpc};
use gdsync_sys::prm::field::Field;
use std::ops::Range;

/// Bytes of an entry that differ from run to run, and why.
const ENTRY: [(Range<usize>, &str); 6] = [
    (22..24, "the source LID identifies the port"),
    (25..28, "number of the remote queue pair"),
    (32..36, "number of the shared receive queue, or the user index"),
    (48..56, "time of the card's clock"),
    (57..60, "number of the local queue pair"),
    (62..63, "signature over the bytes before it"),
];

/// As [`ENTRY`], for error entries. They have the vendor's syndrome and the syndrome instead of the time.
const ERROR_ENTRY: [(Range<usize>, &str); 3] = [
    (32..36, "number of the shared receive queue"),
    (57..60, "number of the local queue pair"),
    (62..63, "signature over the bytes before it"),
];

/// Fields of a queue pair's context that number objects, place memory, count packets, or identify hosts.
const CONTEXT: [Field; 25] = [
    qpc::PD,
    qpc::UAR_PAGE,
    qpc::USER_INDEX,
    qpc::REMOTE_QPN,
    qpc::NEXT_SEND_PSN,
    qpc::CQN_SND,
    qpc::NEXT_RCV_PSN,
    qpc::CQN_RCV,
    qpc::DBR_ADDR,
    qpc::SRQN,
    qpc::DBR_UMEM_ID,
    qpc::PAGE_OFFSET,
    ads::RLID,
    ads::RGID[0],
    ads::RGID[1],
    ads::SRC_ADDR_INDEX,
    ads::UDP_SPORT,
    ads::VHCA_PORT_NUM,
    LAST_ACKED_PSN,
    SSN,
    RMSN,
    SEND_COUNTERS,
    RECEIVE_COUNTERS,
    RMAC_HIGH,
    RMAC_LOW,
];

/// Fields of `qpc` that only a card counts (`mlx5_ifc.h`): the last acknowledged packet, the sequence
/// numbers of messages, and the counters of both work queues.
const LAST_ACKED_PSN: Field = Field::new(0x448, 24);
const SSN: Field = Field::new(0x468, 24);
const RMSN: Field = Field::new(0x588, 24);
const SEND_COUNTERS: Field = Field::new(0x5a0, 32);
const RECEIVE_COUNTERS: Field = Field::new(0x5c0, 64);
/// The remote port's Ethernet address.
const RMAC_HIGH: Field = Field::new(qpc::PRIMARY + 0x130, 16);
const RMAC_LOW: Field = Field::new(qpc::PRIMARY + 0x140, 32);

/// Returns what a record keeps of the bytes.
pub(super) fn masked(layout: Layout, bytes: &[u8]) -> Value {
    let mut hidden = vec![0u8; bytes.len()];
    let mut hide = |ranges: &[(Range<usize>, &str)]| {
        ranges.iter().flat_map(|(range, _)| range.clone()).for_each(|at| hidden[at] = 0xff);
    };
    match layout {
        Layout::Entry => hide(&ENTRY),
        Layout::ErrorEntry => hide(&ERROR_ENTRY),
        Layout::Context => CONTEXT.iter().for_each(|field| field.put(&mut hidden, u64::MAX)),
    }
    let digits =
        |(byte, hidden): (&u8, &u8)| if *hidden == 0 { format!("{byte:02x}") } else { "..".to_owned() };
    Value::Bytes { layout, bytes: bytes.iter().zip(&hidden).map(digits).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(layout: Layout, bytes: &[u8]) -> String {
        masked(layout, bytes).to_string()
    }

    #[test]
    fn an_entry_keeps_what_says_how_the_work_ended() {
        let said = text(Layout::ErrorEntry, &[0xab; 64]);
        assert_eq!(said.len(), 128);
        // Syndromes, opcode, counter and owner stay; numbers of objects do not.
        assert_eq!(&said[54 * 2..57 * 2], "ababab");
        assert_eq!(&said[57 * 2..60 * 2], "......");
        assert_eq!(&said[60 * 2..], "abab..ab");
        let said = text(Layout::Entry, &[0xab; 64]);
        assert_eq!((&said[44..48], &said[44 * 2..48 * 2]), ("....", "abababab"));
    }

    #[test]
    fn a_context_keeps_no_address() {
        let mut context = vec![0u8; qpc::BYTES];
        for field in [ads::RGID[0], ads::RGID[1], ads::RLID, RMAC_HIGH, RMAC_LOW, qpc::DBR_ADDR] {
            field.put(&mut context, u64::MAX);
        }
        qpc::STATE.put(&mut context, 3u8);
        let said = text(Layout::Context, &context);
        assert!(said.starts_with("30") && !said.contains('f'), "{said}");
    }
}
