//! Queue memory from a parent domain's allocators.

use crate::verbs_bed::*;
use gdsync_sys::mlx5dv::*;
use gdsync_sys::verbs::*;
use libc::{c_void, size_t};
use parking_lot::Mutex;
use std::alloc::Layout;
use std::ptr;

/// An allocator's requests, and its behaviour.
struct Recorder {
    answer: Answer,
    asked: Mutex<Vec<(u64, usize, usize)>>,
    held: Mutex<Vec<(usize, Layout, u64)>>,
    domain: Mutex<usize>,
}

#[derive(Clone, Copy, PartialEq)]
enum Answer {
    Memory,
    Default,
    Null,
    /// Null for doorbell records only.
    NullRecord,
    Misaligned,
}

impl Recorder {
    fn new(answer: Answer) -> Box<Self> {
        Box::new(Recorder {
            answer,
            asked: Mutex::default(),
            held: Mutex::default(),
            domain: Mutex::default(),
        })
    }

    fn asked(&self) -> Vec<(u64, usize, usize)> {
        std::mem::take(&mut self.asked.lock())
    }

    fn held(&self) -> Vec<usize> {
        self.held.lock().iter().map(|(address, ..)| *address).collect()
    }
}

unsafe extern "C" fn allocate(
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    size: size_t,
    alignment: size_t,
    resource_type: u64,
) -> *mut c_void {
    // SAFETY: the recorder outlives the domain.
    let recorder = unsafe { &*pd_context.cast::<Recorder>() };
    assert_eq!(pd as usize, *recorder.domain.lock(), "called with the parent domain");
    recorder.asked.lock().push((resource_type, size, alignment));
    match recorder.answer {
        Answer::Default => return IBV_ALLOCATOR_USE_DEFAULT,
        Answer::Null => return ptr::null_mut(),
        Answer::NullRecord if resource_type == MLX5DV_RES_TYPE_DBR => return ptr::null_mut(),
        _ => {}
    }
    // One alignment more: a misaligned answer is still inside the block.
    let layout = Layout::from_size_align(size + alignment, alignment).expect("small sizes");
    // SAFETY: the size is not zero.
    let block = unsafe { std::alloc::alloc_zeroed(layout) };
    let offset = if recorder.answer == Answer::Misaligned { alignment / 2 } else { 0 };
    recorder.held.lock().push((block as usize + offset, layout, resource_type));
    block.wrapping_add(offset).cast()
}

unsafe extern "C" fn release(
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    block: *mut c_void,
    resource_type: u64,
) {
    // SAFETY: the recorder outlives the domain.
    let recorder = unsafe { &*pd_context.cast::<Recorder>() };
    assert_eq!(pd as usize, *recorder.domain.lock());
    let mut held = recorder.held.lock();
    let found =
        held.iter().position(|(address, ..)| *address == block as usize).expect("freed what was given");
    let (address, layout, given_as) = held.swap_remove(found);
    assert_eq!(resource_type, given_as);
    let offset = if recorder.answer == Answer::Misaligned { layout.align() / 2 } else { 0 };
    // SAFETY: allocated in `allocate` with this layout.
    unsafe { std::alloc::dealloc((address - offset) as *mut u8, layout) };
}

fn parent_domain(bed: &Bed, recorder: &Recorder) -> *mut ibv_pd {
    let mut attr = ibv_parent_domain_init_attr {
        pd: bed.pd,
        comp_mask: IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
        alloc: Some(allocate),
        free: Some(release),
        pd_context: ptr::from_ref(recorder).cast_mut().cast(),
        ..zeroed()
    };
    // SAFETY: everything named is alive.
    let parent = unsafe { (api().alloc_parent_domain)(bed.context, &mut attr) };
    assert!(!parent.is_null());
    *recorder.domain.lock() = parent as usize;
    parent
}

fn new_cq(bed: &Bed, parent: *mut ibv_pd) -> *mut ibv_cq {
    let comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
    let mut attr = ibv_cq_init_attr_ex { comp_mask, parent_domain: parent, ..Bed::cq_attr(100) };
    // SAFETY: everything named is alive.
    unsafe { (api().mlx5dv_create_cq)(bed.context, &mut attr, ptr::null_mut()) }
}

fn new_qp(bed: &Bed, parent: *mut ibv_pd, cq: *mut ibv_cq) -> *mut ibv_qp {
    let mut attr = ibv_qp_init_attr_ex { pd: parent, ..bed.qp_attr(cq, cq) };
    // SAFETY: everything named is alive.
    unsafe { (api().mlx5dv_create_qp)(bed.context, &mut attr, ptr::null_mut()) }
}

fn free_domain(parent: *mut ibv_pd) {
    // SAFETY: nothing is left in it.
    assert_eq!(unsafe { (api().dealloc_pd)(parent) }, 0);
}

#[test]
fn rings_and_records_come_from_the_allocator_and_go_back() {
    let bed = Bed::new();
    let recorder = Recorder::new(Answer::Memory);
    let parent = parent_domain(&bed, &recorder);
    let cq = new_cq(&bed, parent);
    assert_eq!(recorder.asked(), [(MLX5DV_RES_TYPE_CQ, 128 * 64, 4096), (MLX5DV_RES_TYPE_DBR, 8, 8)]);
    let described = describe_cq(cq);
    assert_eq!(recorder.held(), [described.buf as usize, described.dbrec as usize]);

    let qp = new_qp(&bed, parent, cq);
    // Receive queue 16 * 32 bytes, send queue 16 * 256 = 4608 bytes; two pages, a 64th of which is 128.
    assert_eq!(recorder.asked(), [(MLX5DV_RES_TYPE_QP, 4608, 128), (MLX5DV_RES_TYPE_DBR, 8, 8)]);
    let described = describe_qp(qp);
    assert_eq!(recorder.held()[2..], [described.rq.buf as usize, described.dbrec as usize]);

    destroy_qp(qp);
    assert_eq!(recorder.held().len(), 2);
    destroy_cq(cq);
    assert_eq!(recorder.held(), [0usize; 0]);
    free_domain(parent);
    bed.close();
}

#[test]
fn an_allocator_may_leave_it_to_the_library() {
    let bed = Bed::new();
    let recorder = Recorder::new(Answer::Default);
    let parent = parent_domain(&bed, &recorder);
    let cq = new_cq(&bed, parent);
    let qp = new_qp(&bed, parent, cq);
    assert_eq!(recorder.asked().len(), 4);
    assert_eq!(describe_cq(cq).buf as usize % 4096, 0);
    assert_eq!(describe_qp(qp).rq.buf as usize % 4096, 0);
    destroy_qp(qp);
    destroy_cq(cq);
    free_domain(parent);
    bed.close();
}

#[test]
fn an_allocator_that_fails_fails_the_creation() {
    let bed = Bed::new();
    let good_cq = bed.cq(100);
    for (answer, expected) in
        [(Answer::Null, libc::ENOMEM), (Answer::NullRecord, libc::ENOMEM), (Answer::Misaligned, libc::EINVAL)]
    {
        let recorder = Recorder::new(answer);
        let parent = parent_domain(&bed, &recorder);
        clear_errno();
        assert!(new_cq(&bed, parent).is_null());
        assert_eq!(errno(), expected);
        clear_errno();
        assert!(new_qp(&bed, parent, good_cq).is_null());
        assert_eq!(errno(), expected);
        assert_eq!(recorder.held(), [0usize; 0], "what was had is given back");
        free_domain(parent);
    }
    destroy_cq(good_cq);
    bed.close();
}

#[test]
fn without_the_bits_allocators_are_not_called() {
    let bed = Bed::new();
    let recorder = Recorder::new(Answer::Null);
    let mut attr = ibv_parent_domain_init_attr {
        pd: bed.pd,
        alloc: Some(allocate),
        free: Some(release),
        pd_context: (&raw const *recorder).cast_mut().cast(),
        ..zeroed()
    };
    // SAFETY: everything named is alive.
    let parent = unsafe { (api().alloc_parent_domain)(bed.context, &mut attr) };
    let cq = new_cq(&bed, parent);
    assert!(!cq.is_null() && recorder.asked().is_empty());
    destroy_cq(cq);
    free_domain(parent);
    bed.close();
}
