use super::*;
use crate::queue::test_ring;
use gdsync_sys::prm::wqe::CtrlSeg;
use std::sync::atomic::Ordering;
use zerocopy::FromBytes;

const REGISTER: HostAddr = HostAddr(0x9000);

fn queue(blocks: u32) -> SendState {
    SendState::new(test_ring(blocks, BASIC_BLOCK), 0x42, REGISTER)
}

fn request(body: usize, wr_id: u64) -> Encoded {
    Encoded {
        body: (0..body).map(|i| i as u8 ^ wr_id as u8).collect(),
        opcode: Opcode::Send,
        flags: CtrlFlags::CQ_UPDATE,
        immediate: 0,
        wr_id,
        regions: Vec::new(),
    }
}

/// A work request as the card reads it: its blocks, from anywhere in the ring.
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
            queue.prepare(request(0, i.into()));
            assert!(queue.retire(i as u16).is_some());
        }
        // 5 blocks: 16 + 300 bytes.
        let (_, bell) = queue.prepare(request(300, 7));
        let bytes = read(&queue, start, 5);
        assert_eq!(bytes[16..316], (0..300).map(|i| i as u8 ^ 7).collect::<Vec<u8>>()[..]);
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
        queue.prepare(request(8, i.into()));
        assert_eq!(control(&queue, i).index(), i as u16);
        let retired = queue.retire(i as u16).unwrap();
        assert_eq!((retired.wr_id, retired.entries), (i.into(), 1));
    }
}

#[test]
fn a_full_queue_names_what_is_free() {
    let mut queue = queue(4);
    queue.prepare(request(100, 0));
    assert!(queue.check_room(2).is_ok());
    let error = queue.check_room(3).unwrap_err();
    assert!(matches!(error, QueueError::SendQueueFull { needed: 3, free: 2, capacity: 4 }));
}

#[test]
fn the_newest_is_rolled_back_and_others_become_nops() {
    let mut queue = queue(8);
    let serials: Vec<u64> = (0..3).map(|i| queue.prepare(request(100, i)).0).collect();
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

#[test]
fn an_awaited_send_stays_as_a_nop() {
    let mut queue = queue(8);
    let serial = queue.prepare(request(0, 1)).0;
    assert_eq!(queue.cancel(serial, |removed| removed == 0), Removed::default());
    assert_eq!(control(&queue, 0).opcode(), Ok(Opcode::Nop));
    assert_eq!(queue.cancel(serial, |_| false), Removed::default(), "only once");
    let retired = queue.retire(0).unwrap();
    assert!(retired.cancelled && retired.signaled == 1);
}

#[test]
fn sends_are_posted_in_the_order_of_preparation() {
    let lane = Lane::new(0).unwrap();
    let mut queue = queue(8);
    let serials: Vec<u64> = (0..3).map(|i| queue.prepare(request(0, i)).0).collect();
    let error = queue.post(serials[1], &lane, Ticket(1)).unwrap_err();
    assert!(matches!(error, QueueError::OutOfOrder { qpn: 0x42, serial: 1, expected: 0 }));
    queue.cancel(serials[0], |_| false);
    let before = queue.post(serials[1], &lane, Ticket(1)).unwrap();
    assert!(matches!(before, Before::Other(None)), "a dropped one is passed over");
    let other = Lane::new(0).unwrap();
    let error = queue.post(serials[2], &other, Ticket(1)).unwrap_err();
    assert!(matches!(error, QueueError::OtherStream { .. }));
    lane.declare_passed(Ticket(1));
    let before = queue.post(serials[2], &other, Ticket(1)).unwrap();
    queue.undo_post(serials[2], before);
    assert!(Arc::ptr_eq(&queue.last_post.as_ref().unwrap().lane, &lane));
    let before = queue.post(serials[2], &lane, Ticket(7)).unwrap();
    assert!(matches!(before, Before::SameLane(Ticket(1), false)));
    queue.undo_post(serials[2], before);
    assert_eq!(queue.unsettled().unwrap().ticket, Ticket(1));
    assert!(queue.post(serials[2], &other, Ticket(1)).is_ok());
}

#[test]
fn unsignaled_requests_retire_with_the_next_signaled_one() {
    let lane = Lane::new(0).unwrap();
    let mut queue = queue(8);
    for wr_id in 0..4 {
        let mut request = request(0, wr_id);
        request.flags.set(CtrlFlags::CQ_UPDATE, wr_id == 3);
        let serial = queue.prepare(request).0;
        queue.post(serial, &lane, Ticket(1)).unwrap();
    }
    assert!(queue.in_flight() && queue.unsettled().is_some());
    let retired = queue.retire(3).unwrap();
    assert_eq!((retired.wr_id, retired.entries, retired.signaled), (3, 4, 1));
    assert!(!queue.in_flight() && queue.unsettled().is_none() && queue.free() == 8);
    assert!(queue.retire(3).is_none(), "nothing is outstanding");
}

#[test]
fn a_failed_queue_hands_over_what_is_unposted_once_streams_have_passed() {
    let lane = Lane::new(0).unwrap();
    let mut queue = queue(8);
    let first = queue.prepare(request(0, 0)).0;
    queue.post(first, &lane, Ticket(1)).unwrap();
    queue.prepare(request(100, 1));
    assert!(queue.flush().is_none(), "a stream has still to post the first");
    lane.declare_passed(Ticket(1));
    let bell = queue.flush().unwrap();
    assert_eq!((bell.record, bell.value), (doorbell::record(3), control(&queue, 1).doorbell()));
    assert!(queue.flush().is_none(), "nothing is left");
}
