//! A search for a missing order with a closure of the test as the job.

use crate::verbs_bed::*;
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, DataSeg, Opcode, RemoteAddrSeg};
use gdsync_sys::verbs::*;
use gdsync_test_support::process::alone;
use softhca::explore::{Limits, explore};
use softhca::liberties::LibertyKinds;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::IntoBytes;

const WORDS: usize = 64;
const ROUNDS: u64 = 10;

/// Writes data into a region of relaxed ordering, and then a flag elsewhere; reads the data once the flag is there.
/// `waits`: the flag is sent after the completion of the data.
fn write_data_and_flag(waits: bool) -> Result<(), String> {
    let bed = Bed::new();
    let cq = bed.cq(63);
    let (qp, receiver) = (bed.qp(cq), bed.qp(cq));
    connect(qp, qpn(receiver), bed.lid());
    connect(receiver, qpn(qp), bed.lid());
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    let data: Box<[AtomicU64]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    let (flag, source) = (Box::new(AtomicU64::new(0)), vec![0u64; WORDS + 1].into_boxed_slice());
    let registered = |addr: *const u64, words: usize, access| {
        // SAFETY: the memory is alive until the region is deregistered, and the card writes it as atomic words.
        bed.register(unsafe { std::slice::from_raw_parts_mut(addr.cast_mut().cast(), words * 8) }, access)
    };
    let regions = [
        registered(data.as_ptr().cast(), WORDS, access | IBV_ACCESS_RELAXED_ORDERING),
        registered((&raw const *flag).cast(), 1, access),
        registered(source.as_ptr(), WORDS + 1, access),
    ];
    // SAFETY: registered.
    let [(to, to_key), (flag_at, flag_key), (from, from_key)] =
        regions.map(|region| unsafe { ((*region).addr as u64, (*region).lkey) });
    let (rings, entries) = (describe_qp(qp), describe_cq(cq));
    let mut index = 0;
    let mut write = |(remote, rkey), (local, length): (u64, u32)| {
        let (remote, data) = (RemoteAddrSeg::new(remote, rkey), DataSeg::new(length, from_key, local));
        let ctrl = CtrlSeg::new(Opcode::RdmaWrite, index as u16, qpn(qp), 3, CtrlFlags::CQ_UPDATE, [0; 4]);
        send(&rings, index, ctrl, &[remote.as_bytes(), data.as_bytes()].concat());
        index += 1;
        index - 1
    };
    let mut result = Ok(());
    for round in 1..=ROUNDS {
        // SAFETY: all requests that read it have completed.
        unsafe { std::slice::from_raw_parts_mut(from as *mut u64, WORDS + 1) }.fill(round);
        let sent = write((to, to_key), (from, 8 * WORDS as u32));
        if waits {
            completion(&entries, sent);
        }
        let last = write((flag_at, flag_key), (from, 8));
        while flag.load(Ordering::Acquire) != round {
            std::thread::yield_now();
        }
        let words: Vec<u64> = data.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        completion(&entries, sent);
        completion(&entries, last);
        if let Some(wrong) = words.iter().find(|word| **word != round) {
            result = Err(format!("round {round} has {wrong}"));
            break;
        }
    }
    [qp, receiver].into_iter().for_each(destroy_qp);
    destroy_cq(cq);
    regions.into_iter().for_each(deregister);
    bed.close();
    result
}

#[test]
fn a_closure_is_explored() {
    if !alone(module_path!(), "a_closure_is_explored", &[]) {
        return;
    }
    let limits = Limits { runs: Some(40), time: None, kinds: LibertyKinds::USUAL };
    let outcome = explore(limits, || write_data_and_flag(false)).unwrap();
    let found = format!("{:?} after {} runs", outcome.census.counts(), outcome.runs);
    let finding = outcome.finding.expect(&found);
    assert_eq!(finding.schedule.rules.len(), 1, "{}", finding.schedule);
    assert_eq!(finding.schedule.rules[0].kind, LibertyKinds::RELAXED);
    assert!(finding.confirmed.0 > 0 && finding.failure.starts_with("round "), "{}", finding.failure);
    let what = &finding.causes[0].what;
    assert!(what.contains("RDMA write of 512 bytes") && what.contains("after message"), "{what}");

    let outcome = explore(limits, || write_data_and_flag(true)).unwrap();
    assert!(outcome.finding.is_none(), "{:?}", outcome.finding);
    assert!(outcome.covered && outcome.census.total() > 0);
}
