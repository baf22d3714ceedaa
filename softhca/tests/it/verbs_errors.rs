//! Bad input of every function, and its errno.

use crate::verbs_bed::*;
use gdsync_sys::mlx5dv::*;
use gdsync_sys::verbs::*;
use libc::{EFAULT, EINVAL, EOPNOTSUPP, c_int};
use std::ptr::{self, null_mut};

/// Expects a call to return null with that errno.
#[track_caller]
pub(crate) fn refused<T>(what: &str, expected: c_int, call: impl FnOnce() -> *mut T) {
    clear_errno();
    assert!(call().is_null(), "{what}");
    assert_eq!(errno(), expected, "{what}");
}

#[test]
fn null_pointers() {
    let bed = Bed::new();
    let (mut attr, mut init) = (ibv_qp_attr::default(), zeroed::<ibv_qp_init_attr>());
    let cq = bed.cq(10);
    let qp = bed.qp(cq);
    // SAFETY: the test checks that null is refused; everything else is alive.
    unsafe {
        let context = bed.context;
        refused("get_device_name", EINVAL, || (api().get_device_name)(null_mut()).cast_mut());
        refused("open_device", EINVAL, || (api().open_device)(null_mut()));
        refused("alloc_pd", EINVAL, || (api().alloc_pd)(null_mut()));
        refused("alloc_td", EINVAL, || (api().alloc_td)(null_mut(), &mut ibv_td_init_attr::default()));
        refused("alloc_td", EINVAL, || (api().alloc_td)(context, null_mut()));
        refused("alloc_parent_domain", EINVAL, || (api().alloc_parent_domain)(null_mut(), &mut zeroed()));
        refused("alloc_parent_domain", EINVAL, || (api().alloc_parent_domain)(context, null_mut()));
        refused("reg_mr", EINVAL, || (api().reg_mr)(null_mut(), null_mut(), 1, 0));
        refused("create_cq", EINVAL, || {
            (api().mlx5dv_create_cq)(null_mut(), &mut Bed::cq_attr(1), null_mut())
        });
        refused("create_cq", EINVAL, || (api().mlx5dv_create_cq)(context, null_mut(), null_mut()));
        refused("create_qp", EINVAL, || {
            (api().mlx5dv_create_qp)(null_mut(), &mut bed.qp_attr(cq, cq), null_mut())
        });
        refused("create_qp", EINVAL, || (api().mlx5dv_create_qp)(context, null_mut(), null_mut()));
        refused("create_ah", EINVAL, || (api().create_ah)(null_mut(), &mut ibv_ah_attr::default()));
        refused("create_ah", EINVAL, || (api().create_ah)(bed.pd, null_mut()));
        assert!(!(api().mlx5dv_is_supported)(null_mut()));
        (api().free_device_list)(null_mut());
        (api().ack_async_event)(null_mut());
        (api().ack_async_event)(&mut ibv_async_event {
            element: ibv_async_element { qp: null_mut() },
            event_type: 3,
        });

        let mut obj = mlx5dv_obj::default();
        let statuses = [
            (api().close_device)(null_mut()),
            (api().query_device)(null_mut(), &mut zeroed()),
            (api().query_device)(context, null_mut()),
            (api().query_port)(null_mut(), 1, &mut ibv_port_attr::default()),
            (api().query_port)(context, 1, null_mut()),
            (api().dealloc_pd)(null_mut()),
            (api().dealloc_td)(null_mut()),
            (api().dereg_mr)(null_mut()),
            (api().destroy_cq)(null_mut()),
            (api().destroy_qp)(null_mut()),
            (api().destroy_ah)(null_mut()),
            (api().modify_qp)(null_mut(), &mut attr, 1),
            (api().modify_qp)(qp, null_mut(), 1),
            (api().query_qp)(null_mut(), &mut attr, 1, &mut init),
            (api().query_qp)(qp, null_mut(), 1, &mut init),
            (api().query_qp)(qp, &mut attr, 1, null_mut()),
            (api().mlx5dv_init_obj)(null_mut(), MLX5DV_OBJ_QP),
            (api().mlx5dv_init_obj)(&mut obj, MLX5DV_OBJ_QP),
            (api().mlx5dv_init_obj)(&mut obj, MLX5DV_OBJ_CQ),
            (api().mlx5dv_init_obj)(&mut obj, MLX5DV_OBJ_AH),
            (api().mlx5dv_init_obj)(&mut obj, MLX5DV_OBJ_PD),
        ];
        assert_eq!(statuses, [EINVAL; 21]);
        let minus_ones = [
            (api().query_gid)(null_mut(), 1, 0, &mut ibv_gid::default()),
            (api().query_gid)(context, 1, 0, null_mut()),
            (api().get_async_event)(null_mut(), &mut zeroed()),
            (api().get_async_event)(context, null_mut()),
        ];
        assert_eq!((minus_ones, errno()), ([-1; 4], EINVAL));
    }
    destroy_qp(qp);
    destroy_cq(cq);
    bed.close();
}

#[test]
fn ports_and_gids_that_are_not_there() {
    let bed = Bed::new();
    // SAFETY: the context is open, the places valid.
    unsafe {
        for port in [0, 2, 255] {
            assert_eq!((api().query_port)(bed.context, port, &mut ibv_port_attr::default()), EINVAL);
            clear_errno();
            assert_eq!((api().query_gid)(bed.context, port, 0, &mut ibv_gid::default()), -1);
            assert_eq!(errno(), EINVAL);
        }
        for index in [-1, 1, c_int::MAX] {
            assert_eq!((api().query_gid)(bed.context, 1, index, &mut ibv_gid::default()), -1);
        }
    }
    bed.close();
}

#[test]
fn memory_that_cannot_be_registered() {
    let bed = Bed::new();
    let mut memory = vec![0u8; 4096];
    let start: *mut libc::c_void = memory.as_mut_ptr().cast();
    // SAFETY: an anonymous page that only reads.
    let read_only = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(null_mut(), 4096, libc::PROT_READ, flags, -1, 0)
    };
    assert_ne!(read_only, libc::MAP_FAILED);
    let cases = [
        ("no bytes", start, 0, 0, EINVAL),
        ("remote write alone", start, 64, IBV_ACCESS_REMOTE_WRITE, EINVAL),
        ("remote atomic alone", start, 64, IBV_ACCESS_REMOTE_ATOMIC, EINVAL),
        ("flushes", start, 64, 1 << 8, EINVAL),
        ("an unknown flag", start, 64, 1 << 15, EINVAL),
        ("the sign", start, 64, 1 << 31, EINVAL),
        ("null", null_mut(), 64, 0, EFAULT),
        ("the end of the address space", usize::MAX as *mut _, 64, 0, EFAULT),
        ("more than is mapped", start, 1 << 46, 0, EFAULT),
        ("read-only memory for writing", read_only, 64, IBV_ACCESS_LOCAL_WRITE, EFAULT),
    ];
    for (what, addr, length, access, expected) in cases {
        // SAFETY: refused memory is not accessed.
        refused(what, expected, || unsafe { (api().reg_mr)(bed.pd, addr, length, access as c_int) });
    }
    // Read-only memory may be read; unknown flags of the optional range are ignored.
    for access in [IBV_ACCESS_REMOTE_READ, IBV_ACCESS_RELAXED_ORDERING, 1 << 29] {
        // SAFETY: mapped until it is deregistered.
        let mr = unsafe { (api().reg_mr)(bed.pd, read_only, 4096, access as c_int) };
        assert!(!mr.is_null(), "{access:#x}");
        // SAFETY: registered.
        unsafe { assert!((*mr).addr == read_only && (*mr).lkey == (*mr).rkey && (*mr).lkey != 0) };
        deregister(mr);
    }
    // SAFETY: mapped above.
    unsafe { libc::munmap(read_only, 4096) };
    bed.close();
}

#[test]
fn domains_that_cannot_be_made() {
    let bed = Bed::new();
    let other = Bed::new();
    unsafe extern "C" fn allocate(
        _: *mut ibv_pd,
        _: *mut libc::c_void,
        _: usize,
        _: usize,
        _: u64,
    ) -> *mut libc::c_void {
        null_mut()
    }
    // SAFETY: everything named is alive.
    unsafe {
        refused("td bits", EINVAL, || (api().alloc_td)(bed.context, &mut ibv_td_init_attr { comp_mask: 1 }));
        let good = ibv_parent_domain_init_attr { pd: bed.pd, ..zeroed() };
        let parent = (api().alloc_parent_domain)(bed.context, &mut { good });
        let foreign_td = (api().alloc_td)(other.context, &mut ibv_td_init_attr::default());
        let half = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
        let cases = [
            ("no domain", ibv_parent_domain_init_attr { pd: null_mut(), ..good }),
            ("unknown bits", ibv_parent_domain_init_attr { comp_mask: 1 << 5, ..good }),
            ("a parent domain", ibv_parent_domain_init_attr { pd: parent, ..good }),
            ("another context's domain", ibv_parent_domain_init_attr { pd: other.pd, ..good }),
            ("another context's thread domain", ibv_parent_domain_init_attr { td: foreign_td, ..good }),
            ("no free", ibv_parent_domain_init_attr { comp_mask: half, alloc: Some(allocate), ..good }),
        ];
        for (what, mut attr) in cases {
            refused(what, EINVAL, || (api().alloc_parent_domain)(bed.context, &mut attr));
        }
        assert_eq!(((api().dealloc_td)(foreign_td), (api().dealloc_pd)(parent)), (0, 0));
    }
    bed.close();
    other.close();
}

#[test]
fn completion_queues_that_cannot_be_made() {
    let bed = Bed::new();
    let other = Bed::new();
    let good = Bed::cq_attr(10);
    // SAFETY: alive.
    let foreign = unsafe {
        (api().alloc_parent_domain)(
            other.context,
            &mut ibv_parent_domain_init_attr { pd: other.pd, ..zeroed() },
        )
    };
    let with_flags = |flags| ibv_cq_init_attr_ex { comp_mask: IBV_CQ_INIT_ATTR_MASK_FLAGS, flags, ..good };
    let with_pd =
        |parent_domain| ibv_cq_init_attr_ex { comp_mask: IBV_CQ_INIT_ATTR_MASK_PD, parent_domain, ..good };
    let cases = [
        ("no entries", Bed::cq_attr(0), EINVAL),
        ("too many", Bed::cq_attr(1 << 22), EINVAL),
        ("all", Bed::cq_attr(u32::MAX), EINVAL),
        ("more than a power of two", Bed::cq_attr(1 << 31), EINVAL),
        ("unknown bits", ibv_cq_init_attr_ex { comp_mask: 1 << 2, ..good }, EINVAL),
        ("unknown flags", with_flags(1 << 2), EINVAL),
        ("timestamps", ibv_cq_init_attr_ex { wc_flags: 1 << 7, ..good }, EOPNOTSUPP),
        ("unknown fields", ibv_cq_init_attr_ex { wc_flags: 1 << 40, ..good }, EOPNOTSUPP),
        ("a vector", ibv_cq_init_attr_ex { comp_vector: 1, ..good }, EINVAL),
        ("no parent domain", with_pd(null_mut()), EINVAL),
        ("a plain domain", with_pd(bed.pd), EINVAL),
        ("another context's domain", with_pd(foreign), EINVAL),
    ];
    for (what, mut attr, expected) in cases {
        // SAFETY: the objects of the attributes are alive, or refused unseen.
        refused(what, expected, || unsafe { (api().mlx5dv_create_cq)(bed.context, &mut attr, null_mut()) });
    }
    // SAFETY: the attributes are valid; the queue is destroyed once.
    let made = unsafe { (api().mlx5dv_create_cq)(bed.context, &mut with_flags(1 << 1), null_mut()) };
    assert!(!made.is_null(), "a queue that ignores overruns");
    // SAFETY: as above.
    assert_eq!(unsafe { (api().destroy_cq)(made) }, 0);
    let size = |cqe_size| mlx5dv_cq_init_attr {
        comp_mask: MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE,
        cqe_size,
        ..Default::default()
    };
    let mlx5_cases = [
        ("compression", mlx5dv_cq_init_attr { comp_mask: 1, ..Default::default() }, EINVAL),
        ("padding", mlx5dv_cq_init_attr { comp_mask: 2, flags: 1, ..Default::default() }, EINVAL),
        ("unknown bits", mlx5dv_cq_init_attr { comp_mask: 1 << 3, ..Default::default() }, EINVAL),
        ("wide entries", size(128), EOPNOTSUPP),
        ("odd entries", size(96), EINVAL),
    ];
    for (what, mut mlx5_attr, expected) in mlx5_cases {
        // SAFETY: both structs are valid.
        refused(what, expected, || unsafe {
            (api().mlx5dv_create_cq)(bed.context, &mut { good }, &mut mlx5_attr)
        });
    }
    // Accepted: a promise, the standard fields, the default size.
    let mut attr = ibv_cq_init_attr_ex { wc_flags: 0x7f, ..with_flags(1) };
    // SAFETY: both structs are valid.
    let cq = unsafe { (api().mlx5dv_create_cq)(bed.context, &mut attr, &mut size(64)) };
    assert!(!cq.is_null());
    destroy_cq(cq);
    // SAFETY: used no more.
    assert_eq!(unsafe { (api().dealloc_pd)(foreign) }, 0);
    bed.close();
    other.close();
}

#[test]
fn queue_pairs_that_cannot_be_made() {
    let bed = Bed::new();
    let other = Bed::new();
    let (cq, foreign) = (bed.cq(10), other.cq(10));
    let good = bed.qp_attr(cq, cq);
    let cap = |change: fn(&mut ibv_qp_cap)| {
        let mut attr = good;
        change(&mut attr.cap);
        attr
    };
    let of_type = |qp_type| ibv_qp_init_attr_ex { qp_type, ..good };
    let cases = [
        ("raw packets", of_type(8), EOPNOTSUPP),
        ("DC that is neither side", of_type(0xff), EINVAL),
        ("no transport", of_type(0), EINVAL),
        ("unknown transport", of_type(77), EINVAL),
        ("no domain bit", ibv_qp_init_attr_ex { comp_mask: 0, ..good }, EINVAL),
        ("no domain", ibv_qp_init_attr_ex { pd: null_mut(), ..good }, EINVAL),
        ("unknown bits", ibv_qp_init_attr_ex { comp_mask: good.comp_mask | 1 << 9, ..good }, EINVAL),
        ("wr operations", ibv_qp_init_attr_ex { comp_mask: good.comp_mask | 1 << 6, ..good }, EOPNOTSUPP),
        ("no send CQ", ibv_qp_init_attr_ex { send_cq: null_mut(), ..good }, EINVAL),
        ("no receive CQ", ibv_qp_init_attr_ex { recv_cq: null_mut(), ..good }, EINVAL),
        ("another context's CQ", ibv_qp_init_attr_ex { send_cq: foreign, ..good }, EINVAL),
        ("another context's domain", ibv_qp_init_attr_ex { pd: other.pd, ..good }, EINVAL),
        ("sends", cap(|cap| cap.max_send_wr = 1 << 15), EINVAL),
        ("all sends", cap(|cap| cap.max_send_wr = u32::MAX), EINVAL),
        ("receives", cap(|cap| cap.max_recv_wr = (1 << 15) + 1), EINVAL),
        ("send segments", cap(|cap| cap.max_send_sge = 62), EINVAL),
        ("receive segments", cap(|cap| cap.max_recv_sge = 33), EINVAL),
        ("inline", cap(|cap| cap.max_inline_data = 973), EINVAL),
        (
            "inline UD",
            ibv_qp_init_attr_ex { qp_type: IBV_QPT_UD, ..cap(|cap| cap.max_inline_data = 941) },
            EINVAL,
        ),
    ];
    for (what, mut attr, expected) in cases {
        let asked = attr.cap;
        // SAFETY: the objects of the attributes are alive, or refused unseen.
        refused(what, expected, || unsafe { (api().mlx5dv_create_qp)(bed.context, &mut attr, null_mut()) });
        assert_eq!(attr.cap, asked, "{what}: nothing is written on failure");
    }
    let flags = |create_flags| mlx5dv_qp_init_attr {
        comp_mask: MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
        create_flags,
        ..Default::default()
    };
    let bits = |comp_mask| mlx5dv_qp_init_attr { comp_mask, ..Default::default() };
    let mlx5_cases = [
        ("scatter and not", flags(1 << 3 | 1 << 4), EINVAL),
        ("unknown flags", flags(1 << 8), EINVAL),
        ("DC that is RC", bits(1 << 1), EINVAL),
        ("operations", bits(1 << 2), EOPNOTSUPP),
        ("unknown bits", bits(1 << 4), EINVAL),
    ];
    for (what, mut mlx5_attr, expected) in mlx5_cases {
        // SAFETY: both structs are valid.
        refused(what, expected, || unsafe {
            (api().mlx5dv_create_qp)(bed.context, &mut { good }, &mut mlx5_attr)
        });
    }
    let mut no_scatter = flags(MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE | MLX5DV_QP_CREATE_OOO_DP);
    // SAFETY: both structs are valid.
    let qp = unsafe { (api().mlx5dv_create_qp)(bed.context, &mut { good }, &mut no_scatter) };
    assert!(!qp.is_null());
    let (mut attr, mut init) = (ibv_qp_attr::default(), zeroed());
    // SAFETY: alive.
    let rate = unsafe { (api().query_qp)(qp, &mut attr, IBV_QP_RATE_LIMIT as c_int, &mut init) };
    assert_eq!(rate, EOPNOTSUPP);
    destroy_qp(qp);
    destroy_cq(cq);
    destroy_cq(foreign);
    bed.close();
    other.close();
}

#[test]
fn address_handles_that_cannot_be_made() {
    let bed = Bed::new();
    let good = ibv_ah_attr { port_num: 1, dlid: 1, ..Default::default() };
    let global = |grh| ibv_ah_attr { is_global: 1, grh, ..good };
    let cases = [
        ("no port", ibv_ah_attr { port_num: 0, ..good }),
        ("another port", ibv_ah_attr { port_num: 2, ..good }),
        ("service level", ibv_ah_attr { sl: 16, ..good }),
        ("path bits", ibv_ah_attr { src_path_bits: 128, ..good }),
        ("source GID", global(ibv_global_route { sgid_index: 1, ..Default::default() })),
        ("flow label", global(ibv_global_route { flow_label: 1 << 20, ..Default::default() })),
    ];
    for (what, mut attr) in cases {
        // SAFETY: the domain is alive.
        refused(what, EINVAL, || unsafe { (api().create_ah)(bed.pd, &mut attr) });
    }
    bed.close();
}

#[test]
fn kinds_of_objects_that_are_not_described() {
    let mut obj = mlx5dv_obj::default();
    // Work queue, device memory, DEVX.
    for kind in [1 << 3, 1 << 4, 1 << 7, 1 << 40] {
        // SAFETY: no entry is read.
        assert_eq!(unsafe { (api().mlx5dv_init_obj)(ptr::from_mut(&mut obj), kind) }, EOPNOTSUPP);
    }
    // SAFETY: as above.
    assert_eq!(unsafe { (api().mlx5dv_init_obj)(&mut obj, 0) }, 0);
}
