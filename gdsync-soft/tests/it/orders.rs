//! Programs that lack an order, `tests/orders/NAME.c`: right by luck on an orderly card. Compiled with `-DORDERED`, each
//! has the order, and is right on every card. docs/missing-order.md lists them.

use gdsync_test_support::compiler::{Compiler, Program};
use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{lacks, run, soft};
use gdsync_test_support::root;
use std::path::Path;

pub(crate) const NAMES: [&str; 12] = [
    "adaptive-flag",
    "atomic-result",
    "credit",
    "early-destroy",
    "last-byte",
    "posted-reuse",
    "read-poll",
    "relaxed-flag",
    "send-reuse",
    "two-queues",
    "two-rails",
    "two-writers",
];

/// Builds all programs with these options. `None` without a compiler or the headers: the test is skipped.
pub(crate) fn build(test: &str, options: &[&str]) -> Option<Vec<Program>> {
    build_some(test, options, &NAMES)
}

/// Builds some of the programs.
pub(crate) fn build_some(test: &str, options: &[&str], names: &[&str]) -> Option<Vec<Program>> {
    let compiler = compiler_of_verbs(test, options)?;
    let source = |name| root().join("gdsync-soft/tests/orders").join(name).with_extension("c");
    Some(names.iter().map(|name| compiler.build(&source(name))).collect())
}

/// Returns a compiler for programs of libibverbs. `None` without one, or without the headers: the test is skipped.
pub(crate) fn compiler_of_verbs(test: &str, options: &[&str]) -> Option<Compiler> {
    let compiler = Compiler::c("gnu11").options(options);
    if let Err(why) = compiler.probe("#include <infiniband/verbs.h>") {
        lacks(test, &format!("{why} (packages gcc, libibverbs-dev)"));
        return None;
    }
    Some(compiler.libraries(["-libverbs"]))
}

/// Returns whether `GDSYNC_TEST_ALL_ORDERS` asks for all programs, and for more runs.
pub(crate) fn wants_all() -> bool {
    std::env::var_os("GDSYNC_TEST_ALL_ORDERS").is_some()
}

/// Runs each program once for each value of SOFTHCA_LIBERTIES, on a device of each link layer.
fn succeed(programs: &[Program], liberties: &[&str]) {
    let script = r#"
        while [ $# -gt 0 ]; do
            for SOFTHCA_LIBERTIES in $EACH; do
                export SOFTHCA_LIBERTIES
                [ $SOFTHCA_LIBERTIES != none ] || unset SOFTHCA_LIBERTIES
                "$2" || { echo "$1 with liberties $SOFTHCA_LIBERTIES"; exit 1; }
            done
            shift 2
        done
    "#;
    for devices in ["ib", "roce"] {
        let temporary = Folder::new(&format!("orders-{devices}"));
        let mut command = soft(devices, Path::new("/bin/sh"), temporary.path());
        command.args(["-c", script, "sh"]).env("EACH", liberties.join(" "));
        command.env_remove("SOFTHCA_LIBERTIES").env_remove("SOFTHCA_FAULTS");
        for (name, program) in NAMES.iter().zip(programs) {
            command.arg(name).arg(program.path());
        }
        assert_eq!(run(command).succeeded(), "", "{devices}");
        assert_eq!(temporary.content(), 0, "{devices}");
    }
}

#[test]
fn an_orderly_card_hides_every_missing_order() {
    let Some(programs) = build("an_orderly_card_hides_every_missing_order", &[]) else { return };
    succeed(&programs, if wants_all() { &["none"; 5] } else { &["none"] });
}

#[test]
fn programs_that_wait_are_right_on_every_card() {
    let Some(programs) = build("programs_that_wait_are_right_on_every_card", &["-DORDERED"]) else { return };
    succeed(&programs, if wants_all() { &["none", "1", "2", "3", "4"] } else { &["1"] });
}

#[test]
fn every_program_is_listed() {
    let folder = root().join("gdsync-soft/tests/orders");
    let files = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let sources = files.filter(|path| path.extension().is_some_and(|extension| extension == "c"));
    let mut names: Vec<_> = sources.map(|path| path.file_stem().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(names, NAMES);
    let page = std::fs::read_to_string(root().join("docs/missing-order.md")).unwrap();
    for name in NAMES {
        assert!(page.contains(&format!("tests/orders/{name}.c")), "{name}");
    }
}
