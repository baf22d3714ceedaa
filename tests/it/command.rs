//! The command, run as a user runs it.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test file uses its part")]

use serde_json::Value;
use std::process::{Command, Output};

/// `GDSYNC_TEST_PROVIDER=system`: pingpongs are played on the system's first mlx5 card.
pub fn on_system() -> bool {
    std::env::var_os("GDSYNC_TEST_PROVIDER").is_some_and(|provider| provider == "system")
}

pub fn gdsync(arguments: &[&str]) -> Command {
    // A machine with a GPU may have the binaries somewhere else than where they were built.
    let built = std::env::var_os("GDSYNC_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_gdsync").into());
    let mut command = Command::new(built);
    command.args(arguments);
    if arguments.first() == Some(&"pingpong") && !arguments.contains(&"--hca") && on_system() {
        command.args(["--hca", "mlx5_0"]);
    }
    command.env_remove("GDSYNC_LOG").env_remove("SOFTHCA_DEVICES");
    command
}

pub fn run(arguments: &[&str]) -> Output {
    gdsync(arguments).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn succeeds(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "nothing but results");
    text(&output.stdout)
}

pub fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeeds(arguments)).unwrap()
}
