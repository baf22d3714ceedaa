//! Many objects, from many threads, leave nothing in the process.

use crate::verbs_bed::*;
use gdsync_sys::verbs::*;
use gdsync_test_support::process::alone;

fn count(directory: &str) -> usize {
    std::fs::read_dir(directory).expect("procfs is there").count()
}

#[test]
fn a_thousand_queue_pairs_leave_nothing_behind() {
    if !alone(module_path!(), "a_thousand_queue_pairs_leave_nothing_behind", &[]) {
        return;
    }
    // After this, the process has opened its long-lived files.
    Bed::new().close();
    let (descriptors, threads) = (count("/proc/self/fd"), count("/proc/self/task"));

    let bed = Bed::new();
    let cq = bed.cq(4000);
    let mut qps: Vec<*mut ibv_qp> = (0..1000).map(|_| bed.qp(cq)).collect();
    let mut numbers: Vec<u32> = qps.iter().map(|qp| qpn(*qp)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 1000, "every queue pair has a number of its own");
    assert!(numbers.iter().all(|number| *number < 1 << 24));
    for qp in &qps {
        connect(*qp, qpn(*qp), bed.lid());
    }
    for i in (0..qps.len()).rev().step_by(2) {
        destroy_qp(qps.swap_remove(i));
    }
    qps.extend((0..500).map(|_| bed.qp(cq)));
    assert_eq!(qps.len(), 1000);
    qps.into_iter().for_each(destroy_qp);
    destroy_cq(cq);

    // From several threads at once, on a shared context and on separate ones.
    let shared = (bed.context as usize, bed.pd as usize);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                let bed = Bed { context: shared.0 as *mut _, pd: shared.1 as *mut _ };
                for _ in 0..25 {
                    let own = Bed::new();
                    for bed in [&bed, &own] {
                        let cq = bed.cq(16);
                        let qp = bed.qp(cq);
                        connect(qp, qpn(qp), bed.lid());
                        destroy_qp(qp);
                        destroy_cq(cq);
                    }
                    own.close();
                }
            });
        }
    });
    bed.close();
    // A thread that has been joined may be listed for a moment longer.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while (count("/proc/self/fd"), count("/proc/self/task")) != (descriptors, threads) {
        let now = (count("/proc/self/fd"), count("/proc/self/task"));
        assert!(
            std::time::Instant::now() < deadline,
            "descriptors and threads: {now:?}, not {:?}",
            (descriptors, threads)
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
