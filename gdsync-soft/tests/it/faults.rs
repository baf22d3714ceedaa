//! Programs of rdma-core and perftest while packets are lost, doubled and late, receivers are not ready, and
//! completions are late. (Programs of librdmacm: `connections.rs`; UCX, Open MPI and Mooncake: `interop.rs`, `mpi.rs`.)

use gdsync_test_support::programs::succeeds_with;

/// Faults that reliable connections survive.
const LOSSY: &str =
    "seed=3; drop p=0.02; duplicate p=0.02; delay=200us p=0.02; rnr every=50; late=300us every=40";
/// The same for programs of which one side ends as soon as it has everything: if the last acknowledgement is
/// lost or late, no card repeats it, and the other side fails, as it would with a real card.
pub(super) const LOSSY_ANSWERED: &str = "seed=3; drop p=0.02 kind=send,write,read; duplicate p=0.02; \
     delay=200us p=0.02 kind=send,write,read; rnr every=50; late=300us every=40";
/// The same for transports that lose dropped packets: the programs would wait for them forever.
const LATE: &str = "seed=3; delay=200us p=0.05; hold=3 p=0.02; late=300us every=20";

/// Runs each tool with its arguments on its link layer.
fn each(test: &str, plan: &str, cases: &[(&str, &str, &str)]) {
    let faults = format!("SOFTHCA_FAULTS={plan}");
    for (devices, name, arguments) in cases {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        // Lost packets are sent again after a time-out.
        succeeds_with(test, name, &[&faults, "SOFTHCA_CLOCK=20"], devices, &arguments);
    }
}

#[test]
fn perftest_gets_over_faults() {
    let cases = [
        ("ib", "ib_send_lat", "-n 300"),
        ("ib", "ib_send_bw", "-b -n 300"),
        ("roce", "ib_write_bw", "-s 20000 -n 200"),
        ("ib", "ib_write_lat", "-n 300"),
        ("ib", "ib_read_bw", "-s 20000 -n 200"),
        ("roce", "ib_read_lat", "-n 300"),
        ("ib", "ib_atomic_bw", "-n 300"),
        ("roce", "ib_atomic_lat", "-n 300"),
    ];
    each("perftest_gets_over_faults", LOSSY, &cases);
}

#[test]
fn shared_queues_get_over_faults() {
    let cases = [
        ("ib", "ib_send_bw", "--use-srq -q 4 -s 4096 -n 300"),
        ("roce", "ib_send_lat", "--use-srq -n 200"),
        ("ib", "ib_send_bw", "-c XRC -s 4096 -n 300"),
        ("roce", "ib_read_bw", "-c XRC -n 300"),
        ("ib", "ib_atomic_bw", "-c XRC -n 300"),
    ];
    each("shared_queues_get_over_faults", LOSSY, &cases);
}

#[test]
fn dynamic_connections_get_over_faults() {
    let cases = [
        ("ib", "ib_send_bw", "-c DC -s 4096 -n 300"),
        ("roce", "ib_send_lat", "-c DC -n 300"),
        ("roce", "ib_write_bw", "-c DC -n 300"),
        ("ib", "ib_read_bw", "-c DC -n 300"),
        ("ib", "ib_atomic_bw", "-c DC -n 300"),
    ];
    each("dynamic_connections_get_over_faults", LOSSY, &cases);
}

#[test]
fn unreliable_transports_get_over_delays() {
    let cases = [
        ("ib", "ib_send_lat", "-c UC -n 300"),
        ("roce", "ib_write_bw", "-c UC -n 300"),
        ("ib", "ib_send_bw", "-c UD -n 300"),
        ("roce", "ib_send_lat", "-c UD -n 300"),
        ("ib", "ibv_uc_pingpong", "-n 300 -c"),
        ("roce", "ibv_ud_pingpong", "-g 1 -n 300 -s 1024 -c"),
    ];
    each("unreliable_transports_get_over_delays", LATE, &cases);
}

#[test]
fn pingpongs_get_over_faults() {
    let cases = [
        ("ib", "ibv_rc_pingpong", "-n 300 -c"),
        ("roce", "ibv_rc_pingpong", "-g 3 -e -n 300"),
        ("ib", "ibv_srq_pingpong", "-n 300"),
        ("ib", "ibv_srq_pingpong", "-e -n 300"),
        ("roce", "ibv_srq_pingpong", "-g 3 -n 300"),
        ("roce", "ibv_xsrq_pingpong", "-g 3 -n 300"),
        ("ib", "ibv_xsrq_pingpong", "-e -n 300"),
    ];
    each("pingpongs_get_over_faults", LOSSY_ANSWERED, &cases);
}
