//! Open MPI over UCX (`pml ucx`, `osc ucx`): four ranks of a test program that checks every value.

use crate::interop::{FAULTS, IMPATIENT};
use gdsync_test_support::compiler::{Compiler, Program};
use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{lacks, run, soft, tool};
use gdsync_test_support::{open_mpi, root};
use std::process::Command;

/// Returns the options that Open MPI's compiler adds to the C compiler's in one of its stages.
fn options(stage: &str) -> Option<Vec<String>> {
    let said = Command::new("mpicc").arg(format!("--showme:{stage}")).output().ok()?;
    let text = String::from_utf8(said.stdout).ok()?;
    said.status.success().then(|| text.split_whitespace().map(str::to_owned).collect())
}

/// Builds the program. `None` without Open MPI: the test is skipped.
fn build(test: &str) -> Option<Program> {
    let (Some(compile), Some(link)) = (options("compile"), options("link")) else {
        lacks(test, "mpicc is not there (package libopenmpi-dev)");
        return None;
    };
    let compiler = Compiler::c("gnu11").options(compile).libraries(link);
    Some(compiler.build(&root().join("gdsync-soft/tests/interop/mpi.c")))
}

/// Runs it over one transport of UCX. Without shared memory and TCP among them, ranks reach each other by the
/// card alone; the program compares the card's traffic with its own.
fn ranks(test: &str, cases: &[(&str, &str)], plan: &str) {
    let Some(mpirun) = tool(test, "mpirun") else { return };
    let Some(program) = build(test) else { return };
    for (devices, transport) in cases {
        let (temporary, session) = (Folder::new(&format!("{test}-{transport}")), Folder::new("mpi-session"));
        let mut command = soft(devices, &mpirun, temporary.path());
        command.args(["-n", "4", "--oversubscribe", "--bind-to", "none"]);
        command.args(["--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "^openib,uct"]);
        command.args(["--mca", "mpi_yield_when_idle", "1"]);
        command.args(["--mca", "orte_tmpdir_base"]).arg(session.path()).arg(program.path());
        command.env("UCX_TLS", format!("{transport},self")).env("UCX_NET_DEVICES", "mlx5_0:1");
        command.envs(open_mpi::ENVIRONMENT);
        command.env("SOFTHCA_FAULTS", plan).envs(IMPATIENT.into_iter().filter(|_| !plan.is_empty()));
        let ended = run(command);
        assert_eq!(ended.code, Some(0), "{transport} on {devices}: {}", ended.text);
        assert!(ended.text.contains("4 ranks: every value as expected"), "{}", ended.text);
        assert_eq!(temporary.content(), 0);
    }
}

#[test]
fn open_mpi_over_connections() {
    ranks("open_mpi_over_connections", &[("ib", "rc_x"), ("roce", "rc_v")], "");
}

#[test]
fn open_mpi_over_dynamic_connections() {
    ranks("open_mpi_over_dynamic_connections", &[("ib", "dc_x"), ("roce", "dc_x")], "");
}

#[test]
fn open_mpi_over_datagrams() {
    ranks("open_mpi_over_datagrams", &[("ib", "ud_x"), ("roce", "ud_v")], "");
}

#[test]
fn open_mpi_gets_over_faults() {
    ranks("open_mpi_gets_over_faults", &[("roce", "rc_x"), ("ib", "dc_x"), ("roce", "ud_x")], FAULTS);
}
