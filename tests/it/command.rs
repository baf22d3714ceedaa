//! The command, run as a user runs it.

use gdsync_test_support::on_system;
use serde_json::Value;
use std::process::{Command, Output};

/// The command, with these arguments. If the tests run on the system's card, measurements between two sides do, too.
pub(crate) fn gdsync(arguments: &[&str]) -> Command {
    // A machine with a GPU may have the binaries somewhere else than where they were built.
    let built = std::env::var_os("GDSYNC_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_gdsync").into());
    let mut command = Command::new(built);
    command.args(arguments);
    let is_between_sides = arguments.starts_with(&["pingpong"]) || arguments.starts_with(&["bench", "net"]);
    if is_between_sides && !arguments.contains(&"--hca") && on_system() {
        command.args(["--hca", "mlx5_0"]);
    }
    for name in [
        "GDSYNC_LOG",
        "GDSYNC_TRACE",
        "SOFTHCA_DEVICES",
        "SOFTHCA_FAULTS",
        "SOFTHCA_LISTEN",
        "SOFTHCA_LOG",
        "SOFTHCA_WAITS",
    ] {
        command.env_remove(name);
    }
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    gdsync(arguments).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn succeeds(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "nothing but results");
    text(&output.stdout)
}

pub(crate) fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeeds(arguments)).unwrap()
}
