//! Simulations: random programs on simulated cards.

use gdsync_test_support::command::{run, text};

#[test]
fn a_seed_repeats_to_the_bit_in_another_process() {
    let simulate = |jobs| {
        let output = run(&["simulate", "--operations", "1e4", "--seed", "7", "--jobs", jobs]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let first = simulate("1");
    assert!(first.contains("operations in") && first.contains("hash "), "{first}");
    assert_eq!(simulate("3"), first, "on three threads");
}

#[test]
fn a_schedule_that_cannot_be_read_is_an_error() {
    for (file, said) in [
        ("/nowhere/schedule", "/nowhere/schedule: No such file or directory"),
        ("/proc/version", "/proc/version: line 1: `Linux` is none of its words"),
    ] {
        let output = run(&["simulate", "--operations", "10", "--schedule", file]);
        let message = text(&output.stderr);
        assert_eq!((output.status.code(), message.lines().count()), (Some(1), 1), "{message}");
        assert!(message.contains(said), "{message}");
    }
}
