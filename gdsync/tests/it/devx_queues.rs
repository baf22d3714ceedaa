//! Queues made by DEVX commands, on the system's libmlx5 (`GDSYNC_TEST_PROVIDER=system`): operations, refusals, and
//! leaks. `GDSYNC_TEST_QUEUES=devx` runs the traffic of the other files on such queues.

use gdsync::advanced::QueueApi;
use gdsync::advanced::{DevxError, DevxStatus};
use gdsync::memop::Condition;
use gdsync::queue::{StateError, Syndrome, WorkKind};
use gdsync::verbs::{OutOfRange, Provider, Transport};
use gdsync::{
    Access, Batch, CompletionQueue, CompletionQueueConfig, ConnectOptions, Error, MemoryRegion,
    ProtectionDomain, QueueError, QueuePair, QueuePairConfig, RemoteMemory, WorkRequest,
};
use gdsync_test_support::pair::{self, LONG, Pair, device, poll, soft, synchronize};
use gdsync_test_support::process::alone;
use gdsync_test_support::skipped;

fn config() -> QueuePairConfig<'static> {
    QueuePairConfig::default().queues(QueueApi::Devx)
}

/// Two connected queue pairs, whatever `GDSYNC_TEST_QUEUES` says. `None` on the software card of this process: the
/// test is skipped.
fn pair(test: &str, config: QueuePairConfig<'_>) -> Option<Pair> {
    let device = device();
    if device.provider() == Provider::Software {
        skipped(
            test,
            "the software card of a process takes no commands (scripts/test-system has one that does)",
        );
        return None;
    }
    let pd = ProtectionDomain::new(&device).unwrap();
    let config = config.queues(QueueApi::Devx);
    let (left, right) = (QueuePair::new(&pd, config).unwrap(), QueuePair::new(&pd, config).unwrap());
    left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    Some(Pair { device, pd, left, right })
}

fn reconnect(pair: &Pair) {
    for side in [&pair.left, &pair.right] {
        side.abort().unwrap();
        pair::drain(side);
        assert_eq!(side.failure(), None);
    }
    let (left, right) = (pair.left.endpoint().unwrap(), pair.right.endpoint().unwrap());
    pair.left.reconnect(&right, ConnectOptions::default()).unwrap();
    pair.right.reconnect(&left, ConnectOptions::default()).unwrap();
}

#[test]
fn a_device_without_commands_says_so() {
    let device = device();
    if device.provider() == Provider::System {
        return skipped("a_device_without_commands_says_so", "the system's device takes commands");
    }
    let pd = ProtectionDomain::new(&device).unwrap();
    let error = QueuePair::new(&pd, config()).unwrap_err();
    assert!(matches!(&error, Error::Devx(DevxError::Unavailable { .. })), "{error}");
    let text = error.to_string();
    assert!(text.contains("softhca0") && text.contains("QueueApi::Verbs"), "{text}");
    let error =
        CompletionQueue::new(&device, CompletionQueueConfig::from(8).queues(QueueApi::Devx)).unwrap_err();
    assert!(matches!(error, Error::Devx(DevxError::Unavailable { .. })), "{error}");
}

#[test]
fn a_queue_pair_that_verbs_do_not_know_has_no_state_to_adopt() {
    let Some(pair) = pair("a_queue_pair_that_verbs_do_not_know_has_no_state_to_adopt", config()) else {
        return;
    };
    pair.left.adopt_state();
    let alone = QueuePair::unmanaged(&pair.pd, config()).unwrap();
    assert!(alone.as_raw().is_null());
    alone.adopt_state();
    let error = alone.post_send(WorkRequest::nop()).unwrap_err();
    assert!(matches!(error, QueueError::State(StateError::NotConnected { .. })), "{error}");
}

#[test]
fn sizes_that_cannot_be_are_refused_before_the_device_is_asked() {
    let Some(pair) = pair("sizes_that_cannot_be_are_refused_before_the_device_is_asked", config()) else {
        return;
    };
    let most = pair.device.attributes().unwrap();
    for (wrong, what) in [
        (config().send_depth(1 << 20), "send_depth is 1048576"),
        (config().recv_depth(most.max_work_requests + 1), "recv_depth is"),
        (config().recv_depth(u32::MAX), "recv_depth is 4294967295"),
        (config().send_segments(most.max_segments + 1), "send_segments is"),
        (config().recv_segments(1 << 20), "recv_segments is 1048576"),
        (config().inline(1 << 20), "inline is 1048576"),
    ] {
        let error = QueuePair::new(&pair.pd, wrong).unwrap_err();
        assert!(matches!(error, Error::OutOfRange(OutOfRange { .. })), "{error}");
        let text = error.to_string();
        assert!(
            text.starts_with(what) && text.contains("at most") && text.contains("ask for less"),
            "{text}"
        );
    }
    let error =
        CompletionQueue::new(&pair.device, CompletionQueueConfig::from(u32::MAX).queues(QueueApi::Devx))
            .unwrap_err();
    assert!(error.to_string().starts_with("completion queue entries is 4294967295"), "{error}");
    for (asked, granted) in [(0, 2), (1, 2), (3, 4), (1000, 1024)] {
        let queue =
            CompletionQueue::new(&pair.device, CompletionQueueConfig::from(asked).queues(QueueApi::Devx))
                .unwrap();
        assert_eq!(queue.entries(), granted);
    }
    let smallest = config().send_depth(0).recv_depth(0).send_segments(0).recv_segments(0).inline(0);
    QueuePair::new(&pair.pd, smallest).unwrap();
}

#[test]
fn what_the_device_refuses_is_told_with_status_and_syndrome() {
    let Some(pair) = pair("what_the_device_refuses_is_told_with_status_and_syndrome", config()) else {
        return;
    };
    let error = QueuePair::new(&pair.pd, config().pkey_index(9999)).unwrap_err();
    let Error::Devx(DevxError::Refused { command, status, syndrome, .. }) = &error else { panic!("{error}") };
    assert_eq!((*command, *status), ("RST2INIT_QP", DevxStatus(0x03)));
    assert_ne!(*syndrome, 0);
    let text = error.to_string();
    assert!(text.contains("bad parameter (status 0x03)") && text.contains("syndrome 0x"), "{text}");
}

#[test]
fn queue_pairs_of_verbs_do_not_complete_where_verbs_know_nothing() {
    let Some(pair) = pair("queue_pairs_of_verbs_do_not_complete_where_verbs_know_nothing", config()) else {
        return;
    };
    let [devx, verbs] = [QueueApi::Devx, QueueApi::Verbs].map(|maker| {
        CompletionQueue::new(&pair.device, CompletionQueueConfig::from(64).queues(maker)).unwrap()
    });
    let by_verbs = QueuePairConfig::default();
    for (send, recv) in [(&devx, &verbs), (&verbs, &devx)] {
        let error = QueuePair::new(&pair.pd, by_verbs.completion_queues(send, recv)).unwrap_err();
        assert!(matches!(error, Error::Devx(DevxError::CqMadeByDevx { .. })), "{error}");
    }
    // In the opposite order they do.
    let config = config().send_depth(8).recv_depth(8);
    let left = QueuePair::new(&pair.pd, config.completion_queues(&verbs, &devx)).unwrap();
    let right = QueuePair::new(&pair.pd, config.completion_queues(&devx, &verbs)).unwrap();
    left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    for round in 0..200 {
        right.post_recv(&[], round).unwrap();
        left.post_send(WorkRequest::send(&[]).wr_id(round)).unwrap();
        let completions = [poll(&verbs), poll(&verbs)];
        let kinds = completions.map(|completion| (completion.kind, completion.wr_id, completion.status));
        for kind in [WorkKind::Send, WorkKind::Receive] {
            assert!(kinds.contains(&(kind, round, Ok(()))), "{kinds:?}");
        }
    }
}

/// Queues of 4 requests: each ring wraps around thousands of times, and every index wraps at 16 bits.
#[test]
fn a_hundred_thousand_messages_over_thousands_of_laps() {
    let small = config().send_depth(4).recv_depth(4).send_segments(1).recv_segments(1);
    let Some(pair) = pair("a_hundred_thousand_messages_over_thousands_of_laps", small) else { return };
    let (source, target) = (pair.region(4 * 8), pair.region(4 * 8));
    let (mut posted, mut sent, mut arrived) = (0u64, 0u64, 0u64);
    const MESSAGES: u64 = 100_000;
    let place = |region: &MemoryRegion, n: u64| {
        let at = (n % 4) as usize * 8;
        [region.slice(at..at + 8).unwrap()]
    };
    while arrived < MESSAGES || sent < MESSAGES {
        while posted < MESSAGES && posted < sent.min(arrived) + 4 {
            source.write((posted % 4) as usize * 8, &posted.to_le_bytes());
            pair.right.post_recv(&place(&target, posted), posted).unwrap();
            pair.left.post_send(WorkRequest::send(&place(&source, posted)).wr_id(posted)).unwrap();
            posted += 1;
        }
        let completion = poll(&pair.right.recv_cq());
        assert_eq!((completion.wr_id, completion.byte_len, completion.status), (arrived, 8, Ok(())));
        let mut bytes = [0; 8];
        target.read((arrived % 4) as usize * 8, &mut bytes);
        assert_eq!(u64::from_le_bytes(bytes), arrived);
        arrived += 1;
        let completion = poll(&pair.left.send_cq());
        assert_eq!((completion.wr_id, completion.status), (sent, Ok(())));
        sent += 1;
    }
}

#[test]
fn failed_pairs_start_anew_where_their_rings_are() {
    let Some(pair) =
        pair("failed_pairs_start_anew_where_their_rings_are", config().send_depth(8).recv_depth(8))
    else {
        return;
    };
    let bad = RemoteMemory { addr: 0x1000, len: 8, rkey: 0x7777 };
    let stream = soft();
    let target = pair.region(8);
    for round in 0..30u64 {
        for _ in 0..round % 5 {
            pair.right.post_recv(&[], 0).unwrap();
            pair.left.post_send(WorkRequest::send(&[])).unwrap();
            assert_eq!(poll(&pair.right.recv_cq()).status, Ok(()));
            assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
        }
        pair.left.post_recv(&[], 1).unwrap();
        let failing = pair.left.prepare(WorkRequest::write_inline(&[1], bad)).unwrap();
        let flushed = pair.left.prepare(WorkRequest::write_inline(&[2], target.remote())).unwrap();
        let waits =
            [pair.left.send_cq().prepare_wait().unwrap(), pair.left.recv_cq().prepare_wait().unwrap()];
        let batch = waits.into_iter().fold(Batch::new().send(failing).send(flushed), Batch::wait);
        stream.post(batch).unwrap();
        synchronize(&stream);
        let error = poll(&pair.left.send_cq()).status.unwrap_err();
        assert_eq!(error.syndrome, Syndrome::RemoteAccess as u8, "round {round}: {error}");
        assert!(poll(&pair.left.send_cq()).status.unwrap_err().is_flush());
        assert!(poll(&pair.left.recv_cq()).status.unwrap_err().is_flush());
        reconnect(&pair);
        pair.left.post_send(WorkRequest::write_inline(&round.to_le_bytes(), target.remote())).unwrap();
        assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
        let mut bytes = [0; 8];
        target.read(0, &mut bytes);
        assert_eq!(u64::from_le_bytes(bytes), round);
    }
}

fn files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Everything, including mappings of the card's registers.
fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

#[test]
fn queues_come_and_go_with_work_in_flight_and_leave_nothing() {
    let test = "queues_come_and_go_with_work_in_flight_and_leave_nothing";
    if !alone(module_path!(), test, &[]) {
        return;
    }
    let Some(pair) = pair(test, config()) else { return };
    let config = config().send_depth(16).recv_depth(16);
    let stream = soft();
    let gate = pair.region(8);
    let mut first = None;
    for cycle in 0..300u32 {
        let transport = [Transport::Rc, Transport::Uc, Transport::Rc][cycle as usize % 3];
        let make = || QueuePair::new(&pair.pd, config.transport(transport)).unwrap();
        let (left, right) = (make(), make());
        left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        let region = MemoryRegion::allocate(&pair.pd, 64, Access::all()).unwrap();
        let shared =
            CompletionQueue::new(&pair.device, CompletionQueueConfig::from(8).queues(QueueApi::Devx))
                .unwrap();
        right.post_recv(&[region.slice(..).unwrap()], 0).unwrap();
        let send = left.prepare(WorkRequest::send_inline(b"in flight")).unwrap();
        let wait = right.recv_cq().prepare_wait().unwrap();
        let never = left.prepare(WorkRequest::nop()).unwrap();
        let word = gate.word32(0).unwrap();
        let batch = Batch::new().wait_value32(&word, Condition::Eq, cycle + 1).send(send).wait(wait);
        stream.post(batch).unwrap();
        // All is dropped before the stream has reached it, in both orders.
        if cycle % 2 == 0 {
            drop((never, left, region, shared, right));
        } else {
            drop((right, shared, region, left, never));
        }
        word.store(cycle + 1);
        synchronize(&stream);
        if cycle == 100 {
            first = Some((files(), mappings()));
        }
    }
    let (files_then, mappings_then) = first.unwrap();
    let deadline = std::time::Instant::now() + LONG;
    // The card's thread may still be releasing the last ones.
    while files() > files_then + 20 || mappings() > mappings_then + 60 {
        let now = (files(), mappings());
        assert!(std::time::Instant::now() < deadline, "{now:?} from {files_then}, {mappings_then}");
        std::thread::yield_now();
    }
}
