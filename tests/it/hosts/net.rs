//! `gdsync bench net`: each operation and mode between two sides, and the end of runs.

use super::stranger::{self, Stranger};
use super::{ENDLESS, Ended, Setting, end};
use gdsync_test_support::command::{error_in, row, rows, succeeds};
use gdsync_test_support::processes::{has_sent, signal};
use gdsync_test_support::{on_system, skipped_on_system};
use serde_json::{Value, json};
use std::process::Child;

pub(super) const NET: &[&str] = &["bench", "net"];
pub(super) const OPERATIONS: [&str; 5] = ["send", "write", "read", "fetch-add", "compare-swap"];
const KEY: &str = "the key of both sides";

fn net(test: &str) -> Setting {
    Setting { words: NET, ..Setting::loopback(test) }
}

/// Runs server and client, which succeed and have both counted and verified `messages` messages.
pub(super) fn is_verified(setting: &Setting, options: &[&str], messages: u64) -> Value {
    let [server, client] = setting.succeeds(&[options, &["--json"]].concat());
    let [server, client]: [Value; 2] = [server, client].map(|text| row(text.as_bytes()));
    for said in [&server, &client] {
        assert_eq!(said["verified"], Value::Bool(true), "{options:?}: {said}");
        assert_eq!(said["messages"].as_u64(), Some(messages), "{options:?}: {said}");
    }
    assert_eq!(client["server"].as_str(), Some(setting.address.as_str()));
    client
}

#[test]
fn each_operation_in_each_mode() {
    let setting = net("net-operations");
    for operation in OPERATIONS {
        for mode in ["bandwidth", "rate", "latency"] {
            let report =
                is_verified(&setting, &["--operation", operation, "--mode", mode, "--iters", "200"], 200);
            assert_eq!(
                (&report["operation"], &report["mode"]),
                (&operation.into(), &mode.into()),
                "{report}"
            );
            let is_large = mode == "bandwidth" && !["fetch-add", "compare-swap"].contains(&operation);
            assert_eq!(report["size_bytes"], if is_large { 64 << 10 } else { 8 }, "{report}");
            let times = ["min_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us"]
                .map(|name| report[name].as_f64());
            if mode == "latency" {
                let times = times.map(Option::unwrap);
                assert!(times[0] > 0.0 && times.is_sorted(), "{report}");
                assert!(report["memory_operations_per_message"].as_f64().unwrap() >= 3.0, "{report}");
            } else {
                assert_eq!(times, [None; 6], "{report}");
                assert!(report["messages_per_s"].as_f64().unwrap() > 0.0, "{report}");
            }
        }
    }
}

#[test]
fn many_queue_pairs_of_both_directions_over_tcp() {
    if skipped_on_system("many_queue_pairs_of_both_directions_over_tcp") {
        return;
    }
    let setting = net("net-tcp").with("SOFTHCA_LISTEN", "127.84.2.1:32000");
    for operation in OPERATIONS {
        // Not equal for all queue pairs, and not a multiple of a batch.
        let options = ["--operation", operation, "--qps", "3", "--bidirectional", "--iters", "200"];
        let report = is_verified(&setting, &options, 400);
        assert_eq!(
            (&report["qps"], &report["bidirectional"]),
            (&3.into(), &true.into()),
            "both directions are counted: {report}"
        );
    }
    is_verified(&setting, &["--mode", "latency", "--operation", "send", "--iters", "100"], 100);
}

#[test]
fn windows_batches_and_ways_to_ring_the_card() {
    let setting = net("net-ways");
    for options in [
        &["--window", "1"][..],
        &["--window", "7", "--batch", "3", "--qps", "2"],
        &["--batch", "512", "--window", "512"],
        &["--doorbells", "proxy"],
        &["--trigger", "cpu"],
        &["--cq", "stand-in", "--dbrec", "stand-in", "--wq", "stand-in"],
        &["--size", "0"],
        &["--size", "1"],
        &["--size", "1000001", "--qps", "2"],
        &["--warmup", "0"],
    ] {
        is_verified(&setting, &[options, &["--operation", "send", "--iters", "500"]].concat(), 500);
        let others = [options, &["--operation", "read", "--bidirectional", "--iters", "500"]].concat();
        is_verified(&setting, &others, 1000);
    }
    if !on_system() {
        for mode in ["rate", "latency"] {
            is_verified(&setting, &["--doorbells", "card", "--mode", mode, "--iters", "500"], 500);
        }
    }
}

#[test]
fn a_sweep_is_one_session() {
    let setting = net("net-sweep");
    let [server, client] = setting.succeeds(&["--sizes", "8,4K,0,100K", "--iters", "50", "--csv"]);
    let rows: Vec<Vec<&str>> = client.lines().map(|line| line.split(',').collect()).collect();
    let sizes: Vec<_> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(sizes, ["size_bytes", "8", "4096", "0", "102400"], "{client}");
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{client}");
    let verdict: Value = row(server.as_bytes());
    assert_eq!(verdict["sizes_bytes"], json!([8, 4096, 0, 102_400]), "{verdict}");
    assert_eq!((&verdict["messages"], &verdict["verified"]), (&200.into(), &true.into()), "{verdict}");
}

#[test]
fn both_sides_on_one_host_need_no_names() {
    for procs in ["1", "2"] {
        let reports =
            rows(&["bench", "net", "--sizes", "8..32", "--procs", procs, "--iters", "50", "--json"]);
        let sizes: Vec<u64> = reports.iter().map(|row| row["size_bytes"].as_u64().unwrap()).collect();
        assert_eq!(sizes, [8, 16, 32]);
        assert!(reports.iter().all(|row| row["verified"] == true), "{reports:?}");
    }
    let table = succeeds(&["bench", "net", "--check=false", "--iters", "50", "--size", "4K"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("RC write bandwidth between two processes on "), "{table}");
    assert!(lines[0].ends_with(", NOT verified") && lines[2].starts_with("4 KiB  50 "), "{table}");
}

#[test]
fn people_read_a_table_here_and_a_verdict_there() {
    let setting = net("net-text");
    let server = setting.server(&[], &[]);
    let client = end(setting.client(&server, &["--iters", "20", "--size", "4K"], &[]), "the client");
    let server = end(server.child, "the server");
    assert!(client.out.starts_with("RC write bandwidth between this side and 127.0.0.1 on "), "{client:?}");
    let ends = ": 20 messages, 4 KiB each, every byte verified\n";
    assert!(server.out.starts_with("RC write bandwidth with 127.0.0.1 on "), "{server:?}");
    assert!(server.out.ends_with(ends), "{server:?}");
    assert_eq!([client.said, server.said], ["", ""]);
}

#[test]
fn a_duration_ends_both_sides() {
    let setting = net("net-duration");
    for options in [&["--bidirectional", "--operation", "send"][..], &["--mode", "latency"]] {
        let [server, client] = setting.succeeds(&[options, &["--duration", "300ms", "--json"]].concat());
        let [server, client]: [Value; 2] = [server, client].map(|text| row(text.as_bytes()));
        assert!(client["messages"].as_u64().unwrap() > 0, "{client}");
        assert!(client["wall_s"].as_f64().unwrap() >= 0.3, "{client}");
        assert!(client.get("interrupted_of").is_none(), "{client}");
        assert_eq!(server["verified"], true, "{server}");
    }
}

#[test]
fn two_ranks_of_a_job_are_server_and_client() {
    let job = format!("net-{}", std::process::id());
    let setting = net("net-job").with("GDSYNC_JOB", Box::leak(job.into_boxed_str())).with("GDSYNC_SIZE", "2");
    let rank = |rank: &str| {
        let arguments = ["bench", "net", "--iters", "50", "--operation", "fetch-add", "--json"];
        setting.command(&arguments, 0).env("GDSYNC_RANK", rank).spawn().unwrap()
    };
    let [server, client] = [rank("0"), rank("1")].map(|child| end(child, "a rank"));
    assert_eq!((server.code, server.out.as_str(), server.said.as_str()), (Some(0), "", ""), "{client:?}");
    let report: Value = row(client.out.as_bytes());
    assert_eq!((&report["server"], &report["verified"]), (&"rank 0".into(), &true.into()), "{report}");
}

/// More packets than the warm-up sends: something has been measured.
const AT_WORK: u64 = 1000;

/// Starts a server and its client in an endless run, and waits until they are at work.
fn at_work(setting: &Setting, options: &[&str]) -> (Child, Child) {
    let server = setting.server(&["--json"], &[]);
    let warm_up = if options.contains(&"--warmup") { &[][..] } else { &["--warmup", "10"] };
    let client = setting.client(&server, &[&ENDLESS[..], warm_up, options].concat(), &[]);
    has_sent(client.id(), AT_WORK);
    (server.child, client)
}

#[test]
fn an_interrupted_client_prints_what_it_has_and_the_server_ends_well() {
    let setting = net("net-interrupted");
    for options in [
        &["--operation", "send", "--bidirectional"][..],
        &["--operation", "compare-swap", "--qps", "2"],
        &["--mode", "latency", "--operation", "read"],
        &["--warmup", "100000000", "--bidirectional"],
    ] {
        let (server, client) = at_work(&setting, &[options, &["--json"]].concat());
        signal(client.id(), libc::SIGINT);
        let (client, server) = (end(client, "the client"), end(server, "the server"));
        assert_eq!(client.code, Some(130), "{options:?}: {client:?}");
        assert_eq!((server.code, server.said.as_str()), (Some(0), ""), "{options:?}: {server:?}");
        let report: Value = row(client.out.as_bytes());
        let asked = if options.contains(&"--bidirectional") { 2_000_000_000 } else { 1_000_000_000 };
        assert_eq!(
            (&report["interrupted_of"], &report["verified"]),
            (&json!(asked), &true.into()),
            "{report}"
        );
        assert!(report["messages"].as_u64().unwrap() > 0, "{report}");
    }
}

#[test]
fn the_death_of_either_side_ends_the_other() {
    // Time-outs reveal the end of a peer.
    let setting = net("net-death").with("SOFTHCA_CLOCK", "20");
    for options in [&["--operation", "send"][..], &["--operation", "read"], &["--mode", "latency"]] {
        for dies in ["server", "client"] {
            let (server, client) = at_work(&setting, options);
            let (dying, other) = if dies == "server" { (server, client) } else { (client, server) };
            signal(dying.id(), libc::SIGKILL);
            assert_eq!(end(dying, dies).code, None);
            let ended = end(other, &format!("what the death of the {dies} leaves, {options:?}"));
            assert_eq!(ended.code, Some(1), "{ended:?}");
            // The server prints JSON.
            if dies == "client" {
                assert!(ended.said.contains(&error_in(ended.out.as_bytes())), "{ended:?}");
            } else {
                assert_eq!(ended.out, "");
            }
            let causes = ["the other side is gone", "retries exceeded"];
            assert!(causes.iter().any(|cause| ended.said.contains(cause)), "{dies}, {options:?}: {ended:?}");
        }
    }
}

/// Asserts a single error besides the library's log, with these words.
fn says_once(ended: &Ended, words: &str) {
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{ended:?}");
    let errors: Vec<&str> = ended.said.lines().filter(|line| line.starts_with("gdsync: ")).collect();
    assert!(errors.len() == 1 && errors[0].contains(words), "{words}: {ended:?}");
    assert!(errors[0].matches("the other side").count() <= 1, "{ended:?}");
}

#[test]
fn a_failure_of_one_side_is_said_once_by_both() {
    if skipped_on_system("a_failure_of_one_side_is_said_once_by_both") {
        return;
    }
    let setting = net("net-failure");
    let fails = [("SOFTHCA_FAULTS", "fail=retry-exceeded nth=200")];
    for options in [&["--bidirectional"][..], &["--bidirectional", "--operation", "send"]] {
        let server = setting.server(&[], &fails);
        let client = end(setting.client(&server, &[&ENDLESS[..], options].concat(), &[]), "the client");
        let server = end(server.child, "the server");
        says_once(&client, "the other side: ");
        says_once(&client, "retries exceeded");
        says_once(&server, "retries exceeded");
        assert!(!server.said.contains("the other side: "), "{server:?}");
    }
    let server = setting.server(&[], &[]);
    let client = end(setting.client(&server, &ENDLESS, &fails), "the client");
    says_once(&client, "retries exceeded");
    says_once(&end(server.child, "the server"), "the other side: ");
}

#[test]
fn a_client_of_another_command_is_named_on_both_sides() {
    let setting = net("net-other-command");
    let server = setting.server(&[], &[]);
    let host = format!("127.0.0.1:{}", server.port);
    let client = end(setting.command(&["pingpong", &host], 1).spawn().unwrap(), "the client");
    says_once(&client, "the server is `gdsync bench net` and this side is `gdsync pingpong`");
    let server = end(server.child, "the server");
    says_once(&server, "the client is `gdsync pingpong` and this side is `gdsync bench net`");
    assert!(server.said.contains("start the same command on both hosts"), "{server:?}");
}

/// Returns a client's options of a run, with one value replaced.
fn options(name: &str, value: Value) -> Value {
    let mut options = stranger::options("operation", json!("write"));
    for (name, value) in [
        ("mode", json!("rate")),
        ("size", json!(8)),
        ("qps", json!(1)),
        ("window", json!(null)),
        ("batch", json!(null)),
        ("bidirectional", json!(false)),
        (name, value),
    ] {
        options[name] = value;
    }
    options
}

fn greeted(port: u16) -> Stranger {
    stranger::greeted_as(port, KEY, "bench net")
}

#[test]
fn runs_that_the_server_cannot_do_end_both_sides() {
    let setting = net("net-refused").with("GDSYNC_KEY", KEY);
    for (change, value, said) in [
        ("size", json!(1u64 << 40), "1099511627776 bytes of a message are not from 0 to 1073741824"),
        ("qps", json!(0), "0 queue pairs are not from 1 to 256"),
        ("window", json!(5000), "5000 messages under way are not from 1 to 1024"),
        ("iters", json!(0), "0 messages to measure are not from 1"),
        ("operation", json!("fetch-add"), ""),
        ("operation", json!("dance"), "says what this version does not know"),
    ] {
        let server = setting.server(&[], &[]);
        let mut client = greeted(server.port);
        client.say(&json!({ "run": options(change, value) }));
        if said.is_empty() {
            // A valid run begins, and ends with the client.
            assert_eq!(client.hear(), json!({ "begin": { "gpu": null } }));
            drop(client);
            says_once(&end(server.child, "the server"), "gone");
            continue;
        }
        let server = end(server.child, "the server");
        says_once(&server, said);
    }
}

#[test]
fn sides_that_differ_in_their_queue_pairs_are_refused() {
    let setting = net("net-queue-pairs").with("GDSYNC_KEY", KEY);
    let server = setting.server(&[], &[]);
    let mut client = greeted(server.port);
    client.say(&json!({ "run": options("qps", json!(2)) }));
    client.hear();
    let hello = client.hear();
    let mut own = hello.clone();
    own["hello"]["endpoints"].as_array_mut().unwrap().truncate(1);
    client.say(&own);
    let done = client.hear();
    let said = "the other side has 1 queue pairs and this one 2";
    assert_eq!(done["done"]["error"], said, "{done}");
    says_once(&end(server.child, "the server"), said);
}
