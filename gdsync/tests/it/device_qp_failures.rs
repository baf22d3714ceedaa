//! Failures of queue pairs that kernels drive: no room, time-outs, failed requests, stopped threads, and refusals.

use crate::device_calls::{PUT, Request, SEND_INLINE, calls};
use gdsync::device::{DeviceQp, DeviceQpError, DeviceQpOptions};
use gdsync::memop::{MemOp, MemOpCaps, MemOpStream, StreamError};
use gdsync::memory::{HostAddr, StreamAddr};
use gdsync::qp::ResetError;
use gdsync::queue::PollError;
use gdsync::queue::{FailureCause, ResetBlocker, StateError, Syndrome};
use gdsync::stream::{Cpu, DoorbellPath, Doorbells};
use gdsync::verbs::Transport;
use gdsync::{
    CompletionQueue, ConnectOptions, MemoryRegion, QueueError, QueuePair, QueuePairConfig, WorkRequest,
};
use gdsync_test_support::device::Ended;
use gdsync_test_support::pair::{LONG, Pair, cpu, drain, poll, sharing};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(20);

fn options() -> DeviceQpOptions {
    DeviceQpOptions::default().stall(SHORT)
}

fn hand_over(queue_pair: &QueuePair) -> DeviceQp {
    queue_pair.attach_device(&Cpu::new(), &options()).unwrap()
}

fn refused(queue_pair: &QueuePair) -> DeviceQpError {
    queue_pair.attach_device(&Cpu::new(), &options()).unwrap_err()
}

fn put(region: &MemoryRegion, rkey: u32) -> Request {
    let at = region.memory().addr().get();
    let lkey = region.lkey();
    Request { operation: PUT, lkey, local: at, bytes: 8, remote: at + 8, rkey, ..Request::default() }
}

fn send(region: &MemoryRegion) -> Request {
    let local = region.memory().addr().get();
    Request { operation: SEND_INLINE, local, bytes: 8, ..Request::default() }
}

#[test]
fn a_full_queue_says_so_and_goes_on() {
    let Some(calls) = calls("a_full_queue_says_so_and_goes_on") else { return };
    for path in [DoorbellPath::Direct, DoorbellPath::Proxy] {
        let pair = Pair::with(QueuePairConfig::default().send_depth(8), ConnectOptions::default());
        let region = pair.open_region(64);
        let device_qp = pair.left.attach_device(&Cpu::new(), &options().doorbells(path)).unwrap();
        let qp = device_qp.data();
        // No receive is posted, so none of them completes.
        let sends = u64::from(qp.limit);
        for i in 0..sends {
            assert_eq!(calls.call(&qp, &send(&region)), (Ended::Ok, i + 1));
        }
        assert_eq!(calls.call(&qp, &send(&region)).0, Ended::NoRoom);
        let started = Instant::now();
        let patient = Request { timeout_ns: SHORT.as_nanos() as u64, ..send(&region) };
        assert_eq!(calls.call(&qp, &patient).0, Ended::NoRoom);
        assert!(started.elapsed() >= SHORT);
        assert_eq!(calls.quiet(&qp, SHORT), Ended::TimedOut);
        assert_eq!(calls.poll(&qp), (Ended::Ok, 0));
        let error = device_qp.detach_device(SHORT).unwrap_err();
        assert!(
            matches!(error, DeviceQpError::Outstanding { outstanding, .. } if outstanding == sends),
            "{error}"
        );

        for _ in 0..sends {
            pair.right.post_recv(&[region.slice(32..).unwrap()], 1).unwrap();
        }
        assert_eq!(calls.quiet(&qp, LONG), Ended::Ok);
        assert_eq!(calls.poll(&qp), (Ended::Ok, sends));
        (0..sends).for_each(|_| assert_eq!(poll(&pair.right.recv_cq()).byte_len, 8));
        // Work that a kernel has left, not rung and not waited for, is also finished.
        let more = Request { more: 1, ..put(&region, region.rkey()) };
        region.word64(0).unwrap().store(77);
        assert_eq!(calls.call(&qp, &more).0, Ended::Ok);
        device_qp.detach_device(LONG).unwrap();
        assert_eq!(region.word64(8).unwrap().load(), 77);
    }
}

#[test]
fn ringing_late_is_ringing() {
    let Some(calls) = calls("ringing_late_is_ringing") else { return };
    let pair = Pair::new();
    let region = pair.open_region(64);
    let device_qp = hand_over(&pair.left);
    let qp = device_qp.data();
    region.word64(0).unwrap().store(5);
    for _ in 0..3 {
        assert_eq!(calls.call(&qp, &Request { more: 1, ..put(&region, region.rkey()) }).0, Ended::Ok);
    }
    let before = device_qp.progress().unwrap();
    assert_eq!((before.reserved, before.posted), (3, 0));
    assert_eq!(calls.ring(&qp), Ended::Ok);
    assert_eq!(device_qp.progress().unwrap().posted, 3);
    assert_eq!(calls.wait(&qp, 3, LONG), Ended::Ok);
    assert_eq!(region.word64(8).unwrap().load(), 5);
}

#[test]
fn requests_that_were_not_rung_are_when_room_is_needed() {
    let Some(calls) = calls("requests_that_were_not_rung_are_when_room_is_needed") else { return };
    let pair = Pair::with(QueuePairConfig::default().send_depth(4), ConnectOptions::default());
    let region = pair.open_region(64);
    let device_qp = hand_over(&pair.left);
    let qp = device_qp.data();
    let patient = Request { more: 1, timeout_ns: LONG.as_nanos() as u64, ..put(&region, region.rkey()) };
    for _ in 0..3 * qp.limit + 1 {
        assert_eq!(calls.call(&qp, &patient).0, Ended::Ok);
    }
    assert_eq!(calls.quiet(&qp, LONG), Ended::Ok);
}

#[test]
fn a_failed_request_tells_its_syndrome_and_the_queue_pair_begins_anew() {
    let name = "a_failed_request_tells_its_syndrome_and_the_queue_pair_begins_anew";
    let Some(calls) = calls(name) else { return };
    let pair = Pair::new();
    let region = pair.open_region(64);
    for round in 0..3 {
        let device_qp = hand_over(&pair.left);
        let qp = device_qp.data();
        region.word64(0).unwrap().store(round);
        for _ in 0..round {
            assert_eq!(calls.call(&qp, &put(&region, region.rkey())).0, Ended::Ok);
        }
        assert_eq!(calls.quiet(&qp, LONG), Ended::Ok);
        // An unknown key, and later posts.
        assert_eq!(calls.call(&qp, &put(&region, 0xdead_0000)).0, Ended::Ok);
        let behind = calls.call(&qp, &put(&region, region.rkey())).0;
        assert!(behind == Ended::Ok || behind == Ended::Failed);
        assert_eq!(calls.quiet(&qp, LONG), Ended::Failed);
        assert_eq!(calls.syndrome(&qp), Syndrome::RemoteAccess as u32);
        assert_eq!(calls.call(&qp, &put(&region, region.rkey())).0, Ended::Failed);
        assert_eq!(calls.poll(&qp).0, Ended::Failed);
        let told = device_qp.progress().unwrap().error.unwrap();
        assert_eq!(told.kind(), Some(Syndrome::RemoteAccess));
        assert!(pair.left.reset().is_err());

        device_qp.detach_device(LONG).unwrap();
        assert_eq!(pair.left.failure(), Some(FailureCause::Work(told)));
        pair.left.reset().unwrap();
        pair.right.abort().unwrap();
        drain(&pair.right);
        let (left, right) = (pair.left.endpoint().unwrap(), pair.right.endpoint().unwrap());
        pair.left.connect(&right, ConnectOptions::default()).unwrap();
        pair.right.connect(&left, ConnectOptions::default()).unwrap();
        let slices = [region.slice(..8).unwrap()];
        let target = region.remote().slice(16..24).unwrap();
        pair.left.post_send(WorkRequest::write(&slices, target)).unwrap();
        assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
    }
}

#[test]
fn a_peer_that_is_gone_is_told_within_the_time_out() {
    let Some(calls) = calls("a_peer_that_is_gone_is_told_within_the_time_out") else { return };
    let Pair { pd, left, right, device: _device } =
        Pair::with(QueuePairConfig::default(), ConnectOptions::default().timeout(8).retry_count(1));
    let region = MemoryRegion::allocate(&pd, 64, gdsync::Access::all()).unwrap();
    let device_qp = hand_over(&left);
    drop(right);
    let (ended, ticket) = calls.call(&device_qp.data(), &put(&region, region.rkey()));
    assert_eq!((ended, calls.wait(&device_qp.data(), ticket, LONG)), (Ended::Ok, Ended::Failed));
    assert_eq!(calls.syndrome(&device_qp.data()), Syndrome::RetryExceeded as u32);
}

#[test]
fn an_abort_ends_every_wait() {
    let Some(calls) = calls("an_abort_ends_every_wait") else { return };
    let pair = Pair::new();
    let region = pair.open_region(64);
    let device_qp = hand_over(&pair.left);
    assert_eq!(calls.call(&device_qp.data(), &send(&region)).0, Ended::Ok);
    let qp = device_qp.data();
    let waiting = std::thread::spawn(move || calls.quiet(&qp, LONG));
    std::thread::sleep(SHORT);
    pair.left.abort().unwrap();
    assert_eq!(waiting.join().unwrap(), Ended::Failed);
    assert_eq!(calls.syndrome(&qp), Syndrome::WrFlush as u32);
    device_qp.detach_device(LONG).unwrap();
    assert_eq!(pair.left.failure(), Some(FailureCause::Aborted));
    pair.left.reset().unwrap();
}

#[test]
fn a_thread_that_stops_inside_a_call_fails_the_others_in_time() {
    let name = "a_thread_that_stops_inside_a_call_fails_the_others_in_time";
    let Some(calls) = calls(name) else { return };
    const STALLED: u64 = 0x2_0000;
    // Holding the doorbell: the card cannot be rung for published blocks.
    let pair = Pair::new();
    let region = pair.open_region(64);
    let device_qp = hand_over(&pair.left);
    let qp = device_qp.data();
    calls.stop_inside(&qp, 0);
    assert_eq!(calls.call(&qp, &put(&region, region.rkey())).0, Ended::Failed);
    assert_eq!((calls.error(&qp), calls.syndrome(&qp)), (STALLED, 0));
    device_qp.detach_device(LONG).unwrap();
    assert_eq!(pair.left.failure(), Some(FailureCause::Aborted));
    pair.left.reset().unwrap();

    // Holding a block: later blocks cannot be published.
    let pair = Pair::new();
    let device_qp = hand_over(&pair.left);
    let qp = device_qp.data();
    calls.stop_inside(&qp, 1);
    let error = device_qp.detach_device(LONG).unwrap_err();
    assert!(matches!(error, DeviceQpError::KernelActive { unpublished: 1, .. }), "{error}");
    let (ended, ticket) = calls.call(&qp, &put(&region, region.rkey()));
    assert_eq!((ended, ticket), (Ended::Failed, 2));
    assert_eq!(calls.error(&qp), STALLED);
    // The ticket was never published, but belongs to this queue.
    assert_eq!(calls.wait(&qp, ticket, LONG), Ended::Failed);
    device_qp.detach_device(LONG).unwrap();
    assert_eq!(pair.left.failure(), Some(FailureCause::Aborted));
    pair.left.reset().unwrap();

    // As before, without a thread that notices: the program aborts.
    let pair = Pair::new();
    let device_qp = hand_over(&pair.left);
    calls.stop_inside(&device_qp.data(), 1);
    assert!(device_qp.detach_device(LONG).is_err());
    pair.left.abort().unwrap();
    device_qp.detach_device(LONG).unwrap();
    pair.left.reset().unwrap();
}

#[test]
fn only_kernels_drive_an_attached_queue_pair() {
    let pair = Pair::new();
    let region = pair.open_region(64);
    let device_qp = hand_over(&pair.left);
    let handed_over = |error: QueueError| {
        assert!(
            matches!(error, QueueError::State(StateError::DeviceAttached { qpn })
                | QueueError::Poll(PollError::DeviceAttached { qpn }) if qpn == pair.left.number()),
            "{error}"
        );
        assert!(error.to_string().contains("detach_device"), "{error}");
    };
    let slices = [region.slice(..8).unwrap()];
    handed_over(pair.left.prepare(WorkRequest::send(&slices)).unwrap_err());
    handed_over(pair.left.post_send(WorkRequest::send(&slices)).unwrap_err());
    handed_over(pair.left.send_cq().poll().unwrap_err().into());
    handed_over(pair.left.send_cq().prepare_wait().unwrap_err());
    let error = pair.left.reset().unwrap_err();
    assert!(matches!(error, ResetError::Blocked { blocker: ResetBlocker::Kernel, .. }), "{error}");
    assert!(matches!(
        refused(&pair.left),
        DeviceQpError::NotReady(QueueError::State(StateError::DeviceAttached { .. }))
    ));
    assert_eq!(pair.left.failure(), None);
    // No other queue may complete in its queue.
    let queue = pair.left.send_cq();
    let other = sharing(&pair.pd, QueuePairConfig::default(), &queue, &queue).unwrap();
    handed_over(other.post_recv(&[], 1).unwrap_err());
    drop(other);
    // The CPU keeps the receives.
    pair.left.post_recv(&[region.slice(8..16).unwrap()], 4).unwrap();
    pair.right.post_send(WorkRequest::send_inline(b"received")).unwrap();
    assert_eq!(poll(&pair.left.recv_cq()).wr_id, 4);
    device_qp.detach_device(Duration::ZERO).unwrap();
    pair.right.post_recv(&[region.slice(16..24).unwrap()], 5).unwrap();
    pair.left.post_send(WorkRequest::send(&slices)).unwrap();
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
}

/// A device that does not reach pieces of that many bytes: once, or never.
struct Short {
    cpu: Cpu,
    len: usize,
    once: bool,
    refused: AtomicBool,
}

impl Short {
    fn new(len: usize, once: bool) -> Self {
        Short { cpu: Cpu::new(), len, once, refused: AtomicBool::new(false) }
    }
}

// SAFETY: forwards to the inner stream; a refused address is not returned.
unsafe impl MemOpStream for Short {
    fn caps(&self) -> MemOpCaps {
        self.cpu.caps()
    }

    fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
        let again = self.refused.load(Ordering::Relaxed) && self.once;
        if len == self.len && !again {
            self.refused.store(true, Ordering::Relaxed);
            return Err(StreamError::Unreachable { addr, reason: "not on this device".to_owned() });
        }
        self.cpu.translate(addr, len)
    }

    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        // SAFETY: the caller's.
        unsafe { self.cpu.submit(ops) }
    }

    fn wait_idle(&self, timeout: Duration) -> Result<bool, StreamError> {
        self.cpu.wait_idle(timeout)
    }
}

#[test]
fn a_register_out_of_reach_becomes_a_mailbox() {
    let Some(calls) = calls("a_register_out_of_reach_becomes_a_mailbox") else { return };
    let pair = Pair::new();
    let region = pair.open_region(64);
    // The register has 8 bytes, and so has the mailbox after it.
    let device_qp = pair.left.attach_device(&Short::new(8, true), &options()).unwrap();
    let expected = Doorbells::Proxy { reason: "not on this device".to_owned() };
    assert_eq!(device_qp.doorbells(), &expected);
    region.word64(0).unwrap().store(9);
    assert_eq!(calls.call(&device_qp.data(), &put(&region, region.rkey())).0, Ended::Ok);
    assert_eq!(calls.quiet(&device_qp.data(), LONG), Ended::Ok);
    assert_eq!(region.word64(8).unwrap().load(), 9);
    device_qp.detach_device(LONG).unwrap();
    drop(device_qp);

    // Whatever cannot be reached, the queue pair is unchanged.
    for (len, once, path) in [
        (8, true, DoorbellPath::Direct),
        (8, false, DoorbellPath::Auto),
        (8, false, DoorbellPath::Proxy),
        (4, true, DoorbellPath::Auto),
        (320, true, DoorbellPath::Auto),
    ] {
        let refused = pair.left.attach_device(&Short::new(len, once), &options().doorbells(path));
        let error = refused.unwrap_err();
        assert!(matches!(error, DeviceQpError::Unreachable(_)), "{error}");
        assert!(error.to_string().contains("not on this device"), "{error}");
        drop(hand_over(&pair.left));
    }
}

#[test]
fn only_a_quiet_queue_pair_is_handed_over() {
    let pair = Pair::new();
    let region = pair.open_region(64);
    let slices = [region.slice(..8).unwrap()];
    let request = || WorkRequest::write(&slices, region.remote().slice(8..16).unwrap());

    let prepared = pair.left.prepare(request()).unwrap();
    assert!(matches!(refused(&pair.left), DeviceQpError::Sends { sends: 1, .. }));
    let wait = pair.left.send_cq().prepare_wait().unwrap();
    cpu().post(gdsync::Batch::new().send(prepared)).unwrap();
    assert!(matches!(refused(&pair.left), DeviceQpError::Sends { sends: 1, .. }));
    poll(&pair.left.send_cq());
    assert!(matches!(refused(&pair.left), DeviceQpError::Waits { waits: 1, .. }));
    drop(wait);
    // An unsignaled send is done only when a later one is.
    pair.left.post_send(request().unsignaled()).unwrap();
    assert!(matches!(refused(&pair.left), DeviceQpError::Sends { sends: 1, .. }));
    pair.left.post_send(request()).unwrap();
    poll(&pair.left.send_cq());
    drop(hand_over(&pair.left));

    let fresh = QueuePair::new(&pair.pd, QueuePairConfig::default()).unwrap();
    assert!(matches!(
        refused(&fresh),
        DeviceQpError::NotReady(QueueError::State(StateError::NotConnected { .. }))
    ));
    pair.left.abort().unwrap();
    assert!(matches!(
        refused(&pair.left),
        DeviceQpError::NotReady(QueueError::State(StateError::Failed { .. }))
    ));
    let datagrams = QueuePair::new(&pair.pd, QueuePairConfig::default().transport(Transport::Ud)).unwrap();
    assert!(matches!(refused(&datagrams), DeviceQpError::Transport { transport: Transport::Ud, .. }));

    let queue = CompletionQueue::new(&pair.device, 64).unwrap();
    let make =
        || QueuePair::new(&pair.pd, QueuePairConfig::default().completion_queues(&queue, &queue)).unwrap();
    let (left, right) = (make(), make());
    left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    assert!(matches!(refused(&left), DeviceQpError::SharedCompletionQueue { .. }));
}

#[test]
fn what_is_dropped_in_the_middle_is_aborted() {
    let Some(calls) = calls("what_is_dropped_in_the_middle_is_aborted") else { return };
    let pair = Pair::new();
    let region = pair.open_region(64);
    let device_qp = hand_over(&pair.left);
    assert_eq!(calls.call(&device_qp.data(), &send(&region)).0, Ended::Ok);
    drop(device_qp);
    assert_eq!(pair.left.failure(), Some(FailureCause::Aborted));
    assert!(matches!(pair.left.reset(), Err(ResetError::Blocked { blocker: ResetBlocker::Kernel, .. })));

    // The other way round: the queue pair's handle is dropped first, and the kernel gets an error.
    let Pair { left, right: _right, pd: _pd, device: _device } = Pair::new();
    let device_qp = hand_over(&left);
    assert_eq!(calls.call(&device_qp.data(), &send(&region)).0, Ended::Ok);
    drop(left);
    assert_eq!(calls.quiet(&device_qp.data(), LONG), Ended::Failed);
    device_qp.detach_device(LONG).unwrap();
}
