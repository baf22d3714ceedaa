//! Soaks on a GPU.

use gdsync_test_support::command::{json, no_gpu, run, text};
use gdsync_test_support::skipped;

#[test]
fn a_soak_on_a_gpu_takes_no_more_links_than_its_streams_have_channels() {
    let output = run(&["soak", "--gpu", "0", "--links", "33", "--procs", "2"]);
    let message = text(&output.stderr);
    assert_eq!((output.status.code(), message.trim_end().lines().count()), (Some(1), 1), "{message}");
    assert!(message.contains("--links 33") && message.contains("take 32 at most"), "{message}");
}

#[test]
fn a_soak_on_a_gpu_accounts_for_everything() {
    if let Some(reason) = no_gpu() {
        return skipped("a_soak_on_a_gpu_accounts_for_everything", &reason);
    }
    let counts = json(&["soak", "--gpu", "0", "--links", "16", "--procs", "2", "--minutes", "0.1", "--json"]);
    for name in ["lost", "duplicated", "wrong", "unaccounted", "hung"] {
        assert_eq!(counts[name], 0, "{name}: {counts}");
    }
    assert!(["by_cuda", "by_kernels"].iter().all(|name| counts[name].as_u64().unwrap() > 0), "{counts}");
}
