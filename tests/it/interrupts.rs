//! Interrupted runs: like a terminal, which sends SIGINT to every process of the run.

use gdsync_test_support::command::{row, text};
use gdsync_test_support::processes::{
    AT_WORK, children_of, has_sent, has_taken, interrupt, interrupted, interrupted_at_work, signal, start,
};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;

/// The first line of an interrupted run.
const AT_ONCE: &str =
    "gdsync: interrupted: the run ends after what is under way; interrupt again to end it at once\n";

#[test]
fn a_pingpong_prints_what_it_has() {
    for op in ["send", "write"] {
        for trigger in ["stream", "cpu"] {
            let arguments = ["pingpong", "--op", op, "--trigger", trigger, "--iters", "1000000000"];
            let output = interrupted(&[&arguments[..], &["--json"]].concat());
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(130), "{said}");
            assert_eq!(
                said,
                [AT_ONCE, "gdsync: interrupted: what was measured until then has been printed\n"].concat()
            );
            let report: Value = row(&output.stdout);
            assert_eq!(
                (&report["interrupted_of"], &report["verified"]),
                (&1_000_000_000.into(), &true.into())
            );
            assert!(report["iterations"].as_u64().unwrap() > 0, "{report}");
            assert!(report["memory_operations_per_iteration"].as_f64().unwrap() >= 3.0, "{report}");
        }
    }
    let output = interrupted(&["pingpong", "--iters", "1000000000"]);
    assert!(
        text(&output.stdout).contains(", INTERRUPTED before 1000000000 exchanges\n"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn a_pingpong_that_has_measured_nothing_says_so() {
    let output = interrupted_at_work(&["pingpong", "--warmup", "1000000000"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(130), 0));
    let expected = [AT_ONCE, "gdsync: interrupted before anything was measured\n"].concat();
    assert_eq!(text(&output.stderr), expected);
}

#[test]
fn the_second_interrupt_ends_a_run_at_once() {
    let run = start(&["pingpong", "--iters", "1000000000"]);
    let peer = children_of(run.id(), 1)[0];
    has_sent(run.id(), AT_WORK);
    // A stopped side does not agree on an end.
    signal(peer, libc::SIGSTOP);
    interrupt(&run);
    has_taken(run.id(), libc::SIGINT);
    interrupt(&run);
    let output = run.wait_with_output().unwrap();
    assert_eq!((output.status.signal(), output.stdout.len()), (Some(libc::SIGINT), 0));
}

#[test]
fn a_network_benchmark_prints_what_it_has() {
    for mode in ["rate", "latency"] {
        let report = interrupted(&["bench", "net", "--mode", mode, "--iters", "1000000000", "--json"]);
        assert_eq!(report.status.code(), Some(130), "{}", text(&report.stderr));
        let report = row(&report.stdout);
        assert_eq!((&report["interrupted_of"], &report["verified"]), (&1_000_000_000.into(), &true.into()));
        assert!(report["messages"].as_u64().unwrap() > 0, "{report}");
    }
    let table = interrupted(&["bench", "net", "--iters", "1000000000"]);
    let table = text(&table.stdout);
    assert!(table.contains(", INTERRUPTED before 1000000000 messages\n"), "{table}");
}
