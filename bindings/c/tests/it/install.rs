//! The installed library, as programs find it by pkg-config and by CMake.

use crate::support::{Language, root, works};
use gdsync_test_support::compiler::{library, static_library};
use gdsync_test_support::folder::Folder;
use gdsync_test_support::skipped_unless_required;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

/// Runs lines of bash after the functions of scripts/install-library.
fn bash(lines: &str, arguments: &[&Path]) -> Output {
    let script = format!("set -euo pipefail; cd \"$0\"; source scripts/install-library; {lines}");
    let mut command = Command::new("bash");
    command.arg("-c").arg(script).arg(root().join("../..")).args(arguments);
    command.output().unwrap()
}

fn succeeded(output: Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Installs the library under test, without building it again.
fn installed() -> Folder {
    let (folder, built) = (Folder::new("installed"), Folder::new("built"));
    symlink(library("libgdsync_c.so"), built.path().join("libgdsync_c.so")).unwrap();
    symlink(static_library("libgdsync_c"), built.path().join("libgdsync_c.a")).unwrap();
    let said = succeeded(bash(
        "begin scripts/install.sh \"$1\"; built=$2; c_library",
        &[folder.path(), built.path()],
    ));
    assert!(said.contains("installed libgdsync 2.2.0 to "), "{said}");
    folder
}

fn skip(test: &str, program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok_and(|said| said.status.success());
    if !is_there {
        skipped_unless_required("GDSYNC_REQUIRE_RDMA_HEADERS", test, &format!("{program} is not installed"));
    }
    !is_there
}

/// Runs the example of docs/c.md as one rank.
fn run(program: &Path) {
    let mut command = Command::new(program);
    command.envs([("GDSYNC_RANK", "0"), ("GDSYNC_SIZE", "1"), ("GDSYNC_JOB", "installed")]);
    assert_eq!(succeeded(command.output().unwrap()), "1 ranks, 32 rounds, the last number is 32\n");
}

#[test]
fn cmake_and_pkg_config_find_the_installed_library() {
    let test = "cmake_and_pkg_config_find_the_installed_library";
    let programs = ["cmake", "pkg-config"];
    if works(test, Language::C).is_none() || programs.iter().any(|program| skip(test, program)) {
        return;
    }
    let (prefix, build) = (installed(), Folder::new("cmake"));
    let examples = root().join("../../examples/c");

    let cmake = |version: &str| {
        let project = build.path().join(version);
        std::fs::create_dir(&project).unwrap();
        let text = std::fs::read_to_string(examples.join("CMakeLists.txt")).unwrap();
        let text = text.replace("gdsync 2.2 REQUIRED", &format!("gdsync {version} REQUIRED"));
        std::fs::write(project.join("CMakeLists.txt"), text).unwrap();
        for source in ["ring.c", "transport.c"] {
            symlink(examples.join(source), project.join(source)).unwrap();
        }
        let mut command = Command::new("cmake");
        command.arg("-S").arg(&project).arg("-B").arg(project.join("build"));
        command.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.path().display()));
        (project.join("build"), command.output().unwrap())
    };
    let (folder, output) = cmake("2.2");
    succeeded(output);
    succeeded(Command::new("cmake").arg("--build").arg(&folder).output().unwrap());
    run(&folder.join("ring"));
    for version in ["2.3", "3.0", "1.0"] {
        let (_, output) = cmake(version);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("gdsyncConfig.cmake, version: 2.2.0"), "{said}");
    }

    let mut command = Command::new("pkg-config");
    command.args(["--cflags", "--libs", "gdsync"]);
    let flags =
        succeeded(command.env("PKG_CONFIG_PATH", prefix.path().join("lib/pkgconfig")).output().unwrap());
    let program = build.path().join("ring");
    let mut compiler = Command::new("cc");
    compiler.arg(examples.join("ring.c")).args(flags.split_whitespace());
    compiler.arg(format!("-Wl,-rpath,{}/lib", prefix.path().display())).arg("-o").arg(&program);
    succeeded(compiler.output().unwrap());
    run(&program);
}

#[test]
fn installing_leaves_out_what_plugins_print_and_nothing_else() {
    let noise = "bfd plugin: LLVM gold plugin has failed to create LTO module: Invalid record";
    let lines = format!("without_plugin_noise bash -c 'echo \"{noise}\"; echo why it failed >&2; exit 3'");
    let output = bash(&lines, &[]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "why it failed\n");
    assert!(output.stdout.is_empty());
}
