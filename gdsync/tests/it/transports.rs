//! Every operation of every connected transport: arrivals, completions, and refusals.

use gdsync::memory::OutOfBounds;
use gdsync::queue::{RequestError, Syndrome, WorkKind};
use gdsync::verbs::Transport;
use gdsync::{
    Access, Batch, ConnectOptions, MemoryRegion, QueueError, QueuePairConfig, RemoteMemory, WorkRequest,
};
use gdsync_test_support::pair::{Pair, content, fill, poll, ring, soft, synchronize};
use std::sync::atomic::Ordering;

fn open() -> Pair {
    Pair::with(QueuePairConfig::default().access(Access::all()), ConnectOptions::default())
}

fn uc() -> Pair {
    let config = QueuePairConfig::default()
        .transport(Transport::Uc)
        .access(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    Pair::with(config, ConnectOptions::default())
}

fn number(region: &MemoryRegion, at: usize) -> u64 {
    region.words64()[at / 8].load(Ordering::Relaxed)
}

#[test]
fn atomics_change_remote_memory_and_fetch_what_was_there() {
    let pair = open();
    let (result, target) = (pair.open_region(16), pair.open_region(16));
    target.words64()[1].store(40, Ordering::Relaxed);
    let remote = target.remote().slice(8..).unwrap();
    // The result is not aligned.
    let place = result.slice(3..11).unwrap();
    let fetched = || {
        let mut bytes = [0; 8];
        result.read(3, &mut bytes);
        u64::from_ne_bytes(bytes)
    };
    ring(pair.left.prepare(WorkRequest::fetch_add(&place, remote, 2).wr_id(1)).unwrap());
    let completion = poll(&pair.left.send_cq());
    assert_eq!((completion.kind, completion.byte_len, completion.wr_id), (WorkKind::FetchAdd, 8, 1));
    assert_eq!((completion.status, fetched(), number(&target, 8)), (Ok(()), 40, 42));

    pair.left.post_send(WorkRequest::compare_swap(&place, remote, 41, 7)).unwrap();
    let completion = poll(&pair.left.send_cq());
    assert_eq!((completion.kind, completion.byte_len), (WorkKind::CompareSwap, 8));
    assert_eq!((fetched(), number(&target, 8)), (42, 42), "not equal");
    pair.left.post_send(WorkRequest::compare_swap(&place, remote, 42, u64::MAX)).unwrap();
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
    assert_eq!((fetched(), number(&target, 8)), (42, u64::MAX));
    pair.left.post_send(WorkRequest::fetch_add(&place, remote, 3)).unwrap();
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
    assert_eq!((fetched(), number(&target, 8), number(&target, 0)), (u64::MAX, 2, 0), "modulo 2^64");
}

#[test]
fn atomics_that_cannot_be_are_refused_here_or_there() {
    let pair = open();
    let (result, target) = (pair.open_region(16), pair.open_region(16));
    let refused = |len: usize, remote: RemoteMemory| {
        let place = result.slice(..len).unwrap();
        pair.left.prepare(WorkRequest::fetch_add(&place, remote, 1)).unwrap_err()
    };
    let whole = target.remote();
    assert!(matches!(refused(7, whole), QueueError::Request(RequestError::AtomicResult { given: 7 })));
    assert!(matches!(refused(16, whole), QueueError::Request(RequestError::AtomicResult { given: 16 })));
    assert!(matches!(
        refused(8, whole.slice(4..12).unwrap()),
        QueueError::Request(RequestError::AtomicTarget { .. })
    ));
    assert!(matches!(
        refused(8, whole.slice(8..12).unwrap()),
        QueueError::Bounds(OutOfBounds { end: 8, len: 4, .. })
    ));
    let readonly = MemoryRegion::allocate(&pair.pd, 8, Access::empty()).unwrap();
    let place = readonly.slice(..).unwrap();
    let error = pair.left.prepare(WorkRequest::fetch_add(&place, whole, 1)).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::NotWritable { .. })), "{error}");

    // Without the access right: of the region, and of the queue pair.
    let closed = Pair::new();
    let all = closed.open_region(8);
    let cases = [(open(), false, Syndrome::RemoteAccess), (closed, true, Syndrome::RemoteInvalidRequest)];
    for (pair, right_of_region, expected) in cases {
        let target = if right_of_region { all.clone() } else { pair.region(8) };
        let result = pair.open_region(8);
        let place = result.slice(..).unwrap();
        pair.left.post_send(WorkRequest::fetch_add(&place, target.remote(), 1)).unwrap();
        let error = poll(&pair.left.send_cq()).status.unwrap_err();
        assert_eq!((error.kind(), number(&target, 0)), (Some(expected), 0));
    }
}

#[test]
fn a_stream_counts_with_atomics_and_waits_for_them() {
    let pair = open();
    let (result, target) = (pair.open_region(8), pair.open_region(8));
    let (place, stream) = (result.slice(..).unwrap(), soft());
    for i in 0..100u64 {
        let add = pair.left.prepare(WorkRequest::fetch_add(&place, target.remote(), 1).wr_id(i)).unwrap();
        let done = pair.left.send_cq().prepare_wait().unwrap();
        stream.post(Batch::new().send(add).wait(done)).unwrap();
        let seen = result.clone();
        stream.launch(move || assert_eq!(number(&seen, 0), i)).unwrap();
    }
    synchronize(&stream);
    (0..100).for_each(|i| assert_eq!(poll(&pair.left.send_cq()).wr_id, i));
    assert_eq!(number(&target, 0), 100);
}

#[test]
fn a_request_that_does_nothing_completes_in_its_turn() {
    let pair = open();
    let (result, target) = (pair.open_region(8), pair.open_region(8));
    let place = result.slice(..).unwrap();
    pair.left.post_send(WorkRequest::fetch_add(&place, target.remote(), 1).unsignaled()).unwrap();
    pair.left.post_send(WorkRequest::nop().fence().wr_id(9)).unwrap();
    let completion = poll(&pair.left.send_cq());
    assert_eq!((completion.kind, completion.wr_id, completion.byte_len), (WorkKind::Nop, 9, 0));
    assert_eq!((completion.status, number(&target, 0)), (Ok(()), 1));
    assert!(pair.left.send_cq().poll().unwrap().is_none(), "the unsignaled one does not complete");
}

#[test]
fn unsignaled_requests_of_every_kind_are_freed_by_the_next_signaled_one() {
    let pair = Pair::with(
        QueuePairConfig::default().access(Access::all()).send_depth(16).recv_depth(64),
        ConnectOptions::default(),
    );
    let (source, target) = (pair.open_region(64), pair.open_region(64));
    let (slices, place) = ([source.slice(..8).unwrap()], source.slice(8..16).unwrap());
    // More often than the queue is long: without being freed, the queue would be full.
    for round in 0..200u64 {
        (0..3).for_each(|_| pair.right.post_recv(&[target.slice(32..).unwrap()], round).unwrap());
        let remote = target.remote();
        let requests = [
            WorkRequest::send(&slices),
            WorkRequest::send_inline(b"inline").immediate(1),
            WorkRequest::write(&slices, remote),
            WorkRequest::write(&slices, remote).immediate(2).solicited(),
            WorkRequest::read(&slices, remote),
            WorkRequest::fetch_add(&place, remote, 0),
            WorkRequest::compare_swap(&place, remote, 1, 1).fence(),
        ];
        for request in requests {
            pair.left.post_send(request.unsignaled()).unwrap();
        }
        pair.left.post_send(WorkRequest::nop().wr_id(round)).unwrap();
        let completion = poll(&pair.left.send_cq());
        assert_eq!((completion.wr_id, completion.status), (round, Ok(())));
        let arrived: Vec<_> = (0..3).map(|_| poll(&pair.right.recv_cq()).immediate).collect();
        assert_eq!(arrived, [None, Some(1), Some(2)]);
    }
}

#[test]
fn inline_data_up_to_the_queues_limit() {
    for transport in [Transport::Rc, Transport::Uc] {
        let config = QueuePairConfig::default().transport(transport).inline(300);
        let pair = Pair::with(config, ConnectOptions::default());
        let most = pair.left.max_inline() as usize;
        assert!(most >= 300);
        let target = pair.region(most);
        let bytes: Vec<u8> = (0..=most).map(|i| i as u8).collect();
        pair.right.post_recv(&[target.slice(..).unwrap()], 0).unwrap();
        pair.left.post_send(WorkRequest::send_inline(&bytes[..most])).unwrap();
        assert_eq!(poll(&pair.right.recv_cq()).byte_len as usize, most);
        assert_eq!(content(&target), bytes[..most]);
        let error = pair.left.post_send(WorkRequest::send_inline(&bytes)).unwrap_err();
        assert!(
            matches!(error, QueueError::Request(RequestError::InlineTooLong { given, .. }) if given == most + 1),
            "{error}"
        );
    }
}

#[test]
fn unreliable_connections_send_and_write() {
    let pair = uc();
    assert_eq!(pair.left.transport(), Transport::Uc);
    let (source, target) = (pair.region(10_000), pair.region(10_000));
    let (slices, places) = ([source.slice(..).unwrap()], [target.slice(..).unwrap()]);
    let sent = fill(&source, 1);
    pair.right.post_recv(&places, 1).unwrap();
    ring(pair.left.prepare(WorkRequest::send(&slices).wr_id(5)).unwrap());
    let completion = poll(&pair.right.recv_cq());
    assert_eq!(
        (completion.kind, completion.byte_len, completion.immediate),
        (WorkKind::Receive, 10_000, None)
    );
    assert_eq!((completion.source, completion.invalidated), (None, None));
    assert_eq!((poll(&pair.left.send_cq()).wr_id, content(&target)), (5, sent));

    pair.right.post_recv(&places, 2).unwrap();
    pair.left.post_send(WorkRequest::send_inline(b"imm").immediate(77)).unwrap();
    let completion = poll(&pair.right.recv_cq());
    assert_eq!((completion.wr_id, completion.immediate, completion.byte_len), (2, Some(77), 3));

    let sent = fill(&source, 2);
    pair.right.post_recv(&[], 3).unwrap();
    pair.left.post_send(WorkRequest::write(&slices, target.remote())).unwrap();
    pair.left.post_send(WorkRequest::write(&[], target.remote()).immediate(8)).unwrap();
    let completion = poll(&pair.right.recv_cq());
    assert_eq!((completion.kind, completion.immediate), (WorkKind::ReceiveRdmaWithImmediate, Some(8)));
    assert_eq!(content(&target), sent);
    (0..3).for_each(|_| assert_eq!(poll(&pair.left.send_cq()).status, Ok(())));
}

#[test]
fn unreliable_connections_lose_what_finds_no_receive_and_refuse_what_they_lack() {
    let pair = uc();
    let (source, target) = (pair.open_region(8), pair.open_region(8));
    let (slices, place) = ([source.slice(..).unwrap()], source.slice(..).unwrap());
    // No receive is posted: the sender gets no error.
    pair.left.post_send(WorkRequest::send_inline(b"lost").wr_id(1)).unwrap();
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
    let wrong = RemoteMemory { rkey: target.rkey() ^ 0x100, ..target.remote() };
    pair.left.post_send(WorkRequest::write_inline(b"lost", wrong)).unwrap();
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
    assert_eq!(content(&target), [0; 8]);
    let requests = [
        WorkRequest::read(&slices, target.remote()),
        WorkRequest::fetch_add(&place, target.remote(), 1),
        WorkRequest::compare_swap(&place, target.remote(), 1, 1),
    ];
    for request in requests {
        let error = pair.left.prepare(request.clone()).unwrap_err();
        let named = matches!(
            error,
            QueueError::Request(RequestError::NotOnTransport { transport: Transport::Uc, .. })
        );
        assert!(named, "{request:?}: {error}");
    }
}
