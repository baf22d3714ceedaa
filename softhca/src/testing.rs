//! Helpers of tests.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

/// Environment variable with the role of a test's child process.
const ROLE: &str = "GDSYNC_TEST_ROLE";

/// Returns the role of this process, if a test has started it.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Returns the command that runs one test of this binary alone, in a process with that role.
pub(crate) fn again(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(ROLE, role);
    command
}

/// Reports a skipped test. libtest captures the output of macros only, so the line is seen.
pub(crate) fn skipped(test: &str, why: &str) {
    std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes()).unwrap();
}

/// Waits until `look` returns a value, for 20 seconds at most.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_micros(200));
    }
}
