//! The warm-up of a measurement: it ends in time, and the measurement has as many exchanges as asked for.

use gdsync_test_support::command::{gdsync, row, text};
use serde_json::Value;

/// Each message takes so long that a hundred of them take longer than a warm-up may.
const SLOW: (&str, &str) = ("SOFTHCA_FAULTS", "delay=20ms every=1");

fn measured(words: &[&str]) -> Value {
    let mut command = gdsync(&[words, &["--json"]].concat());
    let output = command.env(SLOW.0, SLOW.1).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    row(&output.stdout)
}

#[test]
fn a_slow_warm_up_ends_before_all_its_exchanges() {
    for words in [
        &["pingpong", "--iters", "3"][..],
        &["pingpong", "--iters", "3", "--procs", "1", "--op", "write"],
        &["pingpong", "--duration", "100ms"],
        &["bench", "net", "--iters", "3", "--mode", "latency"],
    ] {
        let row = measured(words);
        let counted = if words[0] == "pingpong" { "iterations" } else { "messages" };
        assert!(row[counted] == 3 || words.contains(&"--duration"), "{words:?}: {row}");
        assert_eq!(row["verified"], true, "{words:?}: {row}");
        let warm_up = row["warmup"].as_u64().unwrap();
        assert!((1..100).contains(&warm_up), "{words:?}: {row}");
    }
}

#[test]
fn a_warm_up_that_is_asked_for_is_whole() {
    for words in [&["pingpong", "--batch", "8"][..], &["bench", "net", "--mode", "latency"]] {
        let row = measured(&[words, &["--iters", "3", "--warmup", "60"]].concat());
        assert_eq!(row["warmup"], 60, "{words:?}: {row}");
    }
}
