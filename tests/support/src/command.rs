//! The `gdsync` command, run as a user runs it.

use crate::{on_system, root};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Mutex;

/// Returns a program of the workspace: in the folder that `GDSYNC_BIN_DIR` names, as on a machine with a GPU, or in
/// cargo's target folder. Cargo builds the programs of the tested package; others are built here if missing.
pub fn program(name: &str) -> PathBuf {
    static BUILDS: Mutex<()> = Mutex::new(());
    if let Some(folder) = std::env::var_os("GDSYNC_BIN_DIR") {
        return PathBuf::from(folder).join(name);
    }
    // The test binary is PROFILE/deps/TEST.
    let own = std::env::current_exe().unwrap();
    let folder = own.ancestors().nth(2).unwrap();
    let path = folder.join(name);
    let _one = BUILDS.lock();
    if !path.is_file() {
        let package = if name == "gdsync" { "gdsync-cli" } else { name };
        let mut build = Command::new("cargo");
        build.args(["build", "--quiet", "--package", package, "--bin", name]).current_dir(root());
        build.env("CARGO_TARGET_DIR", folder.parent().unwrap());
        build.args((folder.file_name() == Some(OsStr::new("release"))).then_some("--release"));
        assert!(build.status().unwrap().success(), "cargo has not built {name}");
    }
    path
}

/// Returns the command with these arguments. If the tests run on the system's card, measurements between two sides
/// use it, too.
pub fn gdsync(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("gdsync"));
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
        "SOFTHCA_PKEYS",
        "SOFTHCA_WAITS",
    ] {
        command.env_remove(name);
    }
    command
}

/// Runs the command with these arguments.
pub fn run(arguments: &[&str]) -> Output {
    gdsync(arguments).output().unwrap()
}

/// Returns a program's output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the command, which must succeed with an empty stderr; returns its stdout.
pub fn succeeds(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "nothing but results");
    text(&output.stdout)
}

/// Returns the only row that a command prints with `--json`.
pub fn json(arguments: &[&str]) -> Value {
    row(succeeds(arguments).as_bytes())
}

/// Returns the rows that a command prints with `--json`.
pub fn rows(arguments: &[&str]) -> Vec<Value> {
    rows_in(succeeds(arguments).as_bytes())
}

/// Parses a command's JSON object, and checks the common shape.
pub fn object(printed: &[u8]) -> Value {
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

/// Returns the rows of a command's object without an error.
pub fn rows_in(printed: &[u8]) -> Vec<Value> {
    let object = object(printed);
    assert!(object.get("error").is_none(), "{object}");
    object["rows"].as_array().unwrap().clone()
}

/// Returns the only row of a command's object.
pub fn row(printed: &[u8]) -> Value {
    let rows = rows_in(printed);
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows[0].clone()
}

/// Returns the error of a command's object, which has no results.
pub fn error_in(printed: &[u8]) -> String {
    let object = object(printed);
    assert!(object.get("rows").is_none(), "{object}");
    object["error"]["message"].as_str().unwrap().to_owned()
}

/// Returns the reason if no GPU is usable: no driver, or a driver without GPUs.
pub fn no_gpu() -> Option<String> {
    gdsync::cuda::context(0).err().map(|error| error.to_string())
}
