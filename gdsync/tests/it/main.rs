//! The tests of the library, as one program: linking one takes less time than linking forty.
//!
//! A test that needs an exclusive process runs again in a separate one (`gdsync_test_support::process`).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod addressing;
mod allocations;
#[cfg(feature = "tokio")]
mod async_completions;
mod borrowed;
mod channels;
mod collectors;
mod cpu_posts;
mod cpu_waits;
mod datagrams;
mod dc;
mod device_calls;
mod device_qp;
mod device_qp_failures;
mod device_triggers;
mod devx_queues;
mod dropping;
mod exchange;
mod explained;
mod failure_cause;
mod failure_checked;
mod failure_dead_card;
mod failure_faults;
mod failure_outcomes;
mod failure_persistent;
mod failure_recovery;
mod failures;
mod fan;
mod gpu;
mod gpu_borrowed;
mod gpu_collector;
mod gpu_device;
mod gpu_failure_model;
mod gpu_failures;
mod gpu_first;
mod gpu_graph;
mod gpu_graph_trigger;
mod gpu_mapped;
mod gpu_placement;
mod gpu_registration;
mod gpu_several;
mod gpu_trigger;
mod gpu_words;
mod ibverbs;
mod leaks;
mod lives;
mod masters;
mod merging;
mod model;
mod nvrtc;
mod own_waits;
mod persistent_by_trigger;
mod persistent_ends;
mod persistent_faults;
mod persistent_lists;
mod persistent_ready;
mod placement;
mod post_one;
mod proxy;
mod public_pages;
mod quiet;
mod refusals;
mod registration;
mod registration_peer;
mod shared_memory;
mod shared_queues;
mod shared_receives;
mod stopped;
mod transports;
mod triggers;
mod words;

/// Returns true, and tells that a test is skipped, if it relies on the order of two writes of the same memory, and cards take
/// the liberty `unordered`.
fn lacks_order(test: &str) -> bool {
    let is_unordered = std::env::var("SOFTHCA_LIBERTIES").is_ok_and(|kinds| kinds.contains("unordered"));
    if is_unordered {
        gdsync_test_support::skipped(
            test,
            "its writes of the same memory have no order with the liberty `unordered`",
        );
    }
    is_unordered
}
