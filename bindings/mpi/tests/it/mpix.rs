//! Programs of `MPIX_*`.

use crate::programs::{Library::Mpix, compiler, program, root, run, steps_are_measured, succeeds};
use gdsync_test_support::compiler::Compiler;
use gdsync_test_support::skipped;

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
        let counts = ": 101 sends and 101 receives by a thread of the CPU, 0 given up, 0 partitions by the card; of links, \
             0 messages by streams and the card, and 0 by the thread";
        assert!(line.ends_with(counts), "{line}");
    }
}

#[test]
fn graphs_start_and_await_messages_at_each_launch() {
    let test = "graphs_start_and_await_messages_at_each_launch";
    let environment = [("GDSYNC_MPI_STATS", "1")];
    let Some(errors) = succeeds(test, (Mpix, "graphs"), &RANKS, &environment) else { return };
    let lines: Vec<_> = errors.lines().filter(|line| line.starts_with("gdsync-mpix rank")).collect();
    assert_eq!(lines.len(), 2 + 4 + 8, "{errors}");
    // 100 rounds, two launches of two pairs, 50 times three messages, one of a stream, and a receive for which nothing comes.
    for line in lines {
        assert!(line.contains(": 255 sends and 105 receives by a thread of the CPU, 1 given up, "), "{line}");
    }
}

#[test]
fn cuda_graphs_start_and_await_messages_at_each_launch() {
    let test = "cuda_graphs_start_and_await_messages_at_each_launch";
    let Some(errors) = succeeds(test, (Mpix, "cuda_graphs"), &["2"], &[]) else { return };
    if errors.contains("SKIPPED cuda_graphs") {
        skipped(test, "there is no CUDA driver here");
    }
}

#[test]
fn messages_are_those_of_mpi() {
    succeeds("messages_are_those_of_mpi", (Mpix, "messages"), &RANKS, &[]);
}

#[test]
fn streams_and_the_card_carry_the_messages_of_a_linked_communicator() {
    let test = "streams_and_the_card_carry_the_messages_of_a_linked_communicator";
    let environment =
        [("GDSYNC_MPI_STATS", "1"), ("GDSYNC_MPIX_LINKS", "1"), ("GDSYNC_MPI_PART_BYTES", "65536")];
    let Some(errors) = succeeds(test, (Mpix, "linked"), &RANKS, &environment) else { return };
    let lines: Vec<_> = errors.lines().filter(|line| line.starts_with("gdsync-mpix rank")).collect();
    assert_eq!(lines.len(), 2 + 4 + 8, "{errors}");
    for line in lines {
        // The one receive is from MPI_PROC_NULL, which MPI does not get.
        assert!(line.contains(": 0 sends and 0 receives by a thread of the CPU, 0 given up, "), "{line}");
        let (_, links) = line.split_once("of links, ").unwrap();
        let mut numbers = links.split(' ').filter_map(|word| word.parse::<u64>().ok());
        let (by_stream, by_thread) = (numbers.next().unwrap(), numbers.next().unwrap());
        // Once the sides have matched, the thread posts nothing for a program that is not too far ahead.
        assert!(by_stream >= 2 * 4 * 50, "{line}");
        assert_eq!(by_stream + by_thread, 2 * (400 + 4 * 50 + 1000 + 2 + 3 + 2), "{line}");
    }
}

#[test]
fn steps_on_links_are_measured() {
    steps_are_measured("steps_on_links_are_measured", Mpix, &["-DBY_MPIX"], "MPIX, linked ");
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

fn outlives_a_rank(test: &str, name: &str) {
    let Some(program) = program(test, Mpix, &format!("{name}.c")) else { return };
    let environment = [("GDSYNC_MPI_PEER_TIMEOUT_MS", "1000")];
    // The dead rank is the reason for the status of mpirun.
    let output = run(&program, "3", &["--enable-recovery"], &environment);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{name} ok\n"), "{errors}");
}

#[test]
fn a_rank_that_dies_ends_the_partitions_that_it_has() {
    outlives_a_rank("a_rank_that_dies_ends_the_partitions_that_it_has", "dead");
}

#[test]
fn a_rank_that_dies_ends_the_messages_of_its_links() {
    outlives_a_rank("a_rank_that_dies_ends_the_messages_of_its_links", "linked_dead");
}

#[test]
fn the_end_gives_up_what_is_outstanding() {
    for links in ["0", "1"] {
        let environment = [("GDSYNC_MPIX_LINKS", links)];
        succeeds("the_end_gives_up_what_is_outstanding", (Mpix, "given_up"), &["2"], &environment);
    }
}

#[test]
fn bad_input_of_mpix_is_refused_with_the_reason() {
    succeeds("bad_input_of_mpix_is_refused_with_the_reason", (Mpix, "refused"), &["2"], &[]);
}

#[test]
fn mpi_without_threads_is_refused() {
    succeeds("mpi_without_threads_is_refused", (Mpix, "threads"), &["2"], &[]);
}

/// `MPIX_Pready` and `MPIX_Parrived` take a request's address as a `void *`, to which a request itself would convert.
#[test]
fn a_request_instead_of_its_address_does_not_compile() {
    let test = "a_request_instead_of_its_address_does_not_compile";
    if compiler(test, Mpix).is_none() {
        return;
    }
    let c = Compiler::mpi("gnu11").include(root().join("include"));
    let cpp = Compiler::mpi_cpp("c++11").include(root().join("include"));
    // Without warnings, so that only errors count.
    for compiler in [c.options(["-w"]), cpp.options(["-w"])] {
        let call = |argument: &str| {
            let head = "#define OMPI_SKIP_MPICXX 1\n#include <mpi-acx.h>\nstatic int call(MPIX_Request request, \
                        MPIX_Prequest prequest, void *any, int *flag)";
            let ready = compiler.probe(&format!("{head} {{ return MPIX_Pready(0, {argument}); }}"));
            let arrived = compiler.probe(&format!("{head} {{ return MPIX_Parrived({argument}, 0, flag); }}"));
            assert_eq!(ready.is_ok(), arrived.is_ok(), "{argument}: {ready:?}, {arrived:?}");
            ready
        };
        for argument in ["&request", "any"] {
            assert_eq!(call(argument), Ok(()), "{argument}");
        }
        for argument in ["request", "prequest"] {
            assert!(call(argument).is_err(), "{argument} compiles");
        }
    }
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
