//! Objects are created and destroyed in order: a parent stays while objects made from it exist.

use crate::verbs_bed::*;
use gdsync_sys::mlx5dv::*;
use gdsync_sys::verbs::*;
use std::ptr;

/// Destroys that must be refused with EBUSY now.
macro_rules! busy {
    ($($call:ident($object:expr)),* $(,)?) => {{
        $(
            clear_errno();
            // SAFETY: the object is alive; being busy, it stays so.
            assert_eq!(unsafe { (api().$call)($object) }, libc::EBUSY, stringify!($call $object));
            assert_eq!(errno(), libc::EBUSY);
        )*
    }};
}

/// Destroys that must succeed now.
macro_rules! gone {
    ($($call:ident($object:expr)),* $(,)?) => {{
        $(
            // SAFETY: the object is alive, and used no more.
            assert_eq!(unsafe { (api().$call)($object) }, 0, stringify!($call $object));
        )*
    }};
}

#[test]
fn parents_with_children_are_busy() {
    let Bed { context, pd } = Bed::new();
    let bed = Bed { context, pd };
    let mut memory = vec![0; 4096];
    let (mr, cq, other_cq) = (bed.register(&mut memory, 0), bed.cq(10), bed.cq(10));
    busy!(close_device(context), dealloc_pd(pd));
    gone!(dereg_mr(mr), destroy_cq(other_cq));

    // SAFETY: everything named is alive.
    let (td, parent, ah) = unsafe {
        let td = (api().alloc_td)(context, &mut ibv_td_init_attr::default());
        let mut attr = ibv_parent_domain_init_attr { pd, td, ..zeroed() };
        let parent = (api().alloc_parent_domain)(context, &mut attr);
        let ah = (api().create_ah)(pd, &mut ibv_ah_attr { port_num: 1, ..Default::default() });
        (td, parent, ah)
    };
    assert!(!td.is_null() && !parent.is_null() && !ah.is_null());
    busy!(dealloc_pd(pd), dealloc_td(td));
    gone!(destroy_ah(ah));
    busy!(dealloc_pd(pd));

    let send_cq = bed.cq(10);
    let mut attr = ibv_qp_init_attr_ex { pd: parent, ..bed.qp_attr(send_cq, cq) };
    // SAFETY: everything named is alive.
    let qp = unsafe { (api().mlx5dv_create_qp)(context, &mut attr, ptr::null_mut()) };
    assert!(!qp.is_null());
    busy!(dealloc_pd(parent), dealloc_td(td), dealloc_pd(pd), destroy_cq(cq), destroy_cq(send_cq));
    busy!(close_device(context));
    gone!(destroy_qp(qp), destroy_cq(send_cq), destroy_cq(cq), dealloc_pd(parent), dealloc_td(td));

    // A completion queue keeps the parent domain whose allocators it uses.
    // SAFETY: everything named is alive.
    let (parent, cq) = unsafe {
        let parent =
            (api().alloc_parent_domain)(context, &mut ibv_parent_domain_init_attr { pd, ..zeroed() });
        let mut attr = ibv_cq_init_attr_ex {
            comp_mask: IBV_CQ_INIT_ATTR_MASK_PD,
            parent_domain: parent,
            ..Bed::cq_attr(1)
        };
        (parent, (api().mlx5dv_create_cq)(context, &mut attr, ptr::null_mut()))
    };
    assert!(!cq.is_null());
    busy!(dealloc_pd(parent));
    gone!(destroy_cq(cq), dealloc_pd(parent));

    gone!(dealloc_pd(pd));
    gone!(close_device(context));
}

#[test]
fn a_parent_domain_serves_wherever_a_domain_does() {
    let bed = Bed::new();
    let mut memory = vec![0; 64];
    // SAFETY: everything named is alive.
    unsafe {
        let parent = (api().alloc_parent_domain)(
            bed.context,
            &mut ibv_parent_domain_init_attr { pd: bed.pd, ..zeroed() },
        );
        assert!(!parent.is_null());
        let numbers = [bed.pd, parent].map(|pd| {
            let mut out: mlx5dv_pd = zeroed();
            let mut obj = mlx5dv_obj::default();
            (obj.pd.r#in, obj.pd.out) = (pd, &mut out);
            assert_eq!((api().mlx5dv_init_obj)(&mut obj, MLX5DV_OBJ_PD), 0);
            out.pdn
        });
        assert_eq!(numbers[0], numbers[1], "it stands for the protection domain");
        let mr = (api().reg_mr)(parent, memory.as_mut_ptr().cast(), memory.len(), 0);
        let ah = (api().create_ah)(parent, &mut ibv_ah_attr { port_num: 1, ..Default::default() });
        assert!(!mr.is_null() && !ah.is_null());
        assert_eq!(((*mr).pd, (*mr).context, (*mr).length), (parent, bed.context, 64));
        // Both belong to the protection domain: the parent domain may go before them.
        assert_eq!((api().dealloc_pd)(parent), 0);
        assert_eq!((api().dealloc_pd)(bed.pd), libc::EBUSY);
        assert_eq!(((api().dereg_mr)(mr), (api().destroy_ah)(ah)), (0, 0));
    }
    bed.close();
}

#[test]
fn thread_domains_have_a_register_of_their_own() {
    let bed = Bed::new();
    let cq = bed.cq(10);
    let (first, second) = (bed.qp(cq), bed.qp(cq));
    let shared = describe_qp(first).bf;
    assert_eq!(describe_qp(second).bf.reg, shared.reg, "without a thread domain, the context's register");
    assert_eq!((shared.reg as usize & 0xfff, shared.size), (0x800, 0));
    // SAFETY: everything named is alive, and goes in order.
    unsafe {
        let td = (api().alloc_td)(bed.context, &mut ibv_td_init_attr::default());
        let mut domain = ibv_parent_domain_init_attr { pd: bed.pd, td, ..zeroed() };
        let parent = (api().alloc_parent_domain)(bed.context, &mut domain);
        let mut attr = ibv_qp_init_attr_ex { pd: parent, ..bed.qp_attr(cq, cq) };
        let qp = (api().mlx5dv_create_qp)(bed.context, &mut attr, ptr::null_mut());
        let own = describe_qp(qp).bf;
        assert_eq!((own.reg as usize & 0xfff, own.size), (0x800, 0));
        assert_ne!(own.reg, shared.reg);
        assert_eq!(((*qp).pd, (*qp).send_cq, (*qp).recv_cq, (*qp).context), (parent, cq, cq, bed.context));
        destroy_qp(qp);
        assert_eq!(((api().dealloc_pd)(parent), (api().dealloc_td)(td)), (0, 0));
    }
    destroy_qp(first);
    destroy_qp(second);
    destroy_cq(cq);
    bed.close();
}

#[test]
fn several_objects_are_described_at_once() {
    let bed = Bed::new();
    let cq = bed.cq(7);
    let qp = bed.qp(cq);
    let (mut qp_out, mut cq_out, mut pd_out): (mlx5dv_qp, mlx5dv_cq, mlx5dv_pd) =
        (zeroed(), zeroed(), zeroed());
    qp_out.comp_mask = MLX5DV_QP_MASK_UAR_MMAP_OFFSET;
    (cq_out.comp_mask, pd_out.comp_mask) = (!0, !0);
    let mut obj = mlx5dv_obj::default();
    (obj.qp.r#in, obj.qp.out) = (qp, &mut qp_out);
    (obj.cq.r#in, obj.cq.out) = (cq, &mut cq_out);
    (obj.pd.r#in, obj.pd.out) = (bed.pd, &mut pd_out);
    let kinds = MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ | MLX5DV_OBJ_PD;
    // SAFETY: everything named is alive.
    assert_eq!(unsafe { (api().mlx5dv_init_obj)(&mut obj, kinds) }, 0);
    assert_eq!((qp_out.comp_mask, cq_out.comp_mask, pd_out.comp_mask), (0, 0, 0), "nothing more can be had");
    assert_eq!((cq_out.cqe_cnt, cq_out.cqe_size), (8, 64));
    assert_eq!((qp_out.sq.stride, qp_out.rq.stride), (64, 32));
    assert_eq!(
        qp_out.sq.buf as usize,
        qp_out.rq.buf as usize + 16 * 32,
        "the send queue follows the receive queue"
    );
    assert_eq!((qp_out.rq.buf as usize % 4096, cq_out.buf as usize % 4096), (0, 0));
    assert_eq!(
        (qp_out.dbrec as usize % 64, cq_out.dbrec as usize % 64),
        (0, 0),
        "records share no cache line"
    );
    assert!(cq_out.cqn > 0 && pd_out.pdn > 0 && !cq_out.cq_uar.is_null());
    destroy_qp(qp);
    destroy_cq(cq);
    bed.close();
}

#[test]
fn an_address_handle_holds_the_vector_of_the_card() {
    let bed = Bed::new();
    let mut attr = ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: [0xab; 16] },
            flow_label: 0x12345,
            sgid_index: 0,
            hop_limit: 64,
            traffic_class: 7,
        },
        dlid: 0x1234,
        sl: 5,
        src_path_bits: 3,
        // IBV_RATE_100_GBPS, which the card calls 15 (120 Gbit/s).
        static_rate: 16,
        is_global: 1,
        port_num: 1,
    };
    let vector = |attr: &mut ibv_ah_attr| {
        // SAFETY: the vector is read while the handle is alive.
        unsafe {
            let ah = (api().create_ah)(bed.pd, attr);
            assert!(!ah.is_null());
            let mut out: mlx5dv_ah = zeroed();
            let mut obj = mlx5dv_obj::default();
            (obj.ah.r#in, obj.ah.out) = (ah, &mut out);
            assert_eq!((api().mlx5dv_init_obj)(&mut obj, MLX5DV_OBJ_AH), 0);
            let bytes = out.av.cast::<[u8; 48]>().read();
            assert_eq!((api().destroy_ah)(ah), 0);
            bytes
        }
    };
    // mlx5dv.h, struct mlx5_wqe_av; the queue pair and its key are filled in by the poster.
    let mut expected = [0; 48];
    expected[12..16].copy_from_slice(&[0xf5, 0x03, 0x12, 0x34]);
    expected[26..32].copy_from_slice(&[7, 64, 0x40, 0x01, 0x23, 0x45]);
    expected[32..].fill(0xab);
    assert_eq!(vector(&mut attr), expected);
    (attr.is_global, attr.static_rate) = (0, 200);
    expected[12] = 0x05;
    expected[26..].fill(0);
    assert_eq!(vector(&mut attr), expected);
    bed.close();
}
