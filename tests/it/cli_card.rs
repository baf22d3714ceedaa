//! Measurements in which the card waits: sends that a word releases, and collected waits.

use gdsync_test_support::command::{gdsync, json, run, succeeds, text};
use gdsync_test_support::on_system;

#[test]
fn a_word_of_the_stream_releases_the_sends_of_a_pingpong() {
    for op in ["send", "write", "write-imm"] {
        for procs in ["1", "2"] {
            let arguments = ["pingpong", "--doorbells", "card", "--op", op, "--procs", procs];
            let report = json(&[&arguments[..], &["--iters", "150", "--size", "1000", "--json"]].concat());
            assert_eq!(
                (&report["verified"], &report["doorbells"]),
                (&true.into(), &"card".into()),
                "{report}"
            );
            // The word, the wait, and occasionally a point of the timeline.
            assert!(report["memory_operations_per_iteration"].as_f64().unwrap() <= 3.0, "{report}");
        }
    }
    for transport in ["uc", "ud"] {
        let arguments = ["pingpong", "--doorbells", "card", "--transport", transport, "--iters", "150"];
        let heading = succeeds(&arguments);
        let heading = heading.lines().next().unwrap();
        assert!(heading.contains("doorbells card") && heading.contains("every byte verified"), "{heading}");
    }
}

#[test]
fn the_largest_batches_fit_the_queues_and_larger_ones_are_refused() {
    let report = json(&[
        "pingpong",
        "--doorbells",
        "card",
        "--op",
        "write",
        "--batch",
        "512",
        "--iters",
        "600",
        "--json",
    ]);
    assert_eq!(report["verified"], true, "{report}");
    for (option, value) in [("--batch", "513"), ("--trigger", "cpu")] {
        let output = run(&["pingpong", "--doorbells", "card", option, value]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
        let said = text(&output.stderr);
        assert!(said.contains("--doorbells card") && said.matches("error: ").count() == 1, "{said}");
    }
}

#[test]
fn a_card_that_does_not_wait_is_named() {
    for procs in ["1", "2"] {
        let mut command = gdsync(&["pingpong", "--doorbells", "card", "--procs", procs]);
        let output = command.env("SOFTHCA_WAITS", "off").output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        let said = text(&output.stderr);
        let device = if on_system() { "mlx5_0" } else { "softhca0" };
        assert!(said.contains(&format!("the card of device {device} does not wait")), "{said}");
    }
}

#[test]
fn messages_are_right_on_a_card_with_liberties() {
    for procs in ["1", "2"] {
        let report = json(&[
            "pingpong",
            "--procs",
            procs,
            "--liberties",
            "7",
            "--size",
            "3000",
            "--iters",
            "300",
            "--json",
        ]);
        assert_eq!(report["verified"], true, "{report}");
    }
}
