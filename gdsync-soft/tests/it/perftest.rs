//! perftest, over all sizes. Few iterations: each side of the tool keeps a processor busy for a quarter of a
//! second for each size, and each exchange of a latency test waits until a busy machine has run both sides.
//! Latency tests therefore have one size of each kind: inline, one packet, several packets.

use gdsync_test_support::programs::succeeds;

/// Sends, writes and reads of 2 bytes to 8 MiB on one connection.
fn all_sizes(test: &str, tool: &str) {
    succeeds(test, tool, "ib", &["-a", "-n", "40"]);
    succeeds(test, tool, "roce", &["-s", "5000", "-n", "200"]);
}

fn some_sizes(test: &str, tool: &str) {
    for (devices, size) in [("ib", "2"), ("ib", "2000"), ("ib", "8388608"), ("roce", "5000")] {
        succeeds(test, tool, devices, &["-s", size, "-n", "40"]);
    }
}

#[test]
fn send_latency() {
    some_sizes("send_latency", "ib_send_lat");
    succeeds("send_latency", "ib_send_lat", "ib", &["-e", "-n", "40"]);
}

#[test]
fn send_bandwidth() {
    all_sizes("send_bandwidth", "ib_send_bw");
    succeeds("send_bandwidth", "ib_send_bw", "ib", &["-b", "-e", "-n", "500"]);
}

#[test]
fn write_latency() {
    some_sizes("write_latency", "ib_write_lat");
}

#[test]
fn write_bandwidth() {
    all_sizes("write_bandwidth", "ib_write_bw");
    succeeds("write_bandwidth", "ib_write_bw", "ib", &["-q", "8", "-n", "200"]);
}

#[test]
fn read_latency() {
    some_sizes("read_latency", "ib_read_lat");
}

#[test]
fn read_bandwidth() {
    all_sizes("read_bandwidth", "ib_read_bw");
}

#[test]
fn atomics() {
    for kind in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
        succeeds("atomics", "ib_atomic_bw", "ib", &["-A", kind, "-n", "500"]);
        succeeds("atomics", "ib_atomic_lat", "roce", &["-A", kind, "-n", "40"]);
    }
}

#[test]
fn unreliable_connections() {
    succeeds("unreliable_connections", "ib_send_lat", "ib", &["-c", "UC", "-n", "40"]);
    succeeds("unreliable_connections", "ib_write_bw", "roce", &["-c", "UC", "-n", "200"]);
}

#[test]
fn datagrams() {
    succeeds("datagrams", "ib_send_lat", "ib", &["-c", "UD", "-n", "40"]);
    succeeds("datagrams", "ib_send_lat", "roce", &["-c", "UD", "-n", "40"]);
}

#[test]
fn on_demand_memory() {
    for (tool, more) in [
        ("ib_write_bw", &["--odp", "-n", "200"][..]),
        ("ib_read_lat", &["--odp", "-n", "40"]),
        ("ib_send_bw", &["--odp", "--use-srq", "-n", "200"]),
        ("ib_write_bw", &["--odp", "-c", "DC", "-n", "200"]),
    ] {
        succeeds("on_demand_memory", tool, "ib", more);
    }
    succeeds("on_demand_memory", "ib_write_lat", "roce", &["--odp", "-n", "40"]);
}

#[test]
fn shared_receive_queues() {
    for (tool, arguments) in [
        ("ib_send_bw", &["--use-srq", "-n", "500"][..]),
        ("ib_send_bw", &["--use-srq", "-q", "4", "-n", "500"]),
        ("ib_send_lat", &["--use-srq", "-n", "40"]),
        ("ib_send_bw", &["--use-srq", "-c", "UD", "-n", "500"]),
    ] {
        succeeds("shared_receive_queues", tool, "ib", arguments);
    }
    succeeds("shared_receive_queues", "ib_send_bw", "roce", &["--use-srq", "-s", "5000", "-n", "200"]);
}

#[test]
fn extended_reliable_connections() {
    for tool in ["ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
        succeeds("extended_reliable_connections", tool, "ib", &["-c", "XRC", "-n", "300"]);
    }
    succeeds("extended_reliable_connections", "ib_send_bw", "ib", &["-c", "XRC", "-q", "4", "-n", "300"]);
    succeeds(
        "extended_reliable_connections",
        "ib_send_bw",
        "roce",
        &["-c", "XRC", "-s", "3000000", "-n", "40"],
    );
}

#[test]
fn dynamically_connected_transport() {
    for tool in ["ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat", "ib_read_bw", "ib_atomic_bw"] {
        succeeds("dynamically_connected_transport", tool, "ib", &["-c", "DC", "-n", "300"]);
    }
    succeeds("dynamically_connected_transport", "ib_send_bw", "ib", &["-c", "DC", "-q", "4", "-n", "300"]);
    succeeds(
        "dynamically_connected_transport",
        "ib_write_bw",
        "roce",
        &["-c", "DC", "-x", "3", "-s", "3000000", "-n", "40"],
    );
}
