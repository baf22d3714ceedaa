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
        "GDSYNC_STATUS",
        "GDSYNC_TRACE",
        "GDSYNC_TRACE_GPU",
        "SOFTHCA_CLOCK",
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

/// The only row of what a command prints with `--json`.
pub(crate) fn json(arguments: &[&str]) -> Value {
    row(succeeds(arguments).as_bytes())
}

/// The rows of what a command prints with `--json`.
pub(crate) fn rows(arguments: &[&str]) -> Vec<Value> {
    rows_in(succeeds(arguments).as_bytes())
}

/// The object that a command has printed, which has the shape of all of them.
pub(crate) fn object(printed: &[u8]) -> Value {
    let object: Value =
        serde_json::from_slice(printed).unwrap_or_else(|error| panic!("{error}: {}", text(printed)));
    let is = |name: &str, value: Value| assert_eq!(object[name], value, "{name}: {object}");
    is("schema", 1.into());
    is("tool", "gdsync".into());
    is("version", env!("CARGO_PKG_VERSION").into());
    let [host, time] = ["host", "time"].map(|name| object[name].as_str().unwrap_or_default().to_owned());
    assert!(!host.is_empty() && time.len() == 20 && time.contains('T') && time.ends_with('Z'), "{object}");
    assert!(object["command"].as_array().unwrap().iter().all(Value::is_string), "{object}");
    let rows = object["rows"].as_array();
    assert!(
        rows.is_some_and(|rows| rows.iter().all(Value::is_object)) || object["error"].is_object(),
        "{object}"
    );
    object
}

/// The rows of an object that a command has printed without an error.
pub(crate) fn rows_in(printed: &[u8]) -> Vec<Value> {
    let object = object(printed);
    assert!(object.get("error").is_none(), "{object}");
    object["rows"].as_array().unwrap().clone()
}

/// The only row of an object that a command has printed.
pub(crate) fn row(printed: &[u8]) -> Value {
    let rows = rows_in(printed);
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows[0].clone()
}

/// The error of an object that a command has printed; it has no results.
pub(crate) fn error_in(printed: &[u8]) -> String {
    let object = object(printed);
    assert!(object.get("rows").is_none(), "{object}");
    object["error"]["message"].as_str().unwrap().to_owned()
}
