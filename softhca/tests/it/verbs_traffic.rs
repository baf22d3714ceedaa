//! Messages and failures, made by hand from the wire formats.

use crate::verbs_bed::*;
use gdsync_sys::prm::cqe::{CqeOpcode, Syndrome};
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, DataSeg, Opcode, RemoteAddrSeg};
use gdsync_sys::verbs::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use zerocopy::IntoBytes;

const ALL_ACCESS: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

fn keys(mr: *mut ibv_mr) -> (u32, u64) {
    // SAFETY: registered.
    unsafe { ((*mr).lkey, (*mr).addr as u64) }
}

struct Buffer {
    memory: Box<[u8]>,
    mr: *mut ibv_mr,
}

impl Buffer {
    fn new(bed: &Bed, fill: u8) -> Self {
        let mut memory = vec![fill; 64].into_boxed_slice();
        let mr = bed.register(&mut memory, ALL_ACCESS);
        Buffer { memory, mr }
    }

    fn segment(&self, len: u32) -> DataSeg {
        let (key, addr) = keys(self.mr);
        DataSeg::new(len, key, addr)
    }
}

#[test]
fn a_ping_by_hand() {
    let (bed, peer) = (Bed::new(), Bed::new());
    let (cq, peer_cq) = (bed.cq(15), peer.cq(15));
    let (qp, peer_qp) = (bed.qp(cq), peer.qp(peer_cq));
    assert_eq!(bed.lid(), peer.lid(), "two contexts, one card");
    connect(qp, qpn(peer_qp), peer.lid());
    connect(peer_qp, qpn(qp), bed.lid());
    let (source, target) = (Buffer::new(&bed, 0x5a), Buffer::new(&peer, 0));
    let (rings, peer_rings) = (describe_qp(qp), describe_qp(peer_qp));
    let (entries, peer_entries) = (describe_cq(cq), describe_cq(peer_cq));

    // More messages than either ring has entries, so that every ring wraps.
    for i in 0..40u32 {
        let scatter = [target.segment(64), DataSeg::terminator()];
        receive(&peer_rings, i, scatter.as_bytes());
        let ctrl = CtrlSeg::new(Opcode::SendImm, i as u16, qpn(qp), 2, CtrlFlags::CQ_UPDATE, i.to_be_bytes());
        send(&rings, i, ctrl, source.segment(i + 1).as_bytes());

        let sent = completion(&entries, i);
        assert_eq!(
            (sent.opcode(), sent.wqe_counter(), sent.qpn()),
            (Ok(CqeOpcode::Requester), i as u16, qpn(qp))
        );
        let got = completion(&peer_entries, i);
        assert_eq!((got.opcode(), got.wqe_counter()), (Ok(CqeOpcode::RespSendImm), i as u16));
        assert_eq!((got.byte_count(), got.imm(), got.qpn()), (i + 1, i.to_be_bytes(), qpn(peer_qp)));
        for (described, index) in [(&entries, i), (&peer_entries, i)] {
            // SAFETY: the queue's consumer index.
            unsafe { described.dbrec.write_volatile(gdsync_sys::prm::doorbell::ci_record(index + 1)) };
        }
    }
    // SAFETY: nothing is in flight any more; read as the card left it.
    let bytes = unsafe { std::ptr::read_volatile(target.memory.as_ptr().cast::<[u8; 64]>()) };
    assert_eq!((bytes[..40].iter().all(|b| *b == 0x5a), bytes[40]), (true, 0));

    [qp, peer_qp].into_iter().for_each(destroy_qp);
    [cq, peer_cq].into_iter().for_each(destroy_cq);
    [source.mr, target.mr].into_iter().for_each(deregister);
    bed.close();
    peer.close();
}

/// As a GPU rings: no thread of the process announces the store to the register.
#[test]
fn naps_after_which_the_card_finds_a_doorbell_are_counted() {
    let bed = Bed::new();
    let cq = bed.cq(15);
    let qp = bed.qp(cq);
    connect(qp, qpn(qp), bed.lid());
    let (source, target) = (Buffer::new(&bed, 1), Buffer::new(&bed, 0));
    let (rings, entries) = (describe_qp(qp), describe_cq(cq));
    let before = softhca::card::late_wakeups();
    for i in 0..5u32 {
        // It naps by now.
        std::thread::sleep(Duration::from_millis(5));
        let remote = RemoteAddrSeg::new(keys(target.mr).1, keys(target.mr).0);
        let ctrl = CtrlSeg::new(Opcode::RdmaWrite, i as u16, qpn(qp), 3, CtrlFlags::CQ_UPDATE, [0; 4]);
        send(&rings, i, ctrl, [remote.as_bytes(), source.segment(8).as_bytes()].concat().as_slice());
        completion(&entries, i);
    }
    let after = softhca::card::late_wakeups();
    let (late, time) = (after.count - before.count, after.time - before.time);
    assert!(late > 0 && time >= Duration::from_micros(30), "{late} naps of {time:?}");
    destroy_qp(qp);
    destroy_cq(cq);
    [source.mr, target.mr].into_iter().for_each(deregister);
    bed.close();
}

#[test]
fn a_thread_domains_register_rings_its_queue_pair() {
    let bed = Bed::new();
    let cq = bed.cq(15);
    // SAFETY: everything named is alive, and goes in order.
    unsafe {
        let td = (api().alloc_td)(bed.context, &mut ibv_td_init_attr::default());
        let mut domain = ibv_parent_domain_init_attr { pd: bed.pd, td, ..zeroed() };
        let parent = (api().alloc_parent_domain)(bed.context, &mut domain);
        let mut attr = ibv_qp_init_attr_ex { pd: parent, ..bed.qp_attr(cq, cq) };
        let qp = (api().mlx5dv_create_qp)(bed.context, &mut attr, NULL.cast());
        connect(qp, qpn(qp), bed.lid());
        let (source, target) = (Buffer::new(&bed, 7), Buffer::new(&bed, 0));
        let (rkey, addr) = keys(target.mr);
        let mut segments = RemoteAddrSeg::new(addr, rkey).as_bytes().to_vec();
        segments.extend(source.segment(64).as_bytes());
        let ctrl = CtrlSeg::new(Opcode::RdmaWrite, 0, qpn(qp), 3, CtrlFlags::CQ_UPDATE, [0; 4]);
        send(&describe_qp(qp), 0, ctrl, &segments);
        assert_eq!(completion(&describe_cq(cq), 0).opcode(), Ok(CqeOpcode::Requester));
        assert_eq!(target.memory.as_ptr().cast::<[u8; 64]>().read_volatile(), [7; 64]);
        destroy_qp(qp);
        [source.mr, target.mr].into_iter().for_each(deregister);
        assert_eq!(((api().dealloc_pd)(parent), (api().dealloc_td)(td)), (0, 0));
    }
    destroy_cq(cq);
    bed.close();
}

/// Two queue pairs on separate contexts. The first has just written with a key that does not exist.
struct Violation {
    bed: Bed,
    peer: Bed,
    cqs: [*mut ibv_cq; 2],
    qp: *mut ibv_qp,
    peer_qp: *mut ibv_qp,
    source: Buffer,
}

impl Violation {
    fn new() -> Self {
        let (bed, peer) = (Bed::new(), Bed::new());
        let cqs = [bed.cq(15), peer.cq(15)];
        let (qp, peer_qp) = (bed.qp(cqs[0]), peer.qp(cqs[1]));
        connect(qp, qpn(peer_qp), peer.lid());
        connect(peer_qp, qpn(qp), bed.lid());
        Violation { source: Buffer::new(&bed, 1), bed, peer, cqs, qp, peer_qp }
    }

    fn commit(&self) {
        let mut segments = RemoteAddrSeg::new(0x1000, 0xdead_0000).as_bytes().to_vec();
        segments.extend(self.source.segment(8).as_bytes());
        let ctrl = CtrlSeg::new(Opcode::RdmaWrite, 0, qpn(self.qp), 3, CtrlFlags::CQ_UPDATE, [0; 4]);
        send(&describe_qp(self.qp), 0, ctrl, &segments);
    }

    fn peer_fd(&self) -> libc::c_int {
        // SAFETY: open.
        unsafe { (*self.peer.context).async_fd }
    }

    fn end(self, peer_qp_left: bool) {
        destroy_qp(self.qp);
        if peer_qp_left {
            destroy_qp(self.peer_qp);
        }
        self.cqs.into_iter().for_each(destroy_cq);
        deregister(self.source.mr);
        self.bed.close();
        self.peer.close();
    }
}

fn next_event(context: *mut ibv_context) -> Result<ibv_async_event, i32> {
    let mut event = zeroed();
    clear_errno();
    // SAFETY: the context is open.
    match unsafe { (api().get_async_event)(context, &mut event) } {
        0 => Ok(event),
        code => {
            assert_eq!(code, -1);
            Err(errno())
        }
    }
}

fn acknowledge(mut event: ibv_async_event) {
    // SAFETY: fetched, and not acknowledged yet.
    unsafe { (api().ack_async_event)(&mut event) };
}

#[test]
fn an_access_error_is_told_to_both_sides() {
    let violation = Violation::new();
    set_nonblocking(violation.peer.context);
    assert_eq!(next_event(violation.peer.context).err(), Some(libc::EAGAIN));
    assert!(!readable(violation.peer_fd(), Duration::ZERO));
    violation.commit();
    let failed = completion(&describe_cq(violation.cqs[0]), 0);
    assert_eq!(
        (failed.opcode(), failed.syndrome()),
        (Ok(CqeOpcode::RequesterError), Ok(Syndrome::RemoteAccess))
    );
    assert_eq!(query(violation.qp).0.qp_state, IBV_QPS_ERR);

    assert!(readable(violation.peer_fd(), PATIENCE));
    let event = next_event(violation.peer.context).unwrap();
    assert_eq!(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    // SAFETY: the type selects the valid field.
    assert_eq!(unsafe { event.element.qp }, violation.peer_qp);
    acknowledge(event);
    assert!(!readable(violation.peer_fd(), Duration::ZERO));
    assert_eq!(next_event(violation.peer.context).err(), Some(libc::EAGAIN));

    // Events go only to the context that made the object.
    // SAFETY: open.
    assert!(!readable(unsafe { (*violation.bed.context).async_fd }, Duration::ZERO));

    // SAFETY: alive.
    let state = unsafe { (*violation.peer_qp).state };
    assert_eq!(state, IBV_QPS_RTS, "as the library last saw it");
    assert_eq!(query(violation.peer_qp).0.qp_state, IBV_QPS_ERR);
    // SAFETY: alive.
    assert_eq!(unsafe { (*violation.peer_qp).state }, IBV_QPS_ERR);

    // The diagnostic, too.
    let number = qpn(violation.peer_qp);
    let found = softhca::verbs::diagnostics();
    assert!(found.iter().any(|d| d.qpn == Some(number) || d.qpn == Some(qpn(violation.qp))), "{found:?}");
    violation.end(true);
}

#[test]
fn fetching_an_event_blocks_until_there_is_one() {
    let violation = Violation::new();
    let context = violation.peer.context as usize;
    let (send_event, events) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let event = next_event(context as *mut ibv_context).unwrap();
        send_event.send(event.event_type).unwrap();
        acknowledge(event);
    });
    violation.commit();
    assert_eq!(events.recv_timeout(PATIENCE), Ok(IBV_EVENT_QP_ACCESS_ERR));
    waiter.join().unwrap();
    violation.end(true);
}

#[test]
fn events_of_destroyed_objects_are_dropped() {
    let violation = Violation::new();
    violation.commit();
    assert!(readable(violation.peer_fd(), PATIENCE));
    destroy_qp(violation.peer_qp);
    assert!(!readable(violation.peer_fd(), Duration::ZERO));
    set_nonblocking(violation.peer.context);
    assert_eq!(next_event(violation.peer.context).err(), Some(libc::EAGAIN));
    violation.end(false);
}

#[test]
fn destroying_waits_for_the_acknowledgement() {
    let violation = Violation::new();
    violation.commit();
    let event = next_event(violation.peer.context).unwrap();
    let peer_qp = violation.peer_qp as usize;
    let acknowledged = &AtomicBool::new(false);
    let (started, has_started) = mpsc::channel();
    std::thread::scope(|scope| {
        let destroyer = scope.spawn(move || {
            started.send(()).unwrap();
            destroy_qp(peer_qp as *mut ibv_qp);
            acknowledged.load(Ordering::SeqCst)
        });
        has_started.recv_timeout(PATIENCE).unwrap();
        // Time enough for a destroyer that does not wait.
        std::thread::sleep(Duration::from_millis(20));
        acknowledged.store(true, Ordering::SeqCst);
        acknowledge(event);
        assert!(destroyer.join().unwrap(), "destroyed before the event was acknowledged");
    });
    violation.end(false);
}

#[test]
fn an_overrun_completion_queue_is_an_event_of_its_context() {
    let bed = Bed::new();
    let cq = bed.cq(1);
    let recv_cq = bed.cq(15);
    let mut attr = bed.qp_attr(cq, recv_cq);
    // SAFETY: everything named is alive.
    let qp = unsafe { (api().mlx5dv_create_qp)(bed.context, &mut attr, NULL.cast()) };
    connect(qp, qpn(qp), bed.lid());
    let rings = describe_qp(qp);
    // Two entries, never consumed, and three completions.
    for i in 0..3u32 {
        let ctrl = CtrlSeg::new(Opcode::Nop, i as u16, qpn(qp), 1, CtrlFlags::CQ_UPDATE, [0; 4]);
        send(&rings, i, ctrl, &[]);
    }
    let event = next_event(bed.context).unwrap();
    assert_eq!(event.event_type, IBV_EVENT_CQ_ERR);
    // SAFETY: the type selects the valid field.
    assert_eq!(unsafe { event.element.cq }, cq);
    acknowledge(event);
    destroy_qp(qp);
    [cq, recv_cq].into_iter().for_each(destroy_cq);
    bed.close();
}
