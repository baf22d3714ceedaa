//! Completion channels: notification of completions by a file descriptor.

use crate::verbs_bed::*;
use gdsync_sys::prm::doorbell::{CqArm, DBR_CQ_ARM, UAR_CQ_ARM};
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, Opcode};
use gdsync_sys::verbs::*;
use libc::{EAGAIN, EBUSY, EINVAL};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A channel, with a queue pair that is connected to itself and completes in a queue of the channel.
struct Setup {
    bed: Bed,
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    sent: u32,
}

impl Setup {
    fn new() -> Self {
        let bed = Bed::new();
        // SAFETY: the context is open.
        let channel = unsafe { (api().create_comp_channel)(bed.context) };
        assert!(!channel.is_null(), "errno {}", errno());
        let cq = queue(&bed, channel);
        let qp = bed.qp(cq);
        connect(qp, qpn(qp), bed.lid());
        Setup { bed, channel, cq, qp, sent: 0 }
    }

    fn fd(&self) -> i32 {
        // SAFETY: the channel is alive.
        unsafe { (*self.channel).fd }
    }

    fn complete(&mut self) {
        let ctrl = CtrlSeg::new(Opcode::Nop, self.sent as u16, qpn(self.qp), 1, CtrlFlags::CQ_UPDATE, [0; 4]);
        send(&describe_qp(self.qp), self.sent, ctrl, &[]);
        self.sent += 1;
        completion(&describe_cq(self.cq), self.sent - 1);
    }

    /// Arms the queue as a program does that has seen all its entries.
    fn arm(&self, events: u8) {
        let rings = describe_cq(self.cq);
        let arm = CqArm::new(events, false, self.sent);
        // SAFETY: the queue's record, and the register on its context's page.
        unsafe {
            AtomicU32::from_ptr(rings.dbrec.add(DBR_CQ_ARM)).store(arm.record(), Ordering::Release);
            AtomicU64::from_ptr(rings.cq_uar.byte_add(UAR_CQ_ARM).cast())
                .store(arm.doorbell(rings.cqn), Ordering::Release);
        }
    }

    fn next(&self) -> Result<*mut ibv_cq, i32> {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive, and the places are valid.
        let rc = unsafe { (api().get_cq_event)(self.channel, &mut cq, &mut context) };
        if rc != 0 {
            return Err(errno());
        }
        assert_eq!(context, 7 as _, "the creator's own pointer");
        Ok(cq)
    }

    fn end(self) {
        destroy_qp(self.qp);
        destroy_cq(self.cq);
        self.close();
    }

    fn close(self) {
        // SAFETY: created, and no queue uses it any more.
        assert_eq!(unsafe { (api().destroy_comp_channel)(self.channel) }, 0);
        self.bed.close();
    }
}

fn queue(bed: &Bed, channel: *mut ibv_comp_channel) -> *mut ibv_cq {
    let mut attr = ibv_cq_init_attr_ex { channel, cq_context: 7 as _, ..Bed::cq_attr(15) };
    // SAFETY: context and channel are alive.
    let cq = unsafe { (api().mlx5dv_create_cq)(bed.context, &mut attr, ptr::null_mut()) };
    assert!(!cq.is_null(), "errno {}", errno());
    cq
}

fn acknowledge(cq: *mut ibv_cq, events: u32) {
    // SAFETY: the queue is alive, or null.
    unsafe { (api().ack_cq_events)(cq, events) };
}

#[test]
fn an_armed_queue_tells_once_for_each_arm() {
    let mut setup = Setup::new();
    setup.complete();
    assert!(!readable(setup.fd(), Duration::from_millis(5)), "not armed");
    for events in 0..3 {
        setup.arm(events);
        assert!(!readable(setup.fd(), Duration::ZERO), "no entry since");
        setup.complete();
        assert!(readable(setup.fd(), PATIENCE));
        setup.complete();
        assert_eq!(setup.next(), Ok(setup.cq));
        assert!(!readable(setup.fd(), Duration::from_millis(5)), "an arm tells once");
    }
    acknowledge(setup.cq, 3);
    acknowledge(ptr::null_mut(), 1);
    setup.end();
}

#[test]
fn a_channel_that_does_not_block_says_so() {
    let setup = Setup::new();
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::fcntl(setup.fd(), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
    assert_eq!(setup.next(), Err(EAGAIN));
    setup.end();
}

#[test]
fn a_channel_stays_as_long_as_its_queues() {
    let setup = Setup::new();
    // SAFETY: alive: it is refused.
    assert_eq!(unsafe { (api().destroy_comp_channel)(setup.channel) }, EBUSY);
    setup.end();
}

#[test]
fn destroying_a_queue_waits_for_acknowledgements_and_drops_what_was_not_fetched() {
    let mut setup = Setup::new();
    setup.arm(0);
    setup.complete();
    assert_eq!(setup.next(), Ok(setup.cq));
    setup.arm(1);
    setup.complete();
    assert!(readable(setup.fd(), PATIENCE), "one more, which is never fetched");
    destroy_qp(setup.qp);
    let (cq, acknowledged) = (setup.cq as usize, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let destroyer = scope.spawn(move || {
            destroy_cq(cq as *mut ibv_cq);
            acknowledged.load(Ordering::SeqCst)
        });
        // Time enough for a destroyer that does not wait.
        std::thread::sleep(Duration::from_millis(20));
        acknowledged.store(true, Ordering::SeqCst);
        acknowledge(setup.cq, 1);
        assert!(destroyer.join().unwrap(), "destroyed before the event was acknowledged");
    });
    assert!(!readable(setup.fd(), Duration::ZERO));
    setup.close();
}

#[test]
fn bad_channels_are_refused() {
    let (setup, other) = (Setup::new(), Bed::new());
    let mut attr = ibv_cq_init_attr_ex { channel: setup.channel, ..Bed::cq_attr(15) };
    clear_errno();
    // SAFETY: context and channel are alive, and null is refused.
    unsafe {
        assert!((api().mlx5dv_create_cq)(other.context, &mut attr, ptr::null_mut()).is_null());
        assert_eq!(errno(), EINVAL, "the channel of another context");
        clear_errno();
        assert!((api().create_comp_channel)(ptr::null_mut()).is_null());
        assert_eq!(errno(), EINVAL);
        assert_eq!((api().destroy_comp_channel)(ptr::null_mut()), EINVAL);
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        clear_errno();
        assert_eq!((api().get_cq_event)(ptr::null_mut(), &mut cq, &mut context), -1);
        assert_eq!(errno(), EINVAL);
        assert_eq!((api().get_cq_event)(setup.channel, ptr::null_mut(), &mut context), -1);
        assert_eq!((api().get_cq_event)(setup.channel, &mut cq, ptr::null_mut()), -1);
    }
    other.close();
    setup.end();
}
