use super::posting::PreviousPoint;
use super::*;
use crate::memory::timeline::{Timeline, TimelinePoint};
use crate::queue::completion::CompletionState;
use crate::queue::error::{OrderError, QueueFull};
use crate::queue::request::Limits;
use crate::queue::test_ring;
use crate::verbs::{Access, Device, MemoryRegion, ProtectionDomain};
use gdsync_sys::prm::cqe::CQE_SIZE;
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, Opcode};
use std::sync::atomic::Ordering;
use zerocopy::FromBytes;

const REGISTER: HostAddr = HostAddr(0x9000);

fn queue(blocks: u32) -> SendState {
    SendState::new(test_ring(blocks, BASIC_BLOCK), 0x42, REGISTER)
}

const LIMITS: Limits = Limits { inline: 960, ..crate::queue::request::tests::LIMITS };

fn payload(len: usize, wr_id: u64) -> Vec<u8> {
    (0..len).map(|i| i as u8 ^ wr_id as u8).collect()
}

impl SendState {
    fn prepare_bytes(&mut self, len: usize, wr_id: u64) -> u64 {
        let bytes = payload(len, wr_id);
        self.prepare_alone(&WorkRequest::send_inline(&bytes).wr_id(wr_id)).0
    }

    /// Prepares a request whose completion has room.
    fn prepare_alone(&mut self, request: &WorkRequest<'_>) -> (u64, Doorbell) {
        let mut completions = CompletionState::new(test_ring(1, CQE_SIZE));
        self.prepare([], request, &LIMITS, &mut completions).unwrap()
    }
}

/// Reads a work request as the card does: its blocks, from anywhere in the ring.
fn read(queue: &SendState, first: u32, blocks: u32) -> Vec<u8> {
    let words = (0..blocks).flat_map(|block| (0..16).map(move |word| (first.wrapping_add(block), word * 4)));
    words
        .flat_map(|(index, offset)| queue.ring.word(index, offset).load(Ordering::Relaxed).to_ne_bytes())
        .collect()
}

fn control(queue: &SendState, first: u32) -> CtrlSeg {
    CtrlSeg::read_from_bytes(&read(queue, first, 1)[..16]).unwrap()
}

#[test]
fn a_request_wraps_around_the_end_at_every_block() {
    for start in 0..8u32 {
        let mut queue = queue(8);
        for i in 0..start {
            queue.prepare_bytes(0, i.into());
            assert!(queue.retire(i as u16).is_some());
        }
        // 5 blocks: 16 + 4 + 296 bytes.
        let (_, bell) = queue.prepare_alone(&WorkRequest::send_inline(&payload(296, 7)));
        let bytes = read(&queue, start, 5);
        assert_eq!(bytes[20..316], payload(296, 7)[..]);
        assert_eq!(bytes[316..], [0; 4], "padding is zeroed");
        let ctrl = control(&queue, start);
        assert_eq!((ctrl.index(), ctrl.qpn(), ctrl.ds()), (start as u16, 0x42, 20));
        let record_at = HostAddr(queue.ring.record().as_ptr() as u64);
        let record = doorbell::record(start + 5);
        assert_eq!(bell, Doorbell { record_at, record, register: REGISTER, value: ctrl.doorbell() });
        assert_eq!(queue.doorbell_of(queue.entries.back().unwrap()), bell);
    }
}

#[test]
fn indices_survive_the_16_bit_wrap() {
    let mut queue = queue(4);
    for i in 0..70_000u32 {
        queue.check_room(1).unwrap();
        queue.prepare_bytes(8, i.into());
        assert_eq!(control(&queue, i).index(), i as u16);
        let retired = queue.retire(i as u16).unwrap();
        assert_eq!((retired.wr_id, retired.entries), (i.into(), 1));
    }
}

#[test]
fn a_full_queue_names_what_is_free() {
    let mut queue = queue(4);
    queue.prepare_bytes(100, 0);
    assert!(queue.check_room(2).is_ok());
    let error = queue.check_room(3).unwrap_err();
    assert!(matches!(error, QueueError::Full(QueueFull::SendQueue { needed: 3, free: 2, capacity: 4 })));
}

#[test]
fn the_newest_is_rolled_back_and_others_become_nops() {
    let mut queue = queue(8);
    let serials: Vec<u64> = (0..3).map(|i| queue.prepare_bytes(100, i)).collect();
    assert_eq!(queue.cancel(serials[0], |_| false), Removed::default());
    let ctrl = control(&queue, 0);
    assert_eq!((ctrl.opcode(), ctrl.ds(), ctrl.index()), (Ok(Opcode::Nop), 8, 0));
    assert!(ctrl.flags().contains(CtrlFlags::CQ_UPDATE), "its completion still comes");
    assert_eq!(queue.cancel(serials[2], |_| false), Removed { entries: 1, signaled: 1 });
    assert_eq!(queue.head, 4);
    assert_eq!(
        queue.cancel(serials[1], |_| false),
        Removed { entries: 2, signaled: 2 },
        "the NOP goes with it"
    );
    assert_eq!((queue.head, queue.entries.len()), (0, 0));
}

/// The WAITs of a dropped send, for which a stream would have rung, do not hold up later requests.
#[test]
fn the_waits_of_a_dropped_send_become_nops_with_it() {
    let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
    let region = MemoryRegion::allocate(&pd, 8, Access::LOCAL_WRITE).unwrap();
    let wait = CardWait::Ticket { lkey: region.lkey(), addr: 0x1000, ticket: 1 };
    let wait_of = || Some(WaitRequest { wait, region: Some(region.inner.clone()) });
    let mut completions = CompletionState::new(test_ring(16, CQE_SIZE));
    for waits_of in [[wait_of(), None], [None, wait_of()], [wait_of(), wait_of()]] {
        let waits = waits_of.iter().flatten().count() as u32;
        let mut queue = queue(8);
        let request = WorkRequest::send_inline(&[1]);
        let (dropped, _) =
            queue.prepare(waits_of.into_iter().flatten(), &request, &LIMITS, &mut completions).unwrap();
        let kept = queue.prepare_bytes(0, 7);
        assert_eq!(control(&queue, 0).opcode(), Ok(Opcode::Wait));
        assert_eq!(queue.cancel(dropped, |_| false), Removed::default());
        for block in 0..=waits {
            assert_eq!(control(&queue, block).opcode(), Ok(Opcode::Nop), "block {block} of {waits} waits");
        }
        assert_eq!(control(&queue, waits + 1).opcode(), Ok(Opcode::Send));
        assert_eq!(queue.cancel(kept, |_| false), Removed { entries: waits + 2, signaled: 2 });
    }
}

#[test]
fn an_awaited_send_stays_as_a_nop() {
    let mut queue = queue(8);
    let serial = queue.prepare_bytes(0, 1);
    assert_eq!(queue.cancel(serial, |removed| removed == 0), Removed::default());
    assert_eq!(control(&queue, 0).opcode(), Ok(Opcode::Nop));
    assert_eq!(queue.cancel(serial, |_| false), Removed::default(), "only once");
    let retired = queue.retire(0).unwrap();
    assert!(retired.hidden && retired.signaled == 1);
}

#[test]
fn sends_are_posted_in_the_order_of_preparation() {
    let timeline = Timeline::new(0).unwrap();
    let mut queue = queue(8);
    let serials: Vec<u64> = (0..3).map(|i| queue.prepare_bytes(0, i)).collect();
    let error = queue.post(serials[1], &timeline, TimelinePoint(1)).unwrap_err();
    assert!(matches!(error, QueueError::Order(OrderError::OutOfOrder { qpn: 0x42, serial: 1, expected: 0 })));
    queue.cancel(serials[0], |_| false);
    let before = queue.post(serials[1], &timeline, TimelinePoint(1)).unwrap();
    assert!(matches!(before, PreviousPost::Other(None)), "a dropped one is passed over");
    let other = Timeline::new(0).unwrap();
    let error = queue.post(serials[2], &other, TimelinePoint(1)).unwrap_err();
    assert!(matches!(error, QueueError::Order(OrderError::OtherStream { .. })));
    timeline.declare_passed(TimelinePoint(1));
    let before = queue.post(serials[2], &other, TimelinePoint(1)).unwrap();
    queue.undo_post(serials[2], before);
    assert!(Arc::ptr_eq(&queue.last_post.as_ref().unwrap().timeline, &timeline));
    let before = queue.post(serials[2], &timeline, TimelinePoint(7)).unwrap();
    assert!(matches!(
        before,
        PreviousPost::SameTimeline(PreviousPoint { point: TimelinePoint(1), settled: false })
    ));
    queue.undo_post(serials[2], before);
    assert_eq!(queue.unsettled().unwrap().point, TimelinePoint(1));
    assert!(queue.post(serials[2], &other, TimelinePoint(1)).is_ok());
}

#[test]
fn unsignaled_requests_retire_with_the_next_signaled_one() {
    let timeline = Timeline::new(0).unwrap();
    let mut queue = queue(8);
    for wr_id in 0..4 {
        let request = WorkRequest::send(&[]).wr_id(wr_id);
        let request = if wr_id == 3 { request } else { request.unsignaled() };
        let serial = queue.prepare_alone(&request).0;
        queue.post(serial, &timeline, TimelinePoint(1)).unwrap();
    }
    assert!(queue.in_flight() && queue.unsettled().is_some());
    let retired = queue.retire(3).unwrap();
    assert_eq!((retired.wr_id, retired.entries, retired.signaled), (3, 4, 1));
    assert!(!queue.in_flight() && queue.unsettled().is_none() && queue.free() == 8);
    assert!(queue.retire(3).is_none(), "nothing is outstanding");
}

#[test]
fn a_failed_queue_hands_over_what_is_unposted_once_streams_have_passed() {
    let timeline = Timeline::new(0).unwrap();
    let mut queue = queue(8);
    let first = queue.prepare_bytes(0, 0);
    queue.post(first, &timeline, TimelinePoint(1)).unwrap();
    queue.prepare_bytes(100, 1);
    assert!(queue.flush().is_none(), "a stream has still to post the first");
    timeline.declare_passed(TimelinePoint(1));
    let bell = queue.flush().unwrap();
    assert_eq!((bell.record, bell.value), (doorbell::record(3), control(&queue, 1).doorbell()));
    assert!(queue.flush().is_none(), "nothing is left");
}

fn ringing(blocks: u32) -> SendState {
    let register: &'static std::sync::atomic::AtomicU64 = Box::leak(Box::default());
    SendState::new(test_ring(blocks, BASIC_BLOCK), 0x42, HostAddr(register.as_ptr() as u64))
}

fn post_now(
    queue: &mut SendState,
    book: impl FnOnce(bool) -> Result<(), QueueError>,
) -> Result<(), QueueError> {
    // SAFETY: the register is leaked memory.
    unsafe { queue.post_now(&WorkRequest::send_inline(b"abc").wr_id(3), &LIMITS, book) }.map(drop)
}

#[test]
fn a_send_posted_at_once_rings_the_card() {
    let mut queue = ringing(4);
    for i in 0..70_000u32 {
        let book = |signaled: bool| {
            assert!(signaled);
            Ok(())
        };
        post_now(&mut queue, book).unwrap();
        assert_eq!(queue.ring.record().load(Ordering::Relaxed), doorbell::record(i.wrapping_add(1)));
        // SAFETY: the register is leaked memory.
        let register = unsafe { std::sync::atomic::AtomicU64::from_ptr(queue.register.get() as *mut u64) };
        assert_eq!(register.load(Ordering::Relaxed), control(&queue, i).doorbell());
        assert!(queue.in_flight());
        assert_eq!(queue.retire(i as u16).unwrap().wr_id, 3);
    }
}

#[test]
fn a_send_is_posted_at_once_only_when_its_turn_has_come() {
    let timeline = Timeline::new(0).unwrap();
    let mut queue = ringing(8);
    let serial = queue.prepare_bytes(0, 1);
    let error = post_now(&mut queue, |_| Ok(())).unwrap_err();
    assert!(
        matches!(error, QueueError::Order(OrderError::OutOfOrder { serial: 1, expected: 0, .. })),
        "{error}"
    );
    queue.post(serial, &timeline, TimelinePoint(1)).unwrap();
    let error = post_now(&mut queue, |_| Ok(())).unwrap_err();
    assert!(matches!(error, QueueError::Order(OrderError::OtherStream { .. })), "{error}");
    timeline.declare_passed(TimelinePoint(1));
    queue.count_proxied(true);
    assert!(post_now(&mut queue, |_| Ok(())).is_err(), "the proxy has not rung it yet");
    queue.count_proxied(false);
    let full = |_| Err(QueueError::Full(QueueFull::CompletionQueue { entries: 1 }));
    assert!(matches!(post_now(&mut queue, full), Err(QueueError::Full(QueueFull::CompletionQueue { .. }))));
    assert_eq!((queue.head, queue.entries.len()), (1, 1), "nothing has changed");
    post_now(&mut queue, |_| Ok(())).unwrap();
    // A stream may continue after the CPU, and the other way round.
    let serial = queue.prepare_bytes(0, 2);
    queue.post(serial, &timeline, TimelinePoint(2)).unwrap();
    timeline.declare_passed(TimelinePoint(2));
    post_now(&mut queue, |_| Ok(())).unwrap();
    let serial = queue.prepare_bytes(0, 2);
    queue.cancel(serial, |_| false);
    post_now(&mut queue, |_| Ok(())).unwrap();
    assert_eq!(queue.retire(queue.head.wrapping_sub(1) as u16).unwrap().entries, 5);
}
