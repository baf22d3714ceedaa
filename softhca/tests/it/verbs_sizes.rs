//! Granted sizes: libmlx5's numbers (`providers/mlx5/verbs.c`).

use crate::verbs_bed::*;
use gdsync_sys::verbs::*;
use std::ptr;

#[test]
fn completion_queues_are_rounded_up_with_one_entry_to_spare() {
    let bed = Bed::new();
    for (asked, entries) in [(1, 2), (2, 4), (3, 4), (4, 8), (127, 128), (128, 256), (65535, 65536)] {
        let cq = bed.cq(asked);
        let described = describe_cq(cq);
        assert_eq!(described.cqe_cnt, entries, "asked for {asked}");
        // SAFETY: alive.
        assert_eq!(unsafe { (*cq).cqe } as u32, entries - 1);
        // SAFETY: the record is two words, the ring `entries` of 64 bytes.
        unsafe {
            // The card may change the second word, which arms the queue.
            assert_eq!(described.dbrec.cast::<u32>().read(), 0);
            for entry in 0..entries as usize {
                let op_own = described.buf.cast::<u8>().add(entry * 64 + 63).read();
                assert_eq!(op_own, 0xf0, "entry {entry} is invalid, owner 0, as libmlx5 leaves it");
            }
        }
        destroy_cq(cq);
    }
    bed.close();
}

#[test]
fn queue_pairs_are_granted_what_libmlx5_grants() {
    let bed = Bed::new();
    let cq = bed.cq(1);
    // (send_wr, recv_wr, send_sge, recv_sge, inline), granted, (blocks, entries, stride)
    let cases = [
        ((1, 1, 1, 1, 0), (1, 4, 1, 1, 60), (4, 4, 16)),
        ((128, 128, 4, 4, 44), (128, 128, 4, 4, 60), (512, 128, 64)),
        ((100, 100, 5, 3, 0), (102, 128, 5, 4, 124), (512, 128, 64)),
        ((3, 5, 1, 0, 61), (3, 8, 1, 1, 124), (16, 8, 16)),
        ((0, 4, 0, 1, 0), (0, 4, 0, 1, 0), (0, 4, 16)),
        ((4, 0, 1, 0, 0), (4, 0, 1, 0, 60), (16, 0, 1)),
        ((0, 0, 0, 0, 0), (0, 0, 0, 0, 0), (0, 0, 1)),
    ];
    let cap = |(send_wr, recv_wr, send_sge, recv_sge, inline)| ibv_qp_cap {
        max_send_wr: send_wr,
        max_recv_wr: recv_wr,
        max_send_sge: send_sge,
        max_recv_sge: recv_sge,
        max_inline_data: inline,
    };
    for (asked, granted, sizes) in cases {
        let mut attr = ibv_qp_init_attr_ex { cap: cap(asked), sq_sig_all: 1, ..bed.qp_attr(cq, cq) };
        attr.qp_context = 0x77 as *mut _;
        // SAFETY: everything named is alive.
        let qp = unsafe { (api().mlx5dv_create_qp)(bed.context, &mut attr, ptr::null_mut()) };
        assert!(!qp.is_null(), "{asked:?}");
        assert_eq!(attr.cap, cap(granted), "{asked:?}");
        let described = describe_qp(qp);
        assert_eq!((described.sq.wqe_cnt, described.rq.wqe_cnt, described.rq.stride), sizes, "{asked:?}");
        // SAFETY: the record is two words.
        assert_eq!(unsafe { described.dbrec.cast::<[u32; 2]>().read() }, [0, 0]);
        let (now, init) = query(qp);
        assert_eq!((now.cap, init.cap), (cap(granted), cap(granted)));
        assert_eq!((init.send_cq, init.recv_cq, init.qp_type, init.sq_sig_all), (cq, cq, IBV_QPT_RC, 1));
        assert_eq!((init.qp_context as usize, init.srq.is_null()), (0x77, true));
        destroy_qp(qp);
    }
    destroy_cq(cq);
    bed.close();
}
