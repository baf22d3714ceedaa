//! Other communication libraries, two processes each: UCX's tools, and Mooncake's transfer engine.

use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{Running, free_port, run, soft, tool, wait_for_listener};
use gdsync_test_support::{root, skipped};
use std::path::{Path, PathBuf};

#[test]
fn ucx_lists_its_transports() {
    let Some(tool) = tool("ucx_lists_its_transports", "ucx_info") else { return };
    for devices in ["ib", "roce"] {
        let temporary = Folder::new(&format!("ucx-info-{devices}"));
        let mut command = soft(devices, &tool, temporary.path());
        command.arg("-d");
        let ended = run(command);
        let text = ended.succeeded();
        for transport in ["rc_verbs", "rc_mlx5", "dc_mlx5", "ud_verbs", "ud_mlx5"] {
            let line = format!("Transport: {transport}");
            assert!(
                text.lines().any(|found| found.trim_start_matches(['#', ' ']) == line),
                "{transport}: {text}"
            );
        }
        assert!(text.contains("Device: mlx5_0:1"), "{text}");
        assert_eq!(temporary.content(), 0);
    }
}

/// Runs `ucx_perftest` over one transport of the card; nothing else may carry the data.
fn ucx(test: &str, devices: &str, transport: &str, arguments: &[&str]) {
    ucx_with(test, devices, transport, "", arguments);
}

/// As [`ucx`], with a plan of faults on both sides.
fn ucx_with(test: &str, devices: &str, transport: &str, plan: &str, arguments: &[&str]) {
    let Some(tool) = tool(test, "ucx_perftest") else { return };
    let temporary = Folder::new(&format!("{test}-{transport}-{}", arguments.join("")));
    let port = free_port();
    let command = || {
        let mut command = soft(devices, &tool, temporary.path());
        command.args(["-p", &port.to_string()]);
        command.env("UCX_TLS", transport).env("UCX_NET_DEVICES", "mlx5_0:1");
        command.env("SOFTHCA_FAULTS", plan).envs(IMPATIENT.into_iter().filter(|_| !plan.is_empty()));
        command
    };
    let mut server = Running::start(command());
    wait_for_listener(port, &mut server, true);
    let mut client = command();
    client.arg("127.0.0.1").args(arguments);
    let client = run(client);
    assert_eq!(client.code, Some(0), "{transport} {arguments:?} on {devices}: {}", client.text);
    assert!(client.text.contains("Final:"), "{}", client.text);
    assert_eq!(server.end().code, Some(0), "{transport} {arguments:?} on {devices}");
    assert_eq!(temporary.content(), 0);
}

#[test]
fn ucx_sends_over_datagrams() {
    for (devices, transport) in
        [("ib", "ud_verbs"), ("roce", "ud_verbs"), ("ib", "ud_mlx5"), ("roce", "ud_mlx5")]
    {
        ucx("ucx_sends_over_datagrams", devices, transport, &["-t", "tag_bw", "-n", "500", "-s", "10000"]);
    }
}

#[test]
fn ucx_does_all_over_reliable_connections() {
    let test = "ucx_does_all_over_reliable_connections";
    for (devices, kinds) in [("ib", ["tag_bw", "ucp_put_bw"]), ("roce", ["ucp_get", "tag_bw"])] {
        for kind in kinds {
            ucx(test, devices, "rc_v", &["-t", kind, "-n", "500", "-s", "20000"]);
        }
        for kind in ["ucp_fadd", "ucp_cswap"] {
            ucx(test, devices, "rc_v", &["-t", kind, "-n", "200", "-s", "8"]);
        }
    }
}

/// Enough messages of each direction for the flow control of UCX, whose DC grants go to the sender of a message.
const MANY: &str = "1500";

#[test]
fn ucx_does_all_over_the_queues_of_the_device() {
    let test = "ucx_does_all_over_the_queues_of_the_device";
    for transport in ["rc_x", "dc_x"] {
        for (devices, kinds) in [("ib", ["tag_bw", "ucp_put_bw"]), ("roce", ["ucp_get", "tag_bw"])] {
            for kind in kinds {
                ucx(test, devices, transport, &["-t", kind, "-n", "500", "-s", "20000"]);
            }
            ucx(test, devices, transport, &["-t", "tag_bw", "-n", MANY, "-s", "100"]);
            for (kind, size) in [("tag_lat", "8"), ("ucp_fadd", "8"), ("ucp_cswap", "8"), ("ucp_fadd", "4")] {
                ucx(test, devices, transport, &["-t", kind, "-n", "200", "-s", size]);
            }
        }
    }
}

#[test]
fn ucx_puts_and_gets_over_datagrams() {
    for kind in ["ucp_put_bw", "ucp_get"] {
        ucx("ucx_puts_and_gets_over_datagrams", "ib", "ud_verbs", &["-t", kind, "-n", "100", "-s", "100000"]);
    }
    ucx("ucx_puts_and_gets_over_datagrams", "ib", "ud_verbs", &["-t", "ucp_fadd", "-n", "200", "-s", "8"]);
}

/// UCX's default time-out for an acknowledgement is a second. The card runs the configured one 20 times faster.
pub(super) const IMPATIENT: [(&str, &str); 4] = [
    ("SOFTHCA_CLOCK", "20"),
    ("UCX_RC_TIMEOUT", "20ms"),
    ("UCX_DC_TIMEOUT", "20ms"),
    ("UCX_WARN_UNUSED_ENV_VARS", "n"),
];
/// Packets lost, doubled and late, receivers that are not ready, and late completions.
pub(super) const FAULTS: &str =
    "seed=1; drop p=0.01; duplicate p=0.01; delay=200us p=0.02; rnr every=200; late=300us every=50";

#[test]
fn ucx_gets_over_faults() {
    for transport in ["rc_v", "rc_x", "dc_x", "ud_v", "ud_x"] {
        for kind in ["tag_bw", "ucp_put_bw", "ucp_get"] {
            let arguments = ["-t", kind, "-n", "100", "-s", "20000"];
            ucx_with("ucx_gets_over_faults", "ib", transport, FAULTS, &arguments);
        }
        let atomic = ["-t", "ucp_fadd", "-n", "100", "-s", "8"];
        ucx_with("ucx_gets_over_faults", "roce", transport, FAULTS, &atomic);
    }
}

/// Returns the interpreter in `GDSYNC_TEST_PYTHON`, which must then have the module, or `python3` if it has it.
fn python(test: &str, module: &str, package: &str) -> Option<PathBuf> {
    let named = std::env::var_os("GDSYNC_TEST_PYTHON").filter(|name| !name.is_empty());
    let python = PathBuf::from(named.clone().unwrap_or("python3".into()));
    let found = std::process::Command::new(&python).args(["-c", &format!("import {module}")]).output();
    if found.is_ok_and(|ended| ended.status.success()) {
        return Some(python);
    }
    assert!(named.is_none(), "{} has no module {module}", python.display());
    skipped(test, &format!("{} has no module {module} (PyPI {package})", python.display()));
    None
}

/// Runs two processes of the transfer engine, which write and read pieces of 16 MiB.
fn mooncake(test: &str, devices: &str, plan: &str, pieces: u32) {
    let Some(python) = python(test, "mooncake.engine", "mooncake-transfer-engine-non-cuda") else { return };
    let (temporary, meeting) = (Folder::new("mooncake"), Folder::new("mooncake-meeting"));
    let start = |role: &str| {
        let mut command = soft(devices, Path::new(&python), temporary.path());
        command
            .arg(root().join("gdsync-soft/tests/interop/transfer_engine.py"))
            .arg(role)
            .arg(meeting.path());
        command.arg(pieces.to_string()).env("SOFTHCA_FAULTS", plan);
        Running::start(command)
    };
    let (server, client) = (start("server"), start("client"));
    for ended in [client.end(), server.end()] {
        let text = &ended.text;
        assert_eq!(ended.code, Some(0), "{devices}: {text}");
        assert!(text.contains("every byte as written"), "{devices}: {text}");
        assert!(
            text.contains("installTransport, type=rdma") && !text.contains("type=tcp"),
            "{devices}: {text}"
        );
    }
    assert_eq!(temporary.content(), 0);
}

#[test]
fn mooncake_writes_and_reads_a_gibibyte_over_rdma() {
    for devices in ["ib", "roce"] {
        mooncake("mooncake_writes_and_reads_a_gibibyte_over_rdma", devices, "", 64);
    }
}

#[test]
fn mooncake_gets_over_faults() {
    mooncake("mooncake_gets_over_faults", "roce", FAULTS, 2);
}
