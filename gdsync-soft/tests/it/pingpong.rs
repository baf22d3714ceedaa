//! rdma-core's own examples, on both link layers. `-c` checks the data.

use gdsync_test_support::programs::succeeds;

const IB: &str = "ib";
const ROCE: &str = "roce";

#[test]
fn rc_pingpong() {
    for (devices, gid) in [(IB, &[][..]), (IB, &["-g", "0"]), (ROCE, &["-g", "1"]), (ROCE, &["-g", "3"])] {
        for more in [&[][..], &["-e"], &["-c"], &["-e", "-c"]] {
            let arguments = [&["-n", "50"], gid, more].concat();
            succeeds("rc_pingpong", "ibv_rc_pingpong", devices, &arguments);
        }
    }
}

#[test]
fn rc_pingpong_of_large_messages_and_many_receives() {
    succeeds("rc_large", "ibv_rc_pingpong", IB, &["-n", "20", "-s", "3000000", "-c"]);
    succeeds("rc_large", "ibv_rc_pingpong", IB, &["-n", "200", "-r", "4000", "-m", "256"]);
}

#[test]
fn uc_pingpong() {
    for (devices, gid) in [(IB, &[][..]), (ROCE, &["-g", "3"])] {
        for more in [&[][..], &["-e"], &["-c"]] {
            let arguments = [&["-n", "50"], gid, more].concat();
            succeeds("uc_pingpong", "ibv_uc_pingpong", devices, &arguments);
        }
    }
}

#[test]
fn ud_pingpong() {
    for (devices, gid) in [(IB, &[][..]), (IB, &["-g", "0"]), (ROCE, &["-g", "1"]), (ROCE, &["-g", "3"])] {
        for more in [&[][..], &["-e"], &["-c"]] {
            let arguments = [&["-n", "50", "-s", "1024"], gid, more].concat();
            succeeds("ud_pingpong", "ibv_ud_pingpong", devices, &arguments);
        }
    }
}

#[test]
fn srq_pingpong() {
    for (devices, gid) in [(IB, &[][..]), (ROCE, &["-g", "3"])] {
        for more in [&[][..], &["-e"], &["-q", "3", "-r", "40"]] {
            let arguments = [&["-n", "50"], gid, more].concat();
            succeeds("srq_pingpong", "ibv_srq_pingpong", devices, &arguments);
        }
    }
}

#[test]
fn xsrq_pingpong() {
    for (devices, gid) in [(IB, &[][..]), (ROCE, &["-g", "3"])] {
        for more in [&[][..], &["-e"]] {
            let arguments = [&["-n", "50"], gid, more].concat();
            succeeds("xsrq_pingpong", "ibv_xsrq_pingpong", devices, &arguments);
        }
    }
}

#[test]
fn completions_have_times() {
    succeeds("completions_have_times", "ibv_rc_pingpong", IB, &["-n", "50", "-t"]);
    succeeds("completions_have_times", "ibv_rc_pingpong", ROCE, &["-n", "50", "-g", "3", "-t"]);
}
