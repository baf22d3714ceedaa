//! Simulations: random programs on simulated cards.

use gdsync_test_support::command::{run, text};

#[test]
fn a_seed_repeats_to_the_bit_in_another_process() {
    let simulate = || {
        let output = run(&["simulate", "--operations", "1e4", "--seed", "7"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let first = simulate();
    assert!(first.contains("operations in") && first.contains("hash "), "{first}");
    assert_eq!(simulate(), first);
}
