use super::*;
use crate::memory::HostAddr;
use crate::memory::timeline::{Timeline, TimelinePoint};
use crate::queue::request::Limits;
use crate::queue::send::Handover;
use crate::queue::test_ring;
use crate::queue::{QueueFull, WorkRequest};
use gdsync_sys::prm::cqe::CQE_SIZE;
use gdsync_sys::prm::wqe::{BASIC_BLOCK, CtrlSeg, Opcode};
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::FromBytes;

const LIMITS: Limits = Limits { inline: 960, ..crate::queue::request::tests::LIMITS };
const WAIT: CardWait = CardWait::Ticket { lkey: 0x77, addr: 0x1000, ticket: 9 };

fn queue(blocks: u32, handover: Handover) -> (SendState, &'static AtomicU64) {
    let register: &'static AtomicU64 = Box::leak(Box::default());
    let ring = test_ring(blocks, BASIC_BLOCK);
    (SendState::new(ring, 0x42, HostAddr(register.as_ptr() as u64)).handed_over(handover), register)
}

fn completions(entries: u32) -> CompletionState {
    CompletionState::new(test_ring(entries, CQE_SIZE))
}

/// Prepares a request; returns its serial number and the block after it.
fn prepare(
    queue: &mut SendState,
    request: &WorkRequest<'_>,
    completions: &mut CompletionState,
) -> Result<(u64, u32), QueueError> {
    let (serial, _) = queue.prepare([], request, &LIMITS, completions)?;
    Ok((serial, queue.head))
}

fn block_at(queue: &SendState, index: u32) -> Vec<u8> {
    (0..16).flat_map(|word| queue.ring.word(index, word * 4).load(Ordering::Relaxed).to_ne_bytes()).collect()
}

fn record(queue: &SendState) -> u16 {
    doorbell::record_value(queue.ring.record().load(Ordering::Relaxed))
}

#[test]
fn a_release_is_a_wait_and_a_send_en_rung_at_once() {
    let (mut queue, register) = queue(4, Handover::Doorbells);
    let mut completions = completions(8);
    for round in 0..40_000u32 {
        let enable = Enable { qpn: 0x1234, until: round as u16 };
        // SAFETY: the register is leaked memory.
        let at = unsafe { queue.post_enable(WAIT, enable, &mut completions) }.unwrap();
        assert_eq!(at, 2 * round + 1);
        let bytes = block_at(&queue, at);
        let ctrl = CtrlSeg::read_from_bytes(&bytes[..16]).unwrap();
        assert_eq!((ctrl.opcode(), ctrl.ds(), ctrl.index()), (Ok(Opcode::SendEnable), 2, at as u16));
        let segment = IndexSeg::read_from_bytes(&bytes[16..32]).unwrap();
        assert_eq!((segment.index(), segment.number()), (round & 0xffff, 0x1234));
        let wait = CtrlSeg::read_from_bytes(&block_at(&queue, at - 1)[..16]).unwrap();
        assert_eq!((wait.opcode(), wait.opmod(), wait.ds()), (Ok(Opcode::Wait), 1, 3));
        assert_eq!((record(&queue), register.load(Ordering::Relaxed)), ((at + 1) as u16, ctrl.doorbell()));
        let retired = queue.retire(at as u16).unwrap();
        assert!(retired.hidden && retired.entries == 2 && retired.signaled == 0);
        (0..2).for_each(|_| completions.unreserve(false));
    }
}

#[test]
fn a_release_that_has_no_room_changes_nothing() {
    let enable = Enable { qpn: 1, until: 1 };
    // No room in the ring for its second block, and then in the completion queue.
    for (blocks, entries) in [(4, 64), (64, 4)] {
        let (mut queue, register) = queue(blocks, Handover::Doorbells);
        let mut completions = completions(entries);
        for _ in 0..3 {
            let request = WorkRequest::nop();
            let book = |signaled: bool| completions.reserve(signaled);
            // SAFETY: the register is leaked memory.
            unsafe { queue.post_now(&request, &LIMITS, book) }.unwrap();
        }
        let before = (queue.head, record(&queue), register.load(Ordering::Relaxed));
        // SAFETY: as above.
        let error = unsafe { queue.post_enable(WAIT, enable, &mut completions) }.unwrap_err();
        assert!(
            matches!(
                error,
                QueueError::Full(QueueFull::SendQueue { .. } | QueueFull::CompletionQueue { .. })
            ),
            "{error}"
        );
        assert_eq!((queue.head, record(&queue), register.load(Ordering::Relaxed)), before);
        assert_eq!(queue.outstanding().entries, 3);
        assert!(completions.has_room(1) && !completions.has_room(if entries == 4 { 2 } else { 62 }));
    }
}

#[test]
fn a_slaves_send_rings_nothing_and_can_be_taken_back() {
    let (mut queue, register) = queue(4, Handover::Master);
    let mut completions = completions(8);
    let request = WorkRequest::send_inline(b"first");
    let (serial, until) = prepare(&mut queue, &request, &mut completions).unwrap();
    assert_eq!((serial, until, record(&queue)), (0, 1, 0));
    queue.publish_record();
    // Two blocks.
    let long = WorkRequest::send_inline(&[7; 100]);
    assert_eq!(prepare(&mut queue, &long, &mut completions).unwrap(), (1, 3));
    queue.unprepare_newest(&mut completions);
    assert_eq!((queue.head, queue.outstanding().entries, record(&queue)), (1, 1, 1));
    assert!(completions.has_room(7) && !completions.has_room(8));
    assert_eq!(register.load(Ordering::Relaxed), 0);
    // A dropped send stays as a NOP, as its release is in the master's ring.
    assert_eq!(queue.cancel(serial, |_| false).entries, 0);
    let ctrl = CtrlSeg::read_from_bytes(&block_at(&queue, 0)[..16]).unwrap();
    assert_eq!(ctrl.opcode(), Ok(Opcode::Nop));
}

#[test]
fn releases_and_posts_of_the_cpu_are_outstanding_one_kind_at_a_time() {
    let (mut queue, _register) = queue(8, Handover::Master);
    let mut completions = completions(32);
    let timeline = Timeline::new(0).unwrap();
    let request = WorkRequest::send_inline(b"abc");
    let other = |error| matches!(error, QueueError::Order(OrderError::MixedCpuAndMasterSends { qpn: 0x42 }));
    for lap in 0..5u16 {
        let first = lap * 4;
        // SAFETY: the register is leaked memory.
        let post = |queue: &mut SendState| unsafe { queue.post_now(&request, &LIMITS, |_| Ok(())).map(drop) };
        post(&mut queue).unwrap();
        post(&mut queue).unwrap();
        assert!(other(prepare(&mut queue, &request, &mut completions).unwrap_err()));
        queue.retire(first).unwrap();
        assert!(other(prepare(&mut queue, &request, &mut completions).unwrap_err()));
        queue.retire(first + 1).unwrap();
        let serials = [0, 1].map(|_| prepare(&mut queue, &request, &mut completions).unwrap().0);
        let error = post(&mut queue).unwrap_err();
        assert!(matches!(error, QueueError::Order(OrderError::OutOfOrder { .. })), "{error}");
        for serial in serials {
            queue.post(serial, &timeline, TimelinePoint(u64::from(lap) + 1)).unwrap();
        }
        timeline.declare_passed(TimelinePoint(u64::from(lap) + 1));
        // The stream has passed it, but it may not be released yet.
        assert!(other(post(&mut queue).unwrap_err()));
        queue.retire(first + 2).unwrap();
        assert!(other(post(&mut queue).unwrap_err()));
        queue.retire(first + 3).unwrap();
    }
}

#[test]
fn a_failed_slave_is_rung_for_all_it_has_whatever_streams_have_to_do() {
    let (mut queue, _register) = queue(8, Handover::Master);
    let mut completions = completions(32);
    let timeline = Timeline::new(0).unwrap();
    let request = WorkRequest::send_inline(b"abc");
    let serial = prepare(&mut queue, &request, &mut completions).unwrap().0;
    queue.post(serial, &timeline, TimelinePoint(1)).unwrap();
    let bell = queue.flush().unwrap();
    assert_eq!(bell.record, doorbell::record(1));
    assert!(queue.flush().is_none(), "once");
}
