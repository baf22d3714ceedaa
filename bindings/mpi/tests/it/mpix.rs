//! Programs of `MPIX_*`.

use crate::programs::{Library::Mpix, compiler, program, root, run, succeeds};
use gdsync_test_support::compiler::Compiler;

const RANKS: [&str; 3] = ["2", "4", "8"];

#[test]
fn streams_start_and_await_messages_ahead_of_the_cpu() {
    let test = "streams_start_and_await_messages_ahead_of_the_cpu";
    let environment = [("GDSYNC_MPI_STATS", "1")];
    let Some(errors) = succeeds(test, (Mpix, "enqueued"), &RANKS, &environment) else { return };
    let lines: Vec<_> = errors.lines().filter(|line| line.starts_with("gdsync-mpix rank")).collect();
    assert_eq!(lines.len(), 2 + 4 + 8, "{errors}");
    // 100 rounds and one more; nothing is sent to MPI_PROC_NULL.
    for line in lines {
        let counts =
            ": 101 sends and 101 receives by a thread of the CPU, 0 given up, 0 partitions by the card";
        assert!(line.ends_with(counts), "{line}");
    }
}

#[test]
fn messages_are_those_of_mpi() {
    succeeds("messages_are_those_of_mpi", (Mpix, "messages"), &RANKS, &[]);
}

#[test]
fn the_card_sends_partitions() {
    let environment = [("GDSYNC_MPI_STATS", "1"), ("GDSYNC_MPI_PART_BYTES", "1024")];
    let Some(errors) = succeeds("the_card_sends_partitions", (Mpix, "partitioned"), &RANKS, &environment)
    else {
        return;
    };
    let lines: Vec<_> = errors.lines().filter(|line| line.starts_with("gdsync-mpix rank")).collect();
    assert_eq!(lines.len(), 2 + 4 + 8, "{errors}");
    for line in lines {
        let counts = ": 0 sends and 0 receives by a thread of the CPU, 0 given up, ";
        assert!(line.contains(counts) && !line.contains(", 0 partitions"), "{line}");
    }
}

#[test]
fn a_rank_that_dies_ends_the_partitions_that_it_has() {
    let test = "a_rank_that_dies_ends_the_partitions_that_it_has";
    let Some(program) = program(test, Mpix, "dead.c") else { return };
    let environment = [("GDSYNC_MPI_PEER_TIMEOUT_MS", "1000")];
    // The dead rank is the reason for the status of mpirun.
    let output = run(&program, "3", &["--enable-recovery"], &environment);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "dead ok\n", "{errors}");
}

#[test]
fn the_end_gives_up_what_is_outstanding() {
    succeeds("the_end_gives_up_what_is_outstanding", (Mpix, "given_up"), &["2"], &[]);
}

#[test]
fn bad_input_of_mpix_is_refused_with_the_reason() {
    succeeds("bad_input_of_mpix_is_refused_with_the_reason", (Mpix, "refused"), &["2"], &[]);
}

#[test]
fn mpi_without_threads_is_refused() {
    succeeds("mpi_without_threads_is_refused", (Mpix, "threads"), &["2"], &[]);
}

#[test]
fn the_header_of_mpix_is_c_plus_plus_too() {
    let test = "the_header_of_mpix_is_c_plus_plus_too";
    if compiler(test, Mpix).is_none() {
        return;
    }
    let lines = "#define OMPI_SKIP_MPICXX 1\n#include <mpi-acx.h>\nMPIX_Request request = MPIX_REQUEST_NULL;\n\
                 int type = MPIX_QUEUE_CUDA_STREAM;";
    let compiler = Compiler::mpi_cpp("c++17").include(root().join("include"));
    assert_eq!(compiler.probe(lines), Ok(()));
}
