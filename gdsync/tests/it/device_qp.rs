//! Queue pairs driven through the device header by threads of the CPU: every operation, laps, many threads, and
//! attaching.

use crate::device_calls::{
    COMPARE_SWAP, Calls, FETCH_ADD, GET, PUT, PUT_BLOCK, PUT_INLINE, PUT_SIGNAL, PUT_SIGNAL_ADD, PUT_WARP,
    Request, SEND, SEND_INLINE, Storm, calls,
};
use gdsync::cuda::{Placement, QueuePlacement};
use gdsync::device::{DeviceQp, DeviceQpData, DeviceQpOptions};
use gdsync::queue::WorkKind;
use gdsync::stream::{Cpu, DoorbellPath, Doorbells};
use gdsync::verbs::Provider;
use gdsync::{Access, ConnectOptions, MemoryRegion, QueuePair, QueuePairConfig, WorkRequest};
use gdsync_test_support::device::{Ended, run_sanitized};
use gdsync_test_support::pair::{LONG, Pair, content, cpu, fill, layouts, poll};
use std::sync::atomic::Ordering;

const PATHS: [DoorbellPath; 2] = [DoorbellPath::Direct, DoorbellPath::Proxy];

fn hand_over(queue_pair: &QueuePair, path: DoorbellPath) -> DeviceQp {
    queue_pair.attach_device(&Cpu::new(), &DeviceQpOptions::default().doorbells(path)).unwrap()
}

fn address(region: &MemoryRegion) -> u64 {
    region.memory().addr().get()
}

/// A request of `bytes` from the beginning of `local` to the beginning of `remote`.
fn between(operation: u32, local: &MemoryRegion, remote: &MemoryRegion, bytes: u64) -> Request {
    Request {
        operation,
        lkey: local.lkey(),
        local: address(local),
        bytes,
        remote: address(remote),
        rkey: remote.rkey(),
        ..Request::default()
    }
}

/// Checks that a software card in this process has reported no diagnostics.
fn no_complaints(pair: &Pair) {
    if pair.device.provider() == Provider::Software {
        let of_pair = [Some(pair.left.number()), Some(pair.right.number())];
        let complaints: Vec<_> =
            softhca::verbs::diagnostics().into_iter().filter(|one| of_pair.contains(&one.qpn)).collect();
        assert!(complaints.is_empty(), "{complaints:?}");
    }
}

/// Posts, and waits for the completion.
fn perform(calls: &Calls, qp: &DeviceQpData, request: Request) {
    let (ended, ticket) = calls.call(qp, &request);
    assert_eq!((ended, calls.wait(qp, ticket, LONG)), (Ended::Ok, Ended::Ok), "{request:?}");
}

#[test]
fn the_layout_is_that_of_the_library() {
    let Some(calls) = calls("the_layout_is_that_of_the_library") else { return };
    let expected = [0, 8, 16, 24, 32, 40, 48, 52, 56, 60, 64, 68, 72, 80, 0, 64, 128, 192, 200, 256];
    assert_eq!(calls.layout(), expected);
}

#[test]
fn every_operation_moves_its_bytes() {
    let Some(calls) = calls("every_operation_moves_its_bytes") else { return };
    for path in PATHS {
        let pair = Pair::with(QueuePairConfig::default().access(Access::all()), ConnectOptions::default());
        let (local, remote) = (pair.open_region(1000), pair.open_region(1000));
        let device_qp = hand_over(&pair.left, path);
        assert_eq!(matches!(device_qp.doorbells(), Doorbells::Direct), path == DoorbellPath::Direct);
        let qp = device_qp.data();

        for (round, operation) in [PUT, PUT_WARP, PUT_BLOCK].into_iter().enumerate() {
            let sent = fill(&local, round);
            perform(calls, &qp, between(operation, &local, &remote, 1000));
            assert_eq!(content(&remote), sent);
        }
        let sent = fill(&remote, 7);
        perform(calls, &qp, between(GET, &local, &remote, 1000));
        assert_eq!(content(&local), sent);
        for bytes in [0, 1, 7, 8, 12, 13, 27, 28] {
            let before = fill(&remote, 8);
            let sent = fill(&local, bytes);
            perform(calls, &qp, between(PUT_INLINE, &local, &remote, bytes as u64));
            assert_eq!(content(&remote)[..bytes], sent[..bytes]);
            assert_eq!(content(&remote)[bytes..], before[bytes..]);
        }

        let sent = fill(&local, 9);
        let signal = address(&remote) + 992;
        remote.word64(992).unwrap().store(0);
        let mut request = Request { signal, value: 5, ..between(PUT_SIGNAL, &local, &remote, 900) };
        perform(calls, &qp, request);
        assert_eq!(calls.wait_signal(signal, 5, LONG), Ended::Ok);
        assert_eq!(content(&remote)[..900], sent[..900]);
        (request.operation, request.bytes, request.value) = (PUT_SIGNAL_ADD, 904, 3);
        perform(calls, &qp, request);
        assert_eq!((remote.word64(992).unwrap().load(), local.word64(904).unwrap().load()), (8, 5));
        assert_eq!(calls.wait_signal(signal, 9, std::time::Duration::from_millis(5)), Ended::TimedOut);

        let (word, result) = (remote.word64(0).unwrap(), local.word64(0).unwrap());
        word.store(40);
        perform(calls, &qp, Request { value: 2, ..between(FETCH_ADD, &local, &remote, 0) });
        assert_eq!((word.load(), result.load()), (42, 40));
        perform(calls, &qp, Request { value: 41, desired: 1, ..between(COMPARE_SWAP, &local, &remote, 0) });
        assert_eq!((word.load(), result.load()), (42, 42));
        perform(calls, &qp, Request { value: 42, desired: 1, ..between(COMPARE_SWAP, &local, &remote, 0) });
        assert_eq!((word.load(), result.load()), (1, 42));

        let sent = fill(&local, 11);
        for (operation, bytes) in [(SEND, 1000usize), (SEND, 0), (SEND_INLINE, 44), (SEND_INLINE, 0)] {
            pair.right.post_recv(&[remote.slice(..).unwrap()], 3).unwrap();
            perform(calls, &qp, between(operation, &local, &remote, bytes as u64));
            assert_eq!(poll(&pair.right.recv_cq()).byte_len as usize, bytes);
            assert_eq!(content(&remote)[..bytes], sent[..bytes]);
        }
        perform(calls, &qp, between(PUT, &local, &remote, 0));
        device_qp.detach_device(LONG).unwrap();
        no_complaints(&pair);
    }
}

#[test]
fn requests_that_cannot_be_are_refused() {
    let Some(calls) = calls("requests_that_cannot_be_are_refused") else { return };
    let pair = Pair::new();
    let region = pair.open_region(64);
    let device_qp = hand_over(&pair.left, DoorbellPath::Direct);
    let mut qp = device_qp.data();
    let refused = |qp: &DeviceQpData, request| assert_eq!(calls.call(qp, &request).0, Ended::Invalid);
    refused(&qp, between(PUT, &region, &region, 1 << 31));
    refused(&qp, between(GET, &region, &region, 1 << 31));
    refused(&qp, between(SEND, &region, &region, 1 << 31));
    refused(&qp, between(PUT_INLINE, &region, &region, 29));
    refused(&qp, between(SEND_INLINE, &region, &region, 45));
    let odd = |operation| Request { remote: address(&region) + 4, ..between(operation, &region, &region, 8) };
    refused(&qp, odd(FETCH_ADD));
    refused(&qp, odd(COMPARE_SWAP));
    refused(&qp, Request { signal: address(&region) + 4, ..between(PUT_SIGNAL, &region, &region, 8) });
    assert_eq!(calls.wait(&qp, 1000, LONG), Ended::Invalid, "a ticket that was never given out");
    qp.version += 1;
    refused(&qp, between(PUT, &region, &region, 8));
    let progress = device_qp.progress().unwrap();
    assert_eq!((progress.reserved, progress.posted, progress.completed, progress.error), (0, 0, 0, None));
}

#[test]
fn rings_wrap_over_many_laps() {
    let Some(calls) = calls("rings_wrap_over_many_laps") else { return };
    for path in PATHS {
        let pair = Pair::with(QueuePairConfig::default().send_depth(4), ConnectOptions::default());
        let (local, remote) = (pair.open_region(8), pair.open_region(4096));
        let device_qp = hand_over(&pair.left, path);
        let qp = device_qp.data();
        // More than 2^16 blocks, so that the card's counters wrap, too.
        let count = if path == DoorbellPath::Direct { 70_000u64 } else { 3000 };
        for i in 0..count {
            local.words64()[0].store(i, Ordering::Release);
            let more = u32::from(i % 5 < 2);
            let mut request = between(PUT_INLINE, &local, &remote, 8);
            (request.remote, request.more) = (address(&remote) + i % 512 * 8, more);
            request.timeout_ns = LONG.as_nanos() as u64;
            assert_eq!(calls.call(&qp, &request).0, Ended::Ok);
        }
        assert_eq!(calls.quiet(&qp, LONG), Ended::Ok);
        for slot in 0..512 {
            let last = (count - 1 - slot) / 512 * 512 + slot;
            assert_eq!(remote.words64()[slot as usize].load(Ordering::Acquire), last);
        }
        let progress = device_qp.progress().unwrap();
        assert_eq!((progress.reserved, progress.posted, progress.completed), (count, count, count));
        device_qp.detach_device(LONG).unwrap();
        no_complaints(&pair);
    }
}

#[test]
fn eight_threads_post_at_once() {
    let Some(calls) = calls("eight_threads_post_at_once") else { return };
    for (path, count) in PATHS.into_iter().zip([4000u64, 400]) {
        let config = QueuePairConfig::default().send_depth(16).access(Access::all());
        let pair = Pair::with(config, ConnectOptions::default());
        let (threads, slots) = (8, 16);
        let (local, remote) = (pair.open_region(8 * 16), pair.open_region(8 * 16 * 8 + 16));
        let device_qp = hand_over(&pair.left, path);
        let storm = Storm {
            threads,
            count,
            slots,
            remote: address(&remote),
            rkey: remote.rkey(),
            counters: address(&remote) + 8 * 16 * 8,
            local: address(&local),
            lkey: local.lkey(),
        };
        assert_eq!(calls.storm(&device_qp.data(), storm), 0, "{:x}", calls.error(&device_qp.data()));
        for thread in 0..u64::from(threads) {
            for slot in 0..u64::from(slots) {
                let last = (count - 1 - slot) / 16 * 16 + slot;
                let found = remote.words64()[(thread * 16 + slot) as usize].load(Ordering::Acquire);
                assert_eq!(found, thread << 32 | last);
            }
        }
        let counters = [&remote.words64()[128], &remote.words64()[129]].map(|c| c.load(Ordering::Acquire));
        assert_eq!(counters, [8 * count.div_ceil(5), 8 * count.div_ceil(7)]);
        device_qp.detach_device(LONG).unwrap();
        no_complaints(&pair);
    }
}

#[test]
fn the_header_has_no_races() {
    run_sanitized("the_header_has_no_races", "gdsync/tests/device/races.cpp", &["4000"]);
}

#[test]
fn warps_and_blocks_post_together() {
    run_sanitized("warps_and_blocks_post_together", "gdsync/tests/device/groups.cpp", &["200"]);
}

#[test]
fn the_checksum_is_that_of_ethernet() {
    let Some(calls) = calls("the_checksum_is_that_of_ethernet") else { return };
    assert_eq!(calls.crc32(b"123456789", 0), 0xcbf4_3926);
    assert_eq!(calls.crc32(b"", 0), 0);
    assert_eq!(calls.crc32(b"6789", calls.crc32(b"12345", 0)), 0xcbf4_3926);
}

#[test]
fn many_queue_pairs_of_every_placement_are_driven_at_once() {
    let Some(calls) = calls("many_queue_pairs_of_every_placement_are_driven_at_once") else { return };
    let threads: Vec<_> = layouts(Placement::StandIn)
        .zip(PATHS.into_iter().cycle())
        .map(|(placement, path)| {
            std::thread::spawn(move || {
                let config = QueuePairConfig::default().send_depth(4).placement(placement);
                let pair = Pair::with(config, ConnectOptions::default());
                let (local, remote) = (pair.open_region(8), pair.open_region(8));
                let device_qp = hand_over(&pair.left, path);
                for i in 0..200 {
                    local.words64()[0].store(i, Ordering::Release);
                    perform(calls, &device_qp.data(), between(PUT, &local, &remote, 8));
                    assert_eq!(remote.words64()[0].load(Ordering::Acquire), i, "{placement:?}");
                }
                device_qp.detach_device(LONG).unwrap();
                no_complaints(&pair);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn cpu_kernel_and_stream_take_turns() {
    let Some(calls) = calls("cpu_kernel_and_stream_take_turns") else { return };
    layouts(Placement::StandIn).for_each(|placement| take_turns(calls, placement));
}

fn take_turns(calls: &Calls, placement: QueuePlacement) {
    let config = QueuePairConfig::default().send_depth(8).placement(placement);
    let pair = Pair::with(config, ConnectOptions::default());
    let (local, remote) = (pair.open_region(8), pair.open_region(8));
    let (input, output) = (local.word64(0).unwrap(), remote.word64(0).unwrap());
    let stream = cpu();
    let slices = [local.slice(..).unwrap()];
    for round in 0..90u64 {
        input.store(round);
        pair.left.post_send(WorkRequest::write(&slices, remote.remote()).wr_id(round)).unwrap();
        assert_eq!(poll(&pair.left.send_cq()).wr_id, round);
        assert_eq!(output.load(), round);
        // The prepared send was taken back.
        drop(pair.left.prepare(WorkRequest::write(&slices, remote.remote())).unwrap());

        let device_qp = hand_over(&pair.left, PATHS[round as usize % 2]);
        for i in 0..round % 7 {
            input.store(1000 + i);
            perform(calls, &device_qp.data(), between(PUT, &local, &remote, 8));
            assert_eq!(output.load(), 1000 + i);
        }
        if round % 3 > 0 {
            device_qp.detach_device(LONG).unwrap();
            assert_eq!(calls.call(&device_qp.data(), &between(PUT, &local, &remote, 8)).0, Ended::Failed);
            device_qp.detach_device(LONG).unwrap();
        }
        drop(device_qp);

        input.store(2000 + round);
        let send = pair.left.prepare(WorkRequest::write(&slices, remote.remote())).unwrap();
        let done = pair.left.send_cq().prepare_wait().unwrap();
        stream.post(gdsync::Batch::new().send(send).wait(done)).unwrap();
        assert_eq!(output.load(), 2000 + round);
        assert_eq!(poll(&pair.left.send_cq()).kind, WorkKind::RdmaWrite);
    }
}
