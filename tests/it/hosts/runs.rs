//! Successful runs on one host: every transport and way to ring the card, sweeps, jobs of a launcher.

use super::{Setting, end};
use gdsync_test_support::command::row;
use gdsync_test_support::networks::free_port;
use gdsync_test_support::programs::tool;
use gdsync_test_support::{on_system, skipped_on_system};
use serde_json::Value;
use std::process::Stdio;

/// Every transport with its operations.
pub(super) const TRANSPORTS: [(&str, &str); 7] = [
    ("rc", "send"),
    ("rc", "write"),
    ("rc", "write-imm"),
    ("uc", "send"),
    ("uc", "write"),
    ("uc", "write-imm"),
    ("ud", "send"),
];

#[test]
fn every_transport_operation_and_trigger() {
    let setting = Setting::loopback("hosts-transports");
    for (transport, op) in TRANSPORTS {
        for trigger in ["stream", "cpu"] {
            let options = ["--transport", transport, "--op", op, "--trigger", trigger, "--size", "1000"];
            let report = setting.is_verified(&[&options[..], &["--iters", "200"]].concat(), 200);
            assert_eq!(
                (&report["transport"], &report["op"], &report["trigger"]),
                (&transport.into(), &op.into(), &trigger.into())
            );
        }
    }
}

#[test]
fn every_path_of_doorbells_and_memory_of_queues() {
    let setting = Setting::loopback("hosts-doorbells");
    for options in [
        &["--doorbells", "direct"][..],
        &["--doorbells", "proxy"],
        &["--cq", "stand-in", "--dbrec", "stand-in", "--wq", "stand-in"],
    ] {
        setting.is_verified(&[options, &["--iters", "200"]].concat(), 200);
    }
    if !on_system() {
        setting.is_verified(&["--doorbells", "card", "--iters", "200"], 200);
    }
}

#[test]
fn software_cards_over_tcp() {
    if skipped_on_system("software_cards_over_tcp") {
        return;
    }
    // Two processes of an address, and of two.
    for client in ["127.84.1.1", "127.84.1.2"] {
        let mut setting = Setting::loopback("hosts-tcp");
        setting.under = ["127.84.1.1", client]
            .map(|address| vec!["/usr/bin/env".to_owned(), format!("SOFTHCA_LISTEN={address}:32000")]);
        for (transport, op) in TRANSPORTS {
            let options = ["--transport", transport, "--op", op, "--size", "3000", "--iters", "100"];
            setting.is_verified(&options, 100);
        }
    }
}

#[test]
fn a_sweep_is_one_session() {
    let setting = Setting::loopback("hosts-sweep");
    let [server, client] = setting.succeeds(&["--sizes", "8,4K,0,100K", "--iters", "50", "--csv"]);
    let sizes: Vec<_> = client.lines().skip(1).map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(sizes, ["8", "4096", "0", "102400"], "{client}");
    let verdict: Value = row(server.as_bytes());
    assert_eq!(
        (&verdict["sizes_bytes"], &verdict["iterations"]),
        (&serde_json::json!([8, 4096, 0, 102_400]), &200.into()),
        "{verdict}"
    );
    assert_eq!((&verdict["client"], &verdict["verified"]), (&"127.0.0.1".into(), &true.into()), "{verdict}");
}

#[test]
fn a_duration_ends_both_sides() {
    let setting = Setting::loopback("hosts-duration");
    let [server, client] = setting.succeeds(&["--duration", "300ms", "--json"]);
    let [server, client]: [Value; 2] = [server, client].map(|text| row(text.as_bytes()));
    assert!(client["iterations"].as_u64().unwrap() > 0, "{client}");
    assert_eq!(client["iterations"], server["iterations"], "{client} {server}");
}

#[test]
fn people_read_a_table_here_and_a_verdict_there() {
    let setting = Setting::loopback("hosts-text");
    let server = setting.server(&[], &[]);
    let client = end(setting.client(&server, &["--iters", "20", "--size", "4K"], &[]), "the client");
    let server = end(server.child, "the server");
    assert!(client.out.starts_with("RC send between this side and 127.0.0.1 on "), "{client:?}");
    assert!(client.out.contains("every byte verified\n") && client.out.contains("4 KiB"), "{client:?}");
    let (begins, ends) = ("RC send with 127.0.0.1 on ", ": 20 exchanges, 4 KiB each, every byte verified\n");
    assert!(server.out.starts_with(begins) && server.out.ends_with(ends), "{server:?}");
    assert_eq!([client.said, server.said], ["", ""]);
}

#[test]
fn what_is_not_checked_is_not_called_verified() {
    let setting = Setting::loopback("hosts-unchecked");
    let [server, client] = setting.succeeds(&["--check=false", "--iters", "20", "--json"]);
    for said in [server, client] {
        let said: Value = row(said.as_bytes());
        assert_eq!(said["verified"], Value::Bool(false), "{said}");
    }
}

/// Runs the two processes of a job, with a launcher's variables and this one, by which they meet.
fn two_ranks(test: &str, name: &'static str, value: &str) -> Setting {
    let setting = Setting::loopback(test).with(name, value).with("GDSYNC_SIZE", "2");
    let rank = |rank: &str| {
        setting.command(&["pingpong", "--iters", "50", "--json"], 0).env("GDSYNC_RANK", rank).spawn().unwrap()
    };
    let [server, client] = [rank("0"), rank("1")].map(|child| end(child, "a rank"));
    assert_eq!((server.code, server.out.as_str(), server.said.as_str()), (Some(0), "", ""), "{client:?}");
    let report: Value = row(client.out.as_bytes());
    assert_eq!((&report["server"], &report["verified"]), (&"rank 0".into(), &true.into()), "{report}");
    setting
}

#[test]
fn two_ranks_of_a_job_are_server_and_client() {
    let setting = two_ranks("hosts-job", "GDSYNC_JOB", &format!("hosts-{}", std::process::id()));
    // A single process runs both sides.
    let alone =
        setting.command(&["pingpong", "--procs", "1", "--iters", "5"], 0).env("GDSYNC_RANK", "0").spawn();
    assert_eq!(end(alone.unwrap(), "a process").code, Some(0));
}

#[test]
fn two_ranks_meet_at_a_root() {
    two_ranks("hosts-root", "GDSYNC_ROOT", &format!("127.0.0.1:{}", free_port()));
}

#[test]
fn mpirun_starts_both_sides() {
    let Some(mpirun) = tool("mpirun_starts_both_sides", "mpirun") else { return };
    let mut setting = Setting::loopback("hosts-mpirun");
    let words = ["-n", "2", "--oversubscribe", "--bind-to", "none"].map(str::to_owned);
    setting.under[0] = [&[mpirun.display().to_string()], &words[..]].concat();
    for measured in [&["pingpong"][..], &["bench", "net", "--mode", "rate", "--qps", "4"]] {
        let mut command = setting.command(&[measured, &["--iters", "50", "--json"]].concat(), 0);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let ended = end(command.stdin(Stdio::null()).spawn().unwrap(), "mpirun");
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let report: Value = row(ended.out.as_bytes());
        assert_eq!((&report["server"], &report["verified"]), (&"rank 0".into(), &true.into()), "{report}");
    }
}
