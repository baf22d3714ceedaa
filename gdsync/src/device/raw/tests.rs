#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use super::*;
use crate::batch::Batch;
use crate::qp::life::connect;
use crate::queue::error::{OrderError, StateError};
use crate::queue::request::WorkRequest;
use crate::stream::{SoftStream, Stream};
use crate::verbs::ConnectOptions;
use crate::verbs::device::Device;
use crate::verbs::mr::{Access, MemoryRegion};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A queue pair connected to itself, with receives posted.
struct Loop {
    queue_pair: QueuePair,
    region: MemoryRegion,
}

fn connected() -> Loop {
    let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
    let queue_pair = QueuePair::new(&pd, QueuePairConfig::default()).unwrap();
    queue_pair.connect(&queue_pair.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let region = MemoryRegion::allocate(&pd, 64, Access::LOCAL_WRITE).unwrap();
    (0..8).for_each(|i| queue_pair.post_recv(&[region.slice(32..).unwrap()], i).unwrap());
    Loop { queue_pair, region }
}

impl Loop {
    fn send(&self, wr_id: u64) -> PreparedSend {
        let slices = [self.region.slice(..8).unwrap()];
        self.queue_pair.prepare(WorkRequest::send(&slices).wr_id(wr_id)).unwrap()
    }

    fn poll_until(&self, queue: &CompletionQueue) -> u64 {
        loop {
            if let Some(completion) = queue.poll_unawaited().unwrap() {
                assert!(completion.status.is_ok());
                return completion.wr_id;
            }
            std::thread::yield_now();
        }
    }
}

fn word32(addr: HostAddr) -> &'static AtomicU32 {
    // SAFETY: a word of a queue that the test keeps, or of a timeline, which is never freed.
    unsafe { AtomicU32::from_ptr(addr.get() as *mut u32) }
}

#[test]
fn a_kernel_rings_and_waits() {
    let side = connected();
    let (send_cq, recv_cq) = (side.queue_pair.send_cq(), side.queue_pair.recv_cq());
    for round in 0..3 {
        let ring = side.send(round).give_to_kernel().unwrap();
        let wait = send_cq.prepare_wait().unwrap().give_to_kernel().unwrap();
        // As the kernel does.
        word32(ring.record_at).store(ring.record, Ordering::SeqCst);
        // SAFETY: the register of a queue pair that is alive.
        unsafe { AtomicU64::from_ptr(ring.register.get() as *mut u64) }
            .store(ring.doorbell, Ordering::SeqCst);
        while !wait.condition.holds32(word32(wait.word_at).load(Ordering::Acquire), wait.value) {
            std::thread::yield_now();
        }
        assert_eq!(side.poll_until(&recv_cq), round);
        assert!(send_cq.poll_unawaited().unwrap().is_none(), "the kernel has not said that it has seen it");
        word32(wait.flag_at).store(wait.flag, Ordering::Release);
        assert_eq!(side.poll_until(&send_cq), round);
    }
}

#[test]
fn a_send_out_of_turn_is_not_given_to_a_kernel() {
    let side = connected();
    let (first, second) = (side.send(0), side.send(1));
    assert!(matches!(second.give_to_kernel(), Err(QueueError::Order(OrderError::OutOfOrder { .. }))));
    assert!(first.give_to_kernel().is_ok());
}

#[test]
fn what_a_wait_is_prepared_for_is_not_polled_behind_streams() {
    let side = connected();
    let queue = side.queue_pair.recv_cq();
    let wait = queue.prepare_wait().unwrap();
    let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
    stream.post_send(side.send(0)).unwrap();
    assert_eq!(side.poll_until(&side.queue_pair.send_cq()), 0);
    assert!(queue.poll_unawaited().unwrap().is_none());
    // After the wait was abandoned, the completion is the CPU's, and the next wait is for the next completion.
    let index = wait.index();
    wait.leave_completion_to_cpu();
    assert_eq!(queue.prepare_wait().unwrap().index(), index + 1);
    assert_eq!(side.poll_until(&queue), 0);
}

#[test]
fn a_wait_that_the_stream_has_not_passed_is_in_the_way() {
    let side = connected();
    let queue = side.queue_pair.recv_cq();
    let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
    let gate = side.region.word32(16).unwrap();
    // SAFETY: a soft stream reaches host memory, which the region keeps.
    let same = unsafe { DeviceWord32::new(gate.addr().get()) }.unwrap();
    let batch = Batch::new().wait_value32(&same, Condition::Eq, 7);
    stream.post(batch.wait(queue.prepare_wait().unwrap())).unwrap();
    let other = Stream::new(SoftStream::new().unwrap()).unwrap();
    other.post_send(side.send(5)).unwrap();
    assert_eq!(side.poll_until(&side.queue_pair.send_cq()), 5);
    assert!(queue.poll_unawaited().unwrap().is_none());
    gate.store(7);
    assert_eq!(side.poll_until(&queue), 0);
    // SAFETY: the call is refused.
    assert!(unsafe { DeviceWord32::new(2) }.is_err());
}

#[test]
fn the_program_moves_its_queue_pair() {
    let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
    let queue_pair = QueuePair::unmanaged(&pd, QueuePairConfig::default()).unwrap();
    let region = MemoryRegion::allocate(&pd, 64, Access::LOCAL_WRITE).unwrap();
    // SAFETY: the region lives to the end.
    let slice =
        |at: u64| unsafe { queue_pair.registered().slice(region.addr().get() + at, 8, region.lkey()) };
    queue_pair.adopt_state();
    let refused = queue_pair.prepare(WorkRequest::send(&[slice(0)])).unwrap_err();
    assert!(matches!(refused, QueueError::State(StateError::NotConnected { .. })));
    // As the program does, by its calls.
    connect::to_init(&queue_pair.inner).unwrap();
    connect::connect(&queue_pair.inner, &queue_pair.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    *queue_pair.inner.life.lock() = crate::qp::QpState::Initialised;
    queue_pair.inner.life.is_ready.store(false, Ordering::Release);

    queue_pair.adopt_state();
    region.write(0, b"8 bytes!");
    queue_pair.post_recv(&[slice(32)], 3).unwrap();
    queue_pair.post_send(WorkRequest::send(&[slice(0)])).unwrap();
    while queue_pair.recv_cq().poll().unwrap().is_none() {
        std::thread::yield_now();
    }
    let mut got = [0; 8];
    region.read(32, &mut got);
    assert_eq!(&got, b"8 bytes!");
}
