//! An exhausted card: ENOMEM, and everything can be freed and taken again.

use gdsync_sys::api::VerbsApi;
use gdsync_sys::system;
use gdsync_sys::verbs as ibv;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::process::{ROLE, arguments, role};
use gdsync_test_support::programs::{lacks, run, soft};
use softhca::card::{LIMITS, Limits, OBJECTS_VARIABLE};
use std::{io, ptr};

/// The role of the process that takes everything: this test again, under `gdsync soft`.
const INSIDE: &str = "exhaust";
/// The card's limit on objects of a kind. `GDSYNC_TEST_ALL_OBJECTS=1`: the limit without a setting, which
/// takes minutes.
const FEW: u32 = 2048;
const ALL_VARIABLE: &str = "GDSYNC_TEST_ALL_OBJECTS";
/// Limit on its memory, libmlx5's included, with few objects and with all: then it peaks at 588 MiB with all regions, at
/// 1,045 MiB with all completion queues, and at 1,150 MiB with all queue pairs.
const MEMORY_KIB: [i64; 2] = [1 << 18, 1200 << 10];

#[test]
fn everything_can_be_exhausted_and_given_back() {
    let test = "everything_can_be_exhausted_and_given_back";
    if role().is_some_and(|role| role == INSIDE) {
        let all = std::env::var_os(ALL_VARIABLE).is_some();
        let limits = if all { LIMITS } else { Limits::of_objects(FEW) };
        return exhaust(system::load().unwrap(), &limits, MEMORY_KIB[usize::from(all)]);
    }
    if let Err(error) = system::load() {
        return lacks(test, &error.to_string());
    }
    let temporary = Folder::new("exhaustion");
    let mut command = soft("1", &std::env::current_exe().unwrap(), temporary.path());
    command.args(arguments(module_path!(), test)).env(ROLE, INSIDE);
    if std::env::var_os(ALL_VARIABLE).is_none() {
        command.env(OBJECTS_VARIABLE, FEW.to_string());
    }
    let ended = run(command);
    assert!(ended.succeeded().contains("1 passed"), "{}", ended.text);
    assert_eq!(temporary.content(), 0);
}

/// Takes all objects of a kind, checks the error, frees them, and takes a few again.
fn exhausted<T>(limit: u32, mut take: impl FnMut() -> *mut T, give_back: impl Fn(*mut T) -> i32) {
    let mut taken = Vec::new();
    let refused = loop {
        let one = take();
        if one.is_null() {
            break io::Error::last_os_error();
        }
        assert!(taken.len() < limit as usize, "there is no limit");
        taken.push(one);
    };
    assert_eq!(refused.raw_os_error(), Some(libc::ENOMEM), "after {}", taken.len());
    assert!(taken.len() as u32 > limit - 16, "only {} of {limit}", taken.len());
    // Freeing one makes room for one.
    assert_eq!(give_back(taken.pop().unwrap()), 0);
    taken.push(take());
    assert!(!taken[taken.len() - 1].is_null() && take().is_null());
    assert!(taken.into_iter().all(|one| give_back(one) == 0));
    let again: Vec<*mut T> = (0..100).map(|_| take()).collect();
    assert!(again.into_iter().all(|one| !one.is_null() && give_back(one) == 0));
}

fn exhaust(api: &VerbsApi, limits: &Limits, memory_kib: i64) {
    // SAFETY: calls that follow the manual pages; each object is destroyed once, users first, and the buffer
    // outlives its regions.
    unsafe {
        let list = (api.get_device_list)(ptr::null_mut());
        assert!(!list.is_null() && !(*list).is_null());
        let context = (api.open_device)(*list);
        (api.free_device_list)(list);
        let pd = (api.alloc_pd)(context);
        assert!(!context.is_null() && !pd.is_null());
        let mut said: ibv::ibv_device_attr = std::mem::zeroed();
        assert_eq!((api.query_device)(context, &mut said), 0);
        assert_eq!(
            [said.max_mr, said.max_cq, said.max_qp].map(|most| most as u32),
            [limits.max_mr, limits.max_cq, limits.max_qp]
        );
        let mut buffer = vec![0u8; 4096];
        exhausted(
            limits.max_mr,
            || (api.reg_mr)(pd, buffer.as_mut_ptr().cast(), 64, 1),
            |mr| (api.dereg_mr)(mr),
        );
        let create_cq = || {
            let mut asked: ibv::ibv_cq_init_attr_ex = std::mem::zeroed();
            asked.cqe = 1;
            (api.mlx5dv_create_cq)(context, &mut asked, ptr::null_mut())
        };
        exhausted(limits.max_cq, create_cq, |cq| (api.destroy_cq)(cq));
        let cq = create_cq();
        let create_qp = || {
            let mut asked: ibv::ibv_qp_init_attr_ex = std::mem::zeroed();
            (asked.send_cq, asked.recv_cq, asked.qp_type) = (cq, cq, ibv::IBV_QPT_RC);
            (asked.cap.max_send_wr, asked.cap.max_recv_wr) = (1, 1);
            (asked.cap.max_send_sge, asked.cap.max_recv_sge) = (1, 1);
            (asked.comp_mask, asked.pd) = (ibv::IBV_QP_INIT_ATTR_PD, pd);
            (api.mlx5dv_create_qp)(context, &mut asked, ptr::null_mut())
        };
        exhausted(limits.max_qp, create_qp, |qp| (api.destroy_qp)(qp));
        assert_eq!([(api.destroy_cq)(cq), (api.dealloc_pd)(pd), (api.close_device)(context)], [0; 3]);
        let mut used: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut used), 0);
        assert!(used.ru_maxrss < memory_kib, "{} KiB", used.ru_maxrss);
    }
}
