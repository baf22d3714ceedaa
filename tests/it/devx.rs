//! Commands in the device's own language (DEVX), from C programs on the unmodified libmlx5: `gdsync soft -- PROGRAM`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

#[allow(dead_code, unused_imports, reason = "shared with the tests of tools, which use more of it")]
#[path = "../uverbs/support.rs"]
mod support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Temporary, run, soft};

/// Headers that the programs need, and the package that brings them.
const HEADER: &str = "/usr/include/infiniband/mlx5dv.h";

/// Says why a test does not run; with `GDSYNC_REQUIRE_RDMA=1` that is a failure.
fn skip(test: &str, why: &str) {
    assert!(
        std::env::var_os("GDSYNC_REQUIRE_RDMA").is_none_or(|value| value != "1"),
        "{why}, and GDSYNC_REQUIRE_RDMA=1"
    );
    std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes()).unwrap();
}

/// Builds `NAME.c` of this folder into `folder`. `None`, told on stderr, without a compiler or the headers.
fn build(test: &str, name: &str, folder: &Path) -> Option<PathBuf> {
    let include = std::fs::read_to_string(HEADER);
    let Ok(include) = include else {
        skip(test, &format!("{HEADER} is not there (package libibverbs-dev)"));
        return None;
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/devx").join(name).with_extension("c");
    let program = folder.join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]);
    // rdma-core 50 brings this type.
    if include.contains("MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED") {
        compiler.arg("-DNC_DEDICATED");
    }
    compiler.arg("-o").arg(&program).arg(source).args(["-lmlx5", "-libverbs"]);
    match compiler.output() {
        Err(error) => {
            skip(test, &format!("there is no C compiler, cc (package gcc): {error}"));
            None
        }
        Ok(output) => {
            assert!(output.status.success(), "{name}.c: {}", String::from_utf8_lossy(&output.stderr));
            Some(program)
        }
    }
}

/// Runs a program on a device of each link layer, which destroys what it makes, or leaves that to the device's end.
fn succeeds(test: &str, name: &str, destroys: bool) {
    let programs = Temporary::new(&format!("devx-build-{name}"));
    let Some(program) = build(test, name, &programs.0) else { return };
    for devices in ["ib", "roce"] {
        let temporary = Temporary::new(&format!("devx-{name}-{devices}"));
        let mut command = soft(devices, &program, &temporary.0);
        command.env("SOFTHCA_LOG", "error,softhca_uverbs::context=info");
        let ended = run(command);
        assert_eq!(ended.code, Some(0), "{name} on {devices}: {}", ended.text);
        assert!(!ended.text.contains("left in the card"), "{name} on {devices}: {}", ended.text);
        assert_eq!(!ended.text.contains("not destroyed by the program"), destroys, "{name}: {}", ended.text);
        assert_eq!(temporary.content(), 0, "{name} has left something behind");
    }
}

#[test]
fn capabilities_are_those_that_verbs_tell() {
    succeeds("capabilities_are_those_that_verbs_tell", "caps", true);
}

#[test]
fn queues_made_by_commands_carry_a_thousand_writes() {
    succeeds("queues_made_by_commands_carry_a_thousand_writes", "traffic", true);
}

#[test]
fn objects_of_verbs_are_moved_and_asked_by_commands() {
    succeeds("objects_of_verbs_are_moved_and_asked_by_commands", "verbs", true);
}

#[test]
fn what_is_wrong_is_refused_with_status_and_syndrome() {
    succeeds("what_is_wrong_is_refused_with_status_and_syndrome", "errors", true);
}

#[test]
fn a_closed_device_takes_everything_along() {
    succeeds("a_closed_device_takes_everything_along", "leftover", false);
}
