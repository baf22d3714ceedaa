//! The command as a user runs it.

use gdsync_test_support::command::{error_in, gdsync, json, row, rows, rows_in, run, succeeds, text};
use gdsync_test_support::command::{no_gpu, program};
use gdsync_test_support::processes::{children_of, has_sent, is_running, signal};
use gdsync_test_support::{on_system, skipped};
use serde_json::Value;
use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

#[test]
fn every_way_to_play_pingpong_is_verified() {
    for op in ["send", "write", "write-imm"] {
        for trigger in ["stream", "cpu"] {
            for procs in ["1", "2"] {
                let arguments = ["pingpong", "--op", op, "--trigger", trigger, "--procs", procs];
                let more = ["--iters", "150", "--warmup", "20", "--size", "1000", "--json"];
                let report = json(&[&arguments[..], &more[..]].concat());
                assert_eq!(report["verified"], true, "{report}");
                assert_eq!((&report["op"], &report["trigger"]), (&op.into(), &trigger.into()), "{report}");
                assert_eq!(
                    (&report["iterations"], &report["size_bytes"]),
                    (&150.into(), &1000.into()),
                    "{report}"
                );
                let time = |name: &str| report[name].as_f64().unwrap();
                assert!(0.0 < time("min_us") && time("min_us") <= time("max_us"), "{report}");
                assert!(time("messages_per_s") > 0.0 && time("bytes_per_s") > 0.0, "{report}");
                // Two operations for a doorbell, and one for the wait for the peer's message.
                assert!(time("memory_operations_per_iteration") >= 3.0, "{report}");
            }
        }
    }
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let command = "$0 pingpong --procs 1 --iters 10";
    for stderr in ["2>/dev/full", "2>&-"] {
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", &format!("{command} {stderr}")]).arg(gdsync(&[]).get_program());
        let ended = shell.env("GDSYNC_LOG", "trace").output().unwrap();
        assert!(ended.status.success() && !ended.stdout.is_empty(), "{stderr}: {ended:?}");
    }
}

#[test]
fn the_log_names_the_rank_and_the_process() {
    let mut command = gdsync(&["pingpong", "--procs", "1", "--iters", "10"]);
    let output = command.env("GDSYNC_LOG", "trace").env("PMI_RANK", "5").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("Z rank 5, process "), "{said}");
}

#[test]
fn batches_are_explained() {
    let report = json(&["explain", "--example", "alltoall", "--json"]);
    assert_eq!(report["merged"]["operations"].as_array().unwrap().len(), 193, "{report}");
    assert_eq!(report["descriptors"].as_array().unwrap().len(), 128, "{report}");
    let plain = json(&["explain", "--example", "halo", "--plain", "--json"]);
    assert!(plain.get("merged").is_none() && plain["plain"]["gpu_us"].as_f64().unwrap() > 18.0, "{plain}");
    let card = json(&["explain", "--example", "card", "--json"]);
    assert_eq!(card["merged"]["operations"].as_array().unwrap().len(), 3, "{card}");
    let streams = json(&["explain", "--example", "card", "--collect-from", "129", "--json"]);
    assert_eq!(streams["merged"]["operations"].as_array().unwrap().len(), 1 + 128 + 1, "{streams}");
    assert_eq!(run(&["explain", "--example", "card", "--collect-from", "0"]).status.code(), Some(2));
    let text = succeeds(&["explain", "--example", "pingpong"]);
    assert!(text.ends_with("merged: 5 memory operations, 1 submission, 3.89 µs of a GPU\n"), "{text}");
}

#[test]
fn a_batch_that_makes_no_sense_is_refused_with_its_place() {
    let file = std::env::temp_dir().join(format!("gdsync-explain-{}", std::process::id()));
    std::fs::write(&file, "send left\nwait32 flag ?? 3\n").unwrap();
    let output = run(&["explain", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("line 2, column 13: ?? is no condition"), "{said}");
    assert_eq!(run(&["explain", "/nowhere/at/all"]).status.code(), Some(1));
}

#[test]
fn sizes_from_nothing_to_more_than_a_packet() {
    for size in ["0", "1", "7", "4KiB", "3MiB"] {
        for op in ["send", "write", "write-imm"] {
            let report =
                json(&["pingpong", "--op", op, "--iters", "20", "--warmup", "0", "--size", size, "--json"]);
            assert_eq!(report["verified"], true, "{report}");
        }
    }
}

#[test]
fn batches_larger_and_smaller_than_the_number_of_exchanges() {
    for batch in ["1", "3", "1024"] {
        let report = json(&["pingpong", "--iters", "50", "--batch", batch, "--json"]);
        assert_eq!(report["verified"], true, "{report}");
    }
    let report = json(&["pingpong", "--iters", "50", "--check=false", "--json"]);
    assert_eq!(report["verified"], false, "{report}");
}

#[test]
fn doorbells_go_the_way_that_is_asked_for() {
    for (choice, reported) in [("auto", "direct"), ("direct", "direct"), ("proxy", "proxy (asked for)")] {
        for (op, procs) in [("send", "1"), ("send", "2"), ("write", "2")] {
            let arguments = ["pingpong", "--doorbells", choice, "--op", op, "--procs", procs];
            let report = json(&[&arguments[..], &["--iters", "200", "--size", "100", "--json"]].concat());
            assert_eq!(report["verified"], true, "{report}");
            assert_eq!(report["doorbells"], reported, "{report}");
            assert_eq!(report.get("gpu"), Some(&Value::Null), "{report}");
        }
    }
    let table = succeeds(&["pingpong", "--doorbells", "proxy", "--iters", "50"]);
    assert!(table.lines().next().unwrap().contains("doorbells proxy (asked for)"), "{table}");
}

/// `scripts/test-system` runs this on libmlx5; the in-process software card lacks these commands, and reports that.
#[test]
fn queues_are_made_by_verbs_or_by_commands() {
    assert_eq!(json(&["pingpong", "--queues", "verbs", "--iters", "20", "--json"])["queues"], "verbs");
    if !on_system() {
        let output = run(&["pingpong", "--queues", "devx", "--procs", "1"]);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains("takes no commands from programs"), "{said}");
        return;
    }
    for op in ["send", "write", "write-imm"] {
        for procs in ["1", "2"] {
            let arguments = ["pingpong", "--queues", "devx", "--op", op, "--procs", procs, "--iters", "300"];
            let table = succeeds(&arguments);
            let heading = table.lines().next().unwrap();
            let expected =
                heading.contains("queues made by commands") && heading.contains("every byte verified");
            assert!(expected, "{table}");
        }
    }
    for transport in ["uc", "ud"] {
        let arguments =
            ["pingpong", "--queues", "devx", "--transport", transport, "--iters", "300", "--json"];
        assert_eq!(json(&arguments)["queues"], "devx");
    }
}

#[test]
fn queues_lie_where_they_are_asked_to() {
    for part in ["--cq", "--dbrec", "--wq"] {
        let report = json(&["pingpong", part, "stand-in", "--iters", "100", "--json"]);
        assert_eq!(
            (&report["verified"], &report[&part[2..]]),
            (&true.into(), &"stand-in".into()),
            "{report}"
        );
    }
    let table = succeeds(&["pingpong", "--cq", "stand-in", "--iters", "50"]);
    assert!(table.contains(", cq in a stand-in for a GPU's memory"), "{table}");
}

#[test]
fn cpu_time_is_told_beside_the_elapsed_time() {
    for (trigger, warmup) in [("stream", "0"), ("stream", "5"), ("cpu", "0")] {
        let arguments = ["pingpong", "--trigger", trigger, "--warmup", warmup, "--iters", "500", "--json"];
        let report = json(&arguments);
        assert!(report["wall_s"].as_f64().unwrap() > 0.0, "{report}");
        assert!(report["cpu_s"].as_f64().unwrap() > 0.0, "two threads at least are at work: {report}");
    }
}

#[test]
fn the_table_names_its_columns() {
    let table = succeeds(&["pingpong", "--iters", "50", "--size", "64"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].contains("every byte verified") && lines[0].contains("two processes"), "{table}");
    assert!(
        lines[1].starts_with("SIZE") && lines[1].contains("P99 µs") && lines[2].starts_with("64 B"),
        "{table}"
    );
}

#[test]
fn a_missing_gpu_is_told_in_one_line() {
    // A number that no machine has, and 0, which this one may lack.
    let missing = no_gpu().map_or(vec!["4000000000"], |_| vec!["0", "4000000000"]);
    for ordinal in missing {
        for command in [&["pingpong", "--procs", "1"][..], &["pingpong", "--procs", "2"]] {
            let output = run(&[command, &["--gpu", ordinal, "--json"]].concat());
            let message = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{message}");
            assert_eq!(message.trim_end().lines().count(), 1, "{message}");
            assert!(message.contains("no CUDA driver") || message.contains("no GPU"), "{message}");
            assert_eq!(format!("gdsync: {}\n", error_in(&output.stdout)), message);
        }
    }
}

#[test]
fn messages_in_gpu_memory_are_verified() {
    if let Some(reason) = no_gpu() {
        return skipped("messages_in_gpu_memory_are_verified", &reason);
    }
    let play = |more: &[&str]| {
        let arguments = ["pingpong", "--iters", "100", "--warmup", "10", "--json"];
        let gpu: &[&str] = if more.contains(&"--gpu") { &[] } else { &["--gpu", "0"] };
        let report = json(&[&arguments[..], gpu, more].concat());
        assert!(report["gpu"].is_string() && report["min_us"].as_f64().unwrap() > 0.0, "{report}");
        report
    };
    for op in ["send", "write", "write-imm"] {
        for (procs, size) in [("1", "8"), ("1", "1MiB"), ("2", "0"), ("2", "1003")] {
            let report = play(&["--op", op, "--procs", procs, "--size", size]);
            assert_eq!(report["verified"], true, "{report}");
        }
        let report = play(&["--op", op, "--doorbells", "proxy"]);
        assert_eq!((&report["verified"], &report["doorbells"]), (&true.into(), &"proxy (asked for)".into()));
        let report = play(&["--op", op, "--doorbells", "card"]);
        assert_eq!((&report["verified"], &report["doorbells"]), (&true.into(), &"card".into()));
    }
    for procs in ["1", "2"] {
        let report = play(&["--gpu", "0,0", "--procs", procs]);
        assert_eq!((&report["verified"], &report["gpus"]), (&true.into(), &serde_json::json!([0, 0])));
        assert!(report["gpu"].as_str().unwrap().contains("GPU 0 for both sides"), "{report}");
    }
    let report = play(&["--check=false", "--batch", "120"]);
    assert_eq!(report["verified"], false, "{report}");
    for part in ["--cq", "--dbrec", "--wq"] {
        for procs in ["1", "2"] {
            let report = play(&[part, "gpu", "--procs", procs]);
            assert_eq!((&report["verified"], &report[&part[2..]]), (&true.into(), &"gpu".into()), "{report}");
        }
    }
}

#[test]
fn help_is_a_result() {
    for help in [&["--help"][..], &["help"]] {
        assert!(succeeds(help).contains("pingpong"));
    }
    for help in [&["pingpong", "--help"][..], &["help", "pingpong"]] {
        assert!(succeeds(help).contains("--trigger"));
    }
    assert!(succeeds(&["--version"]).starts_with("gdsync "));
}

#[test]
fn devices_lists_the_software_card_and_says_what_is_missing() {
    let table = succeeds(&["devices"]);
    let card = table.lines().find(|line| line.starts_with("softhca0")).expect("the software card is listed");
    assert!(card.contains("software") && card.contains("ACTIVE") && table.contains("fe80::"), "{table}");
    let devices = rows(&["devices", "--json"]);
    assert_eq!(devices[0]["provider"], "software");
    let system = devices.iter().any(|device| device["provider"] == "system");
    let note = devices[0]["notes"]
        .as_array()
        .unwrap()
        .iter()
        .any(|note| note.as_str().unwrap().starts_with("system:"));
    assert!(system || note, "what the system lacks is said: {devices:?}");
}

#[test]
fn several_software_cards_are_listed() {
    let output = gdsync(&["devices"]).env("SOFTHCA_DEVICES", "3").output().unwrap();
    let table = text(&output.stdout);
    assert!(output.status.success() && table.contains("softhca2"), "{table}");
}

/// Runs a pingpong on software cards with those link layers.
fn pingpong_on(devices: &str, more: &[&str]) -> Output {
    let arguments = [&["pingpong", "--iters", "50", "--json"], more].concat();
    let sized = more.contains(&"--size");
    let arguments = if sized { arguments } else { [&arguments[..], &["--size", "9000"]].concat() };
    gdsync(&arguments).env("SOFTHCA_DEVICES", devices).output().unwrap()
}

#[test]
fn cards_of_both_link_layers_play_pingpong() {
    for (more, card) in [
        (&["--hca", "softhca0"][..], "softhca0"),
        (&["--hca", "softhca1"], "softhca1"),
        (&["--hca", "softhca1:1", "--op", "write", "--mtu", "256"], "softhca1"),
        (&["--hca", "softhca1", "--gid-index", "0"], "softhca1"),
        (&["--hca", "softhca1", "--gid-index", "1", "--procs", "1"], "softhca1"),
    ] {
        let output = pingpong_on("ib,roce", more);
        assert!(output.status.success(), "{more:?}: {}", text(&output.stderr));
        let report: Value = row(&output.stdout);
        assert_eq!((&report["verified"], &report["card"]), (&true.into(), &card.into()), "{report}");
    }
}

#[test]
fn every_transport_plays_pingpong() {
    for device in ["softhca0", "softhca1"] {
        for (transport, more) in [
            ("rc", &[][..]),
            ("uc", &[]),
            ("uc", &["--op", "write"]),
            ("uc", &["--op", "write-imm", "--procs", "1"]),
            ("ud", &["--size", "4096"]),
            ("ud", &["--size", "0", "--procs", "1", "--trigger", "cpu"]),
        ] {
            let arguments = [&["--hca", device, "--transport", transport], more].concat();
            let output = pingpong_on("ib,roce", &arguments);
            assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
            let report: Value = row(&output.stdout);
            assert_eq!(
                (&report["verified"], &report["transport"]),
                (&true.into(), &transport.into()),
                "{report}"
            );
        }
    }
    let output = pingpong_on("ib", &["--transport", "ud", "--size", "4097", "--procs", "1"]);
    assert!(!output.status.success() && text(&output.stderr).contains("4097 bytes, the port allows 4096"));
    let output = pingpong_on("ib", &["--transport", "ud", "--op", "write"]);
    assert!(
        !output.status.success() && text(&output.stderr).contains("--op write is not for --transport ud")
    );
}

#[test]
fn cards_ports_and_gids_that_are_not_there_are_named() {
    for (more, said) in [
        (
            &["--hca", "softhca7"][..],
            "no device named softhca7: the software provider has softhca0, softhca1",
        ),
        (&["--hca", "softhca0:2"], "port 2"),
        (&["--hca", "softhca1", "--gid-index", "4"], "port 1 of softhca1 has no GID at index 4"),
    ] {
        let output = pingpong_on("ib,roce", &[more, &["--procs", "1"]].concat());
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{more:?}: {message}");
        assert!(message.contains(said), "{more:?}: {message}");
    }
}

#[test]
fn gids_are_listed_with_the_one_that_connections_use() {
    let output = gdsync(&["devices", "--json"]).env("SOFTHCA_DEVICES", "ib,roce").output().unwrap();
    let listing = rows_in(&output.stdout);
    let gids = |device: usize| {
        let row = &listing[device];
        (row["link"].as_str().unwrap().to_owned(), row["gids"].as_array().unwrap().clone())
    };
    let (link, entries) = gids(0);
    assert!(link == "InfiniBand" && entries.len() == 1, "{listing:?}");
    let (link, entries) = gids(1);
    assert!(link == "Ethernet" && entries.len() == 4, "{listing:?}");
    let chosen: Vec<_> = entries.iter().filter(|gid| gid["chosen"] == true).collect();
    assert_eq!((chosen.len(), chosen[0]["kind"].as_str()), (1, Some("RoCE v2")), "{listing:?}");
    assert!(chosen[0]["gid"].as_str().unwrap().starts_with("::ffff:10.83."), "{listing:?}");
}

/// Kills the peer process of a pingpong once that is `ready`; the first process must then soon end with an error.
fn kill_peer(options: &[&str], ready: impl Fn(u32)) {
    let arguments = [&["pingpong", "--iters", "100000000"], options].concat();
    let mut parent = gdsync(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let peer = children_of(parent.id(), 1)[0];
    ready(peer);
    signal(peer, libc::SIGKILL);
    let killed = Instant::now();
    let status = loop {
        if let Some(status) = parent.try_wait().unwrap() {
            break status;
        }
        if killed.elapsed() > Duration::from_secs(5) {
            parent.kill().unwrap();
            panic!("{options:?} hangs when its peer is killed");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut message = String::new();
    parent.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert_eq!(status.code(), Some(1), "{message}");
    assert!(message.contains("the other side is gone") || message.contains("retries exceeded"), "{message}");
}

#[test]
fn a_killed_peer_is_an_error_soon_and_not_a_hang() {
    for op in ["send", "write"] {
        for trigger in ["stream", "cpu"] {
            kill_peer(&["--op", op, "--trigger", trigger], |peer| has_sent(peer, 20));
        }
    }
}

#[test]
fn a_killed_peer_leaves_no_gpu_waiting() {
    if let Some(reason) = no_gpu() {
        return skipped("a_killed_peer_leaves_no_gpu_waiting", &reason);
    }
    for op in ["send", "write"] {
        // Long enough for both to have set up their contexts and started.
        kill_peer(&["--op", op, "--gpu", "0"], |_| std::thread::sleep(Duration::from_secs(4)));
    }
}

#[test]
fn a_peer_whose_parent_is_killed_ends_too() {
    let mut parent = gdsync(&["pingpong", "--iters", "100000000"]).stderr(Stdio::null()).spawn().unwrap();
    let peer = children_of(parent.id(), 1)[0];
    has_sent(peer, 20);
    parent.kill().unwrap();
    parent.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while is_running(peer) {
        assert!(Instant::now() < deadline, "the orphan goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_small_address_space_is_an_error() {
    let program = program("gdsync");
    let limited = |kib: u64, arguments: &[&str]| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "ulimit -v \"$0\" && exec \"$@\"", &kib.to_string()]);
        command.arg(&program).args(arguments).env_remove("GDSYNC_LOG").output().unwrap()
    };
    let mut refused = 0;
    for kib in (4_000..140_000).step_by(4_000) {
        // The system cannot start it with less.
        if !limited(kib, &["--version"]).status.success() {
            continue;
        }
        let output = limited(kib, &["pingpong", "--iters", "10", "--procs", "1"]);
        let message = text(&output.stderr);
        match output.status.code() {
            Some(0) => {}
            // The card's log may precede the error.
            Some(1) => assert!(
                message.lines().last().is_some_and(|line| line.starts_with("gdsync: "))
                    && !message.contains("panicked"),
                "{kib} KiB: {message}"
            ),
            _ => panic!("{kib} KiB: {}: {message}", output.status),
        }
        refused += usize::from(message.contains("cannot have 32 MiB more memory; raise the limit"));
    }
    assert!(refused > 0);
}
