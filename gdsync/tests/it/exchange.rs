//! Messages: every operation, every size, across ring ends and laps.

use gdsync::memop::Condition;
use gdsync::queue::{OrderError, QueueFull, RequestError, StateError, WorkKind};
use gdsync::verbs::Provider;
use gdsync::{
    Access, Batch, ConnectOptions, MemoryRegion, ProtectionDomain, QueueError, QueuePair, QueuePairConfig,
    Slice, WorkRequest,
};
use gdsync_test_support::pair::{
    self, LONG, Pair, content, cpu, device, fill, poll, ring, soft, synchronize,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

#[test]
fn every_operation_moves_its_bytes() {
    let pair = Pair::new();
    let (source, target) = (pair.region(1000), pair.region(1000));
    let sent = fill(&source, 1);
    let slices = [source.slice(..600).unwrap(), source.slice(600..).unwrap()];
    let places = [target.slice(..).unwrap()];

    pair.right.post_recv(&places, 11).unwrap();
    ring(pair.left.prepare(WorkRequest::send(&slices).immediate(0xfeed).wr_id(5)).unwrap());
    let completion = poll(&pair.left.send_cq());
    assert_eq!((completion.wr_id, completion.kind, completion.status), (5, WorkKind::Send, Ok(())));
    let completion = poll(&pair.right.recv_cq());
    assert_eq!((completion.wr_id, completion.kind, completion.byte_len), (11, WorkKind::Receive, 1000));
    assert_eq!((completion.immediate, completion.qp_num), (Some(0xfeed), pair.right.number()));
    assert_eq!(content(&target), sent);

    let sent = fill(&source, 2);
    ring(pair.left.prepare(WorkRequest::write(&slices, target.remote())).unwrap());
    assert_eq!(poll(&pair.left.send_cq()).kind, WorkKind::RdmaWrite);
    assert_eq!(content(&target), sent);

    let sent = fill(&source, 3);
    pair.right.post_recv(&[], 12).unwrap();
    ring(pair.left.prepare(WorkRequest::write(&slices, target.remote()).immediate(7)).unwrap());
    let completion = poll(&pair.right.recv_cq());
    assert_eq!((completion.kind, completion.immediate), (WorkKind::ReceiveRdmaWithImmediate, Some(7)));
    assert_eq!((completion.wr_id, completion.byte_len), (12, 1000));
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
    assert_eq!(content(&target), sent);

    let sent = fill(&target, 4);
    ring(pair.left.prepare(WorkRequest::read(&slices, target.remote())).unwrap());
    let completion = poll(&pair.left.send_cq());
    assert_eq!((completion.kind, completion.byte_len), (WorkKind::RdmaRead, 1000));
    assert_eq!(content(&source), sent);

    ring(pair.left.prepare(WorkRequest::write_inline(b"inline", target.remote())).unwrap());
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
    assert_eq!(content(&target)[..6], *b"inline");
    pair.right.post_recv(&places, 0).unwrap();
    ring(pair.left.prepare(WorkRequest::send_inline(b"sent inline")).unwrap());
    assert_eq!(poll(&pair.right.recv_cq()).byte_len, 11);
    assert_eq!(content(&target)[..11], *b"sent inline");
}

#[test]
fn empty_messages_arrive() {
    let pair = Pair::new();
    let target = pair.region(8);
    pair.right.post_recv(&[target.slice(..).unwrap()], 1).unwrap();
    pair.right.post_recv(&[], 2).unwrap();
    let empty = [target.slice(..0).unwrap()];
    for slices in [&[][..], &empty[..]] {
        ring(pair.left.prepare(WorkRequest::send(slices)).unwrap());
        assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
        let completion = poll(&pair.right.recv_cq());
        assert_eq!((completion.byte_len, completion.status), (0, Ok(())));
    }
    ring(pair.left.prepare(WorkRequest::write(&[], target.remote().slice(..0).unwrap())).unwrap());
    ring(pair.left.prepare(WorkRequest::read(&[], target.remote().slice(..0).unwrap())).unwrap());
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
}

#[test]
fn large_messages_arrive() {
    let pair = Pair::new();
    let (source, target) = (pair.region((33 << 20) + 7), pair.region((33 << 20) + 7));
    let sent = fill(&source, 9);
    pair.right.post_recv(&[target.slice(..).unwrap()], 1).unwrap();
    let slices = [source.slice(..).unwrap()];
    ring(pair.left.prepare(WorkRequest::send(&slices)).unwrap());
    assert_eq!(poll(&pair.right.recv_cq()).byte_len as usize, sent.len());
    assert!(content(&target) == sent);
}

#[test]
fn as_many_slices_as_a_work_request_holds() {
    // A send's entry has 63 units: one for control, and 61 guaranteed for elements. A receive has 32. libmlx5
    // reserves some, and cards report 30.
    let (sends, receives) = if device().provider() == Provider::Software { (61, 32) } else { (30, 30) };
    let config = QueuePairConfig::default().send_segments(sends as u32).recv_segments(receives as u32);
    let pair = Pair::with(config, ConnectOptions::default());
    let (source, target) = (pair.region(64 * 100), pair.region(64 * 100));
    let sent = fill(&source, 1);
    let gather: Vec<Slice> = (0..sends).map(|i| source.slice(i * 100..i * 100 + 100).unwrap()).collect();
    let scatter: Vec<Slice> = (0..receives).map(|i| target.slice(i * 200..i * 200 + 200).unwrap()).collect();
    pair.right.post_recv(&scatter, 1).unwrap();
    ring(pair.left.prepare(WorkRequest::send(&gather)).unwrap());
    assert_eq!(poll(&pair.right.recv_cq()).byte_len as usize, sends * 100);
    assert_eq!(content(&target)[..sends * 100], sent[..sends * 100]);
    let too_many: Vec<Slice> = (0..70).map(|i| source.slice(i..i + 1).unwrap()).collect();
    let error = pair.left.prepare(WorkRequest::send(&too_many)).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::TooManySegments { given: 70, .. })), "{error}");
    let error = pair.right.post_recv(&too_many, 1).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::TooManySegments { given: 70, .. })), "{error}");
}

#[test]
fn requests_of_every_size_wrap_around_the_send_queue_at_every_block() {
    let config = QueuePairConfig::default().send_depth(8).inline(200);
    for size in [1usize, 40, 60, 100, 180] {
        let pair = Pair::with(config, ConnectOptions::default());
        let target = pair.region(256);
        for round in 0..600u32 {
            let data: Vec<u8> = (0..size).map(|i| (i as u32 * 7 + round) as u8).collect();
            // A small send between shifts the next by one block, so that all offsets occur.
            for bytes in [&data[..], &data[..1]] {
                ring(pair.left.prepare(WorkRequest::write_inline(bytes, target.remote())).unwrap());
                assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
            }
            assert_eq!(content(&target)[..size], data[..], "{size} bytes, round {round}");
        }
    }
}

#[test]
fn streams_wait_through_many_laps_of_the_completion_queue() {
    let pair = Pair::with(QueuePairConfig::default().send_depth(4).recv_depth(4), ConnectOptions::default());
    let (source, target) = (pair.region(8), pair.region(8));
    let stream = soft();
    let laps = 5 * pair.right.recv_cq().entries().max(pair.left.send_cq().entries()) + 3;
    let slices = [source.slice(..).unwrap()];
    for round in 0..laps {
        let input = source.clone();
        stream.launch(move || assert_eq!(input.write(0, &u64::from(round).to_le_bytes()), 8)).unwrap();
        pair.right.post_recv(&[target.slice(..).unwrap()], round.into()).unwrap();
        let send = pair.left.prepare(WorkRequest::send(&slices).wr_id(round.into())).unwrap();
        let sent = pair.left.send_cq().prepare_wait().unwrap();
        let arrived = pair.right.recv_cq().prepare_wait().unwrap();
        let posted = stream.post(Batch::new().send(send).wait(arrived).wait(sent)).unwrap();
        assert_eq!((posted.operations, posted.submissions), (5, 1));
        let seen = Arc::new(AtomicU32::new(u32::MAX));
        let (output, value) = (target.clone(), seen.clone());
        stream
            .launch(move || value.store(output.words32()[0].load(Ordering::Relaxed), Ordering::Release))
            .unwrap();
        synchronize(&stream);
        assert_eq!(seen.load(Ordering::Acquire), round);
        assert_eq!(poll(&pair.left.send_cq()).wr_id, u64::from(round));
        assert_eq!(poll(&pair.right.recv_cq()).wr_id, u64::from(round));
    }
}

#[test]
fn a_stream_runs_far_ahead_of_the_cpu() {
    let pair = Pair::new();
    let (source, target) = (pair.region(8), pair.region(8));
    let stream = soft();
    let gate = pair.region(8);
    let word = gate.word32(0).unwrap();
    stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1)).unwrap();
    let slices = [source.slice(..).unwrap()];
    for _ in 0..100 {
        pair.right.post_recv(&[target.slice(..).unwrap()], 0).unwrap();
        let send = pair.left.prepare(WorkRequest::send(&slices)).unwrap();
        let arrived = pair.right.recv_cq().prepare_wait().unwrap();
        stream.post(Batch::new().send(send).wait(arrived)).unwrap();
    }
    assert!(pair.left.send_cq().poll().unwrap().is_none(), "nothing has happened yet");
    assert_eq!(stream.outstanding(), 101);
    word.store(1);
    synchronize(&stream);
    assert_eq!(stream.outstanding(), 0);
    (0..100).for_each(|_| assert_eq!(poll(&pair.left.send_cq()).status, Ok(())));
}

#[test]
fn value_descriptors_wait_and_write() {
    let pair = Pair::new();
    let memory = pair.region(32);
    let (a, b) = (memory.word32(0).unwrap(), memory.word64(8).unwrap());
    let stream = soft();
    let batch = Batch::new()
        .wait_value32(&a, Condition::Geq, 5)
        .write_value64(&b, u64::MAX)
        .wait_value64(&b, Condition::And, 1 << 63)
        .write_value32(&a, 9);
    stream.post(batch).unwrap();
    assert!(!stream.synchronize_timeout(std::time::Duration::from_millis(20)).unwrap());
    assert_eq!((a.load(), b.load()), (0, 0));
    a.store(6);
    synchronize(&stream);
    assert_eq!((a.load(), b.load()), (9, u64::MAX));
}

#[test]
fn a_long_batch_is_split_and_keeps_its_order() {
    let pair = Pair::new();
    let memory = pair.region(8);
    let word = memory.word32(0).unwrap();
    let mut batch = Batch::new();
    for value in 0..5000 {
        batch = batch.wait_value32(&word, Condition::Eq, value).write_value32(&word, value + 1);
    }
    assert_eq!(batch.len(), 10_000);
    let stream = soft();
    let posted = stream.post(batch).unwrap();
    assert!(posted.submissions >= 10_000usize.div_ceil(255), "{posted:?}");
    synchronize(&stream);
    assert_eq!(word.load(), 5000);
}

#[test]
fn a_thousand_queue_pairs_in_one_process() {
    let pair = Pair::new();
    let config = QueuePairConfig::default().send_depth(4).recv_depth(4);
    let pairs: Vec<(QueuePair, QueuePair)> = (0..500)
        .map(|_| {
            let both =
                (pair::queue_pair(&pair.pd, config).unwrap(), pair::queue_pair(&pair.pd, config).unwrap());
            both.0.connect(&both.1.endpoint().unwrap(), ConnectOptions::default()).unwrap();
            both.1.connect(&both.0.endpoint().unwrap(), ConnectOptions::default()).unwrap();
            both
        })
        .collect();
    let target = pair.region(500 * 8);
    for (i, (left, _)) in pairs.iter().enumerate() {
        let remote = target.remote().slice(i * 8..i * 8 + 8).unwrap();
        ring(left.prepare(WorkRequest::write_inline(&(i as u64 + 1).to_le_bytes(), remote)).unwrap());
    }
    for (left, _) in &pairs {
        assert_eq!(poll(&left.send_cq()).status, Ok(()));
    }
    let values: Vec<u64> = target.words64().iter().map(|word| word.load(Ordering::Relaxed)).collect();
    assert_eq!(values, (1..=500).collect::<Vec<u64>>());
}

#[test]
fn threads_share_a_queue_pair() {
    let pair = Pair::new();
    let target = pair.region(4 * 8);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (pair, target) = (&pair, &target);
            scope.spawn(move || {
                let remote = target.remote().slice(thread * 8..thread * 8 + 8).unwrap();
                let deadline = Instant::now() + LONG;
                let mut done = 0u64;
                while done < 200 {
                    assert!(Instant::now() < deadline);
                    let value = done.to_le_bytes();
                    let request = WorkRequest::write_inline(&value, remote).wr_id(thread as u64);
                    // Another thread may have prepared and not posted yet, or the queue may be full.
                    let posted = pair
                        .left
                        .prepare(request)
                        .is_ok_and(|send| cpu().post(Batch::new().send(send)).is_ok());
                    done += u64::from(posted);
                    while pair.left.send_cq().poll().unwrap().is_some() {}
                    std::thread::yield_now();
                }
            });
        }
    });
}

#[test]
fn sends_posted_at_once_arrive() {
    if crate::lacks_order("sends_posted_at_once_arrive") {
        return;
    }
    let pair = Pair::new();
    let (source, target) = (pair.region(400), pair.region(400));
    let sent = fill(&source, 5);
    let slices: Vec<Slice> = (0..4).map(|i| source.slice(i * 100..i * 100 + 100).unwrap()).collect();
    // More often than the queue is long, so that requests wrap around its end.
    for round in 0..1000u64 {
        target.write(0, &[0; 400]);
        pair.right.post_recv(&[target.slice(..).unwrap()], round).unwrap();
        pair.left.post_send(WorkRequest::write(&slices, target.remote()).unsignaled()).unwrap();
        pair.left.post_send(WorkRequest::write_inline(&round.to_be_bytes(), target.remote())).unwrap();
        pair.left.post_send(WorkRequest::send(&[]).immediate(7).wr_id(round)).unwrap();
        let completion = poll(&pair.right.recv_cq());
        assert_eq!((completion.wr_id, completion.immediate), (round, Some(7)));
        let arrived = content(&target);
        assert_eq!((&arrived[..8], &arrived[8..]), (&round.to_be_bytes()[..], &sent[8..]));
        assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
        assert_eq!(poll(&pair.left.send_cq()).wr_id, round);
    }
    // Regions of a request in flight are kept, however many.
    let second = pair.region(100);
    let both = [source.slice(..100).unwrap(), second.slice(..).unwrap()];
    pair.left.post_send(WorkRequest::read(&both, target.remote().slice(..200).unwrap())).unwrap();
    drop((both, second));
    assert_eq!(poll(&pair.left.send_cq()).byte_len, 200);
    assert_eq!(content(&source)[..100], content(&target)[..100]);
}

#[test]
fn posting_at_once_is_refused_where_it_would_overtake_or_cannot_be() {
    let pair = Pair::new();
    let send = pair.left.prepare(WorkRequest::send_inline(b"first")).unwrap();
    let error = pair.left.post_send(WorkRequest::send_inline(b"second")).unwrap_err();
    assert!(
        matches!(error, QueueError::Order(OrderError::OutOfOrder { serial: 1, expected: 0, .. })),
        "{error}"
    );
    drop(send);
    let foreign =
        MemoryRegion::allocate(&ProtectionDomain::new(&pair.device).unwrap(), 8, Access::all()).unwrap();
    let error = pair.left.post_send(WorkRequest::send(&[foreign.slice(..).unwrap()])).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::WrongDomain { .. })), "{error}");
    let room = (0..1000).find_map(|_| pair.left.post_send(WorkRequest::send_inline(b"x").unsignaled()).err());
    // A provider may grant a longer send queue than requested.
    let full = matches!(
        room,
        Some(
            QueueError::Full(QueueFull::SendQueue { .. })
                | QueueError::Full(QueueFull::CompletionQueue { .. })
        )
    );
    assert!(full, "{room:?}");
    pair.left.abort().unwrap();
    let error = pair.left.post_send(WorkRequest::send(&[])).unwrap_err();
    assert!(matches!(error, QueueError::State(StateError::Failed { .. })), "{error}");
    let new = pair::queue_pair(&pair.pd, QueuePairConfig::default()).unwrap();
    assert!(matches!(
        new.post_send(WorkRequest::send(&[])),
        Err(QueueError::State(StateError::NotConnected { .. }))
    ));
}
