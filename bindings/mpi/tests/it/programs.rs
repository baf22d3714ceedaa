//! C programs on the library, run by `mpirun` with four or eight ranks on the software card and software streams.

use gdsync_test_support::compiler::{Compiler, Program, static_library};
use gdsync_test_support::skipped_unless_required;
use parking_lot::Mutex;
use std::path::Path;
use std::process::{Command, Output};

/// So many ranks that look for work all the time are enough for a machine.
static ALONE: Mutex<()> = Mutex::new(());

const PACKAGES: &str = "apt-get install openmpi-bin libopenmpi-dev";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The MPI's compiler with the library, if programs can be built and run here. Skips the test if not.
fn compiler(test: &str) -> Option<Compiler> {
    let compiler = Compiler::mpi("gnu11").include(root().join("include"));
    let runs = Command::new("mpirun").arg("--version").output();
    let runs = runs.map(drop).map_err(|error| format!("no mpirun: {error}"));
    if let Err(why) = compiler.probe("#include <mpi.h>").and(runs) {
        skipped_unless_required("GDSYNC_REQUIRE_RDMA", test, &format!("{why} ({PACKAGES})"));
        return None;
    }
    let part = ["errors", "comm", "types", "match", "request", "calls", "queue"];
    let part = part.map(|file| root().join("c").join(file).with_extension("c"));
    let library = static_library("libgdsync_mpi");
    let compiler = compiler.include(root().join("c")).options(part).libraries([library]);
    Some(compiler.libraries(["-lpthread", "-ldl", "-lm"]))
}

fn program(test: &str, source: &str) -> Option<Program> {
    Some(compiler(test)?.build(&root().join("tests/c").join(source)))
}

fn run(program: &Program, ranks: &str, options: &[&str], environment: &[(&str, &str)]) -> Output {
    let _alone = ALONE.lock();
    let always = [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("GDSYNC_MPI_DEVICE", "software"),
    ];
    let environment: Vec<_> = always.iter().chain(environment).copied().collect();
    let command: Vec<_> = ["mpirun", "--oversubscribe", "-n", ranks].iter().chain(options).copied().collect();
    program.run_under(&command, &environment)
}

/// Runs a program of `tests/c`, which says on rank 0 that all is well. Returns what it wrote to stderr.
fn succeeds(test: &str, name: &str, ranks: &str, environment: &[(&str, &str)]) -> Option<String> {
    let output = run(&program(test, &format!("{name}.c"))?, ranks, &[], environment);
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{said}{errors}", output.status);
    assert_eq!(said, format!("{name} ok\n"), "{errors}");
    Some(errors.into_owned())
}

#[test]
fn a_ring_runs_ahead_and_its_work_is_counted() {
    let environment = [("GDSYNC_MPI_STATS", "1")];
    let Some(errors) = succeeds("a_ring_runs_ahead_and_its_work_is_counted", "ring", "4", &environment)
    else {
        return;
    };
    let lines: Vec<_> = errors.lines().filter(|line| line.starts_with("gdsync-mpis rank")).collect();
    assert_eq!(lines.len(), 4, "{errors}");
    // 400 rounds of two requests, 300 of them waited for by the stream. No thread of the CPU takes part.
    for line in lines {
        assert!(line.contains(": 800 starts, 600 waits, ") && line.ends_with(", 0 by the CPU"), "{line}");
    }
}

#[test]
fn requests_match_by_communicator_peer_and_tag() {
    for ranks in ["4", "8"] {
        succeeds("requests_match_by_communicator_peer_and_tag", "order", ranks, &[]);
    }
}

#[test]
fn a_thousand_requests_and_long_messages() {
    let environment = [("GDSYNC_MPI_PART_BYTES", "4096")];
    succeeds("a_thousand_requests_and_long_messages", "many", "4", &environment);
}

#[test]
fn collectives_do_what_mpi_does() {
    succeeds("collectives_do_what_mpi_does", "collectives", "4", &[]);
}

#[test]
fn bad_input_is_refused_with_the_reason() {
    succeeds("bad_input_is_refused_with_the_reason", "refusals", "4", &[]);
}

#[test]
fn a_rank_that_dies_ends_what_waits_for_it() {
    let test = "a_rank_that_dies_ends_what_waits_for_it";
    let Some(program) = program(test, "dead.c") else { return };
    let environment = [("GDSYNC_MPI_PEER_TIMEOUT_MS", "1000")];
    // The dead rank is the reason for the status of mpirun.
    let output = run(&program, "4", &["--enable-recovery"], &environment);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "dead ok\n", "{errors}");
}

#[test]
fn the_end_of_the_program_ends_its_work() {
    succeeds("the_end_of_the_program_ends_its_work", "outstanding", "4", &[]);
}

#[test]
fn settings_that_are_no_numbers_are_refused() {
    let test = "settings_that_are_no_numbers_are_refused";
    let Some(program) = program(test, "ring.c") else { return };
    for (variable, value) in [("GDSYNC_MPI_PEER_TIMEOUT_MS", "soon"), ("GDSYNC_MPI_PART_BYTES", "0")] {
        let output = run(&program, "4", &[], &[(variable, value)]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(&format!("{variable} is \"{value}\"")),
            "{errors}"
        );
    }
}

#[test]
fn the_header_is_c_plus_plus_too() {
    let test = "the_header_is_c_plus_plus_too";
    if compiler(test).is_none() {
        return;
    }
    let lines =
        "#define OMPI_SKIP_MPICXX 1\n#include <stream-triggering.h>\nMPIS_Queue_type type = GPU_MEM_OPS;";
    let compiler = Compiler::mpi_cpp("c++17").include(root().join("include"));
    assert_eq!(compiler.probe(lines), Ok(()));
}
