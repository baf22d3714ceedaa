//! Common helpers of the workspace's tests: separate processes, compilers, folders, cards and GPUs.
//!
//! Each crate's tests request a level by a feature: none, `softhca` or `gdsync`. Unit tests use none of it, since a
//! packaged crate runs them without this crate.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

#[cfg(feature = "command")]
pub mod command;
pub mod compiler;
#[cfg(feature = "gdsync")]
pub mod device;
#[cfg(feature = "softhca")]
#[path = "../../../softhca/src/card/tests/peer/fake_gpu.rs"]
pub mod fake_gpu;
pub mod folder;
#[cfg(feature = "gdsync")]
pub mod gpu;
pub mod kernels;
pub mod lives;
pub mod networks;
pub mod open_mpi;
#[cfg(feature = "gdsync")]
pub mod pair;
pub mod pattern;
pub mod process;
#[cfg(feature = "command")]
pub mod processes;
#[cfg(feature = "command")]
pub mod programs;
#[cfg(feature = "command")]
pub mod settings;
#[cfg(feature = "command")]
pub mod terminal;

#[cfg(feature = "softhca")]
use softhca::{AsyncCopy, PeerMemory, PeerMemoryError, PeerRegion, register_peer_memory};
use std::io::Write;
use std::path::Path;

/// Returns the workspace's folder.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Calls its function when dropped, so that a failed assertion, too, stops other threads of a scope.
pub struct OnDrop<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Returns true if the tests run on a card of the system's libraries (`scripts/test-system`), not on the software
/// card of their process.
pub fn on_system() -> bool {
    match std::env::var("GDSYNC_TEST_PROVIDER").as_deref() {
        Err(_) | Ok("software") => false,
        Ok("system") => true,
        other => panic!("GDSYNC_TEST_PROVIDER is {other:?}, neither software nor system"),
    }
}

/// Like [`on_system`], for a test of software cards alone, which is reported as skipped.
pub fn skipped_on_system(test: &str) -> bool {
    let is_skipped = on_system();
    if is_skipped {
        skipped(test, "it is about cards of the software provider");
    }
    is_skipped
}

/// Reports a skipped test on stderr. libtest captures only the output of macros, so the line is visible, and
/// `.ci/run` counts it.
pub fn skipped(test: &str, why: &str) {
    std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes()).unwrap();
}

/// Skips a test that lacks a package, or fails it if the variable's value is 1, which states that the packages are
/// installed.
pub fn skipped_unless_required(variable: &str, test: &str, why: &str) {
    let required = std::env::var_os(variable).is_some_and(|value| value == "1");
    assert!(!required, "{test}: {why}, and {variable}=1");
    skipped(test, why);
}
