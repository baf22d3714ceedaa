//! Tests in separate processes: the test binary runs one of its tests again.
//!
//! A test needs one if it sets environment variables, installs faults for every card of the process, counts the
//! process's files, mappings, threads or memory, or must be the first to use something.

use std::process::{Command, Stdio};

/// Environment variable with the role of a process that a test has started.
pub const ROLE: &str = "GDSYNC_TEST_ROLE";
const ALONE: &str = "alone";

/// Returns the role of this process, if a test has started it.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Returns the arguments with which a test binary runs this test alone and uncaptured. `module` is the test's
/// `module_path!()`.
pub fn arguments(module: &str, test: &str) -> [String; 3] {
    // libtest's names lack the crate.
    let path = module.split_once("::").map_or(test.to_owned(), |(_, inner)| format!("{inner}::{test}"));
    ["--exact".to_owned(), path, "--nocapture".to_owned()]
}

/// Returns the command that runs a test of this binary alone, in a process with that role.
pub fn again(module: &str, test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments(module, test)).env(ROLE, role);
    command
}

/// Runs the calling test again, alone in a process with these environment variables, and asserts that it passes
/// there. Returns true in that process: `if !alone(...) { return; }`.
#[must_use]
pub fn alone(module: &str, test: &str, environment: &[(&str, &str)]) -> bool {
    if role().is_some_and(|role| role == ALONE) {
        return true;
    }
    // Its stderr may contain a line SKIPPED, so it is not captured.
    let mut command = again(module, test, ALONE);
    let output = command.envs(environment.iter().copied()).stderr(Stdio::inherit()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{test}, alone: {}\n{said}", output.status);
    false
}
