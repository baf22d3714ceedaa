use super::*;
use crate::memory::HostAddr;
use crate::queue::QueueFull;
use crate::queue::request::Limits;
use crate::queue::send::State;
use crate::queue::test_ring;
use crate::verbs::{
    Access, Device, MemoryRegion, MemoryWindow, ProtectionDomain, WindowAccess, WindowError, provider,
};
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, Opcode};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::FromBytes;

const LIMITS: Limits = crate::queue::request::tests::LIMITS;
const REGISTER: HostAddr = HostAddr(0x9000);

struct Bed {
    pd: ProtectionDomain,
    region: MemoryRegion,
    queue: SendState,
}

fn bed(blocks: u32) -> Bed {
    let pd = ProtectionDomain::new(&Device::open(provider::software(), None).unwrap()).unwrap();
    let region = MemoryRegion::allocate(&pd, 64, Access::all()).unwrap();
    Bed { pd, region, queue: SendState::new(test_ring(blocks, BASIC_BLOCK), 0x42, REGISTER) }
}

impl Bed {
    fn place(&mut self, request: &WorkRequest<'_>) -> Result<u64, QueueError> {
        self.queue.place(request, &LIMITS, |_| Ok(()), State::Prepared)
    }

    fn bind(&mut self, window: &MemoryWindow) -> Result<u64, QueueError> {
        let slice = self.region.slice(8..24).unwrap();
        self.place(&WorkRequest::bind(window, &slice, WindowAccess::REMOTE_WRITE))
    }

    /// Whether the window keeps the region, beside this bed.
    fn is_kept(&self) -> bool {
        Arc::strong_count(&self.region.inner) > 1
    }

    fn control(&self, block: u32) -> CtrlSeg {
        let words: Vec<u8> = (0..4)
            .flat_map(|word| self.queue.ring.word(block, word * 4).load(Ordering::Relaxed).to_ne_bytes())
            .collect();
        CtrlSeg::read_from_bytes(&words).unwrap()
    }
}

#[test]
fn changes_name_the_key_and_what_follows_them_has_a_fence() {
    let mut bed = bed(16);
    let window = MemoryWindow::new(&bed.pd).unwrap();
    assert_eq!(window.remote(), None);
    let doorbell = bed.bind(&window).unwrap();
    let opened = window.remote().unwrap();
    assert_eq!((opened.addr, opened.len), (bed.region.remote().addr + 8, 16));
    let bind = bed.control(0);
    assert_eq!((bind.opcode(), bind.ds(), bind.qpn()), (Ok(Opcode::Umr), 12, 0x42));
    assert_eq!((bind.doorbell(), bind.flags()), (doorbell, CtrlFlags::CQ_UPDATE));
    assert_eq!(u32::from_be_bytes(bind.imm()) & !0xff, opened.rkey & !0xff);
    assert_ne!(u32::from_be_bytes(bind.imm()), opened.rkey, "another key");
    bed.place(&WorkRequest::invalidate(&window).unsignaled()).unwrap();
    assert_eq!(window.remote(), None);
    let close = bed.control(3);
    assert_eq!((close.ds(), close.flags()), (8, CtrlFlags::FENCE_INITIATOR_SMALL));
    assert_eq!(u32::from_be_bytes(close.imm()), opened.rkey);
    bed.place(&WorkRequest::nop().fence()).unwrap();
    assert_eq!(bed.control(5).flags(), CtrlFlags::CQ_UPDATE | CtrlFlags::FENCE, "the stronger one");
    bed.bind(&window).unwrap();
    assert_eq!(bed.control(6).flags(), CtrlFlags::CQ_UPDATE, "not directly behind a change");
    bed.place(&WorkRequest::send_inline(b"the key")).unwrap();
    assert_eq!(bed.control(9).flags(), CtrlFlags::CQ_UPDATE | CtrlFlags::FENCE_INITIATOR_SMALL);
    bed.place(&WorkRequest::send_inline(b"more")).unwrap();
    assert_eq!(bed.control(10).flags(), CtrlFlags::CQ_UPDATE);
}

#[test]
fn refused_changes_leave_window_and_queue_as_they_were() {
    let mut bed = bed(4);
    let window = MemoryWindow::new(&bed.pd).unwrap();
    let slice = bed.region.slice(..8).unwrap();
    let bind = WorkRequest::bind(&window, &slice, WindowAccess::REMOTE_READ);
    let full = || Err(QueueError::Full(QueueFull::CompletionQueue { entries: 1 }));
    bed.queue.place(&bind, &LIMITS, |_| full(), State::Prepared).unwrap_err();
    assert_eq!((window.remote(), bed.queue.head), (None, 0));
    bed.bind(&window).unwrap();
    // A bind takes three blocks.
    let other = MemoryWindow::new(&bed.pd).unwrap();
    let error = bed.bind(&other).unwrap_err();
    let room = QueueError::Full(QueueFull::SendQueue { needed: 3, free: 1, capacity: 4 });
    assert_eq!((error, other.remote()), (room, None));
}

#[test]
fn a_region_is_kept_until_a_later_change_has_completed() {
    let mut bed = bed(16);
    let window = MemoryWindow::new(&bed.pd).unwrap();
    bed.bind(&window).unwrap();
    bed.place(&WorkRequest::invalidate(&window)).unwrap();
    assert_eq!(bed.queue.retire(0).unwrap().entries, 1);
    assert!(bed.is_kept());
    bed.queue.retire(3).unwrap();
    assert!(!bed.is_kept());
}

#[test]
fn a_change_that_fails_or_is_reset_leaves_the_window_in_doubt() {
    for reset in [false, true] {
        let mut bed = bed(16);
        let window = MemoryWindow::new(&bed.pd).unwrap();
        bed.bind(&window).unwrap();
        if reset {
            bed.queue.reset();
        } else {
            bed.queue.doubt(0);
            bed.queue.retire(0).unwrap();
        }
        let error = bed.bind(&window).unwrap_err();
        assert!(matches!(error, QueueError::Window(WindowError::Unknown { .. })), "{error}");
        assert!(bed.is_kept() && window.remote().is_none());
        drop(window);
        assert!(!bed.is_kept());
    }
}

#[test]
fn changes_that_are_taken_back_are_undone() {
    let mut bed = bed(16);
    let window = MemoryWindow::new(&bed.pd).unwrap();
    bed.bind(&window).unwrap();
    bed.queue.cancel(0, |_| false);
    assert!(window.remote().is_none() && !bed.is_kept(), "out of the queue");
    bed.bind(&window).unwrap();
    bed.place(&WorkRequest::nop()).unwrap();
    bed.queue.cancel(0, |_| false);
    assert_eq!(bed.control(0).opcode(), Ok(Opcode::Nop));
    assert!(window.remote().is_none() && bed.is_kept(), "a NOP");
    // That NOP's completion says nothing of the window.
    bed.queue.retire(0).unwrap();
    assert!(bed.is_kept());
    drop(window);
    assert!(!bed.is_kept());
}
