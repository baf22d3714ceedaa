//! Programs of `MPIS_*`.

use crate::programs::{Library::Mpis, compiler, program, root, run, steps_are_measured, succeeds};
use gdsync_test_support::compiler::Compiler;

/// By default, the software card repeats sends until their receives are posted; this makes it hold them back.
const HOLD_SENDS: &str = "GDSYNC_MPI_HOLD_SENDS";
/// A stream starts a list of transfers by one write, and ends it by one wait.
const CARD_WAITS: (&str, &str) = ("GDSYNC_MPI_CARD_WAITS", "1");

#[test]
fn a_ring_runs_ahead_and_its_work_is_counted() {
    let environment = [("GDSYNC_MPI_STATS", "1"), CARD_WAITS];
    for environment in [&environment[..1], &environment] {
        let test = "a_ring_runs_ahead_and_its_work_is_counted";
        let Some(errors) = succeeds(test, (Mpis, "ring"), &["4"], environment) else { return };
        let lines: Vec<_> = errors.lines().filter(|line| line.starts_with("gdsync-mpis rank")).collect();
        assert_eq!(lines.len(), 4, "{errors}");
        // 400 rounds of two requests; the stream waits for 300 of them. The CPU reduces nothing.
        for line in lines {
            assert!(line.contains(": 800 starts, 600 waits, ") && line.ends_with(", 0 by the CPU"), "{line}");
        }
    }
}

/// The example of docs/mpi.md, with the output that the page has.
#[test]
fn the_first_program_computes_in_the_order_of_its_queue() {
    let test = "the_first_program_computes_in_the_order_of_its_queue";
    let Some(compiler) = compiler(test, Mpis) else { return };
    let page = std::fs::read_to_string(root().join("../../docs/mpi.md")).unwrap();
    let program = compiler.build(&root().join("../../examples/mpi/diffusion.c"));
    for ranks in ["1", "2", "4"] {
        let output = run(&program, ranks, &["--bind-to", "none"], &[]);
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said, format!("{ranks} ranks, 200 steps: every cell is right\n"), "{errors}");
        assert!(output.status.success() && (ranks != "4" || page.contains(&*said)), "{errors}");
    }
}

#[test]
fn requests_match_by_communicator_peer_and_tag() {
    let test = "requests_match_by_communicator_peer_and_tag";
    succeeds(test, (Mpis, "order"), &["8"], &[]);
    // Also with a card that waits for receives and for whatever a stream waits for.
    succeeds(test, (Mpis, "order"), &["4"], &[(HOLD_SENDS, "1"), ("GDSYNC_MPI_COLLECT_FROM", "2")]);
    succeeds(test, (Mpis, "order"), &["8"], &[CARD_WAITS]);
}

#[test]
fn a_thousand_requests_and_long_messages() {
    let part = ("GDSYNC_MPI_PART_BYTES", "4096");
    for environment in [&[part][..], &[part, (HOLD_SENDS, "1")], &[part, CARD_WAITS]] {
        succeeds("a_thousand_requests_and_long_messages", (Mpis, "many"), &["4"], environment);
    }
}

#[test]
fn collectives_do_what_mpi_does() {
    let test = "collectives_do_what_mpi_does";
    succeeds(test, (Mpis, "collectives"), &["3", "4", "5", "8"], &[]);
    succeeds(test, (Mpis, "collectives"), &["4"], &[CARD_WAITS]);
}

#[test]
fn all_reduces_are_measured() {
    let Some(program) = program("all_reduces_are_measured", Mpis, "reductions.c") else { return };
    let output = run(&program, "3", &["sh", "-c", "exec \"$0\" 10"], &[]);
    let said = String::from_utf8_lossy(&output.stdout);
    let rows = said.lines().filter(|line| line.starts_with("3 ranks, ") && line.ends_with(" us"));
    assert!(
        rows.count() == 5 && said.ends_with("reductions ok\n"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn bad_input_is_refused_with_the_reason() {
    succeeds("bad_input_is_refused_with_the_reason", (Mpis, "refusals"), &["4"], &[]);
}

#[test]
fn a_rank_that_dies_ends_what_waits_for_it() {
    let test = "a_rank_that_dies_ends_what_waits_for_it";
    let Some(program) = program(test, Mpis, "dead.c") else { return };
    for how in [(HOLD_SENDS, "0"), (HOLD_SENDS, "1"), CARD_WAITS] {
        let environment = [("GDSYNC_MPI_PEER_TIMEOUT_MS", "1000"), how];
        // The dead rank is the reason for the status of mpirun.
        let output = run(&program, "4", &["--enable-recovery"], &environment);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "dead ok\n", "{errors}");
    }
}

#[test]
fn the_end_of_the_program_ends_its_work() {
    for environment in [&[][..], &[CARD_WAITS]] {
        succeeds("the_end_of_the_program_ends_its_work", (Mpis, "outstanding"), &["4"], environment);
    }
}

#[test]
fn the_header_is_c_plus_plus_too() {
    let test = "the_header_is_c_plus_plus_too";
    if compiler(test, Mpis).is_none() {
        return;
    }
    let lines =
        "#define OMPI_SKIP_MPICXX 1\n#include <stream-triggering.h>\nMPIS_Queue_type type = GPU_MEM_OPS;";
    let compiler = Compiler::mpi_cpp("c++17").include(root().join("include"));
    assert_eq!(compiler.probe(lines), Ok(()));
}

#[test]
fn steps_of_a_ring_and_of_a_grid_are_measured() {
    steps_are_measured("steps_of_a_ring_and_of_a_grid_are_measured", Mpis, &[], "MPIS ");
}
