//! C programs on the libraries, run by `mpirun` with two to eight ranks on the software card and software streams.

use gdsync_test_support::compiler::{Compiler, Program, static_library};
use gdsync_test_support::{open_mpi, skipped_unless_required};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Serialises the runs: one set of ranks that poll all the time is enough for a machine.
static ALONE: Mutex<()> = Mutex::new(());

const PACKAGES: &str = "apt-get install openmpi-bin libopenmpi-dev";

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A library, with its own folder in `c`.
#[derive(Clone, Copy)]
pub(crate) enum Library {
    Mpis,
    Mpix,
}

impl Library {
    /// The library's C files.
    fn sources(self) -> impl Iterator<Item = PathBuf> {
        let own = match self {
            Library::Mpis => "c/mpis",
            Library::Mpix => "c/mpix",
        };
        let files = ["c", own].into_iter().flat_map(|folder| root().join(folder).read_dir().unwrap());
        files.map(|file| file.unwrap().path()).filter(|path| path.extension().is_some_and(|end| end == "c"))
    }

    /// The folder of the library's test programs.
    fn programs(self) -> &'static str {
        match self {
            Library::Mpis => "tests/c",
            Library::Mpix => "tests/c/mpix",
        }
    }
}

/// Returns MPI's compiler with a library, or skips the test if programs cannot be built and run here.
pub(crate) fn compiler(test: &str, of: Library) -> Option<Compiler> {
    let compiler = Compiler::mpi("gnu11").include(root().join("include"));
    let runs = Command::new("mpirun").arg("--version").output();
    let runs = runs.map(drop).map_err(|error| format!("no mpirun: {error}"));
    if let Err(why) = compiler.probe("#include <mpi.h>").and(runs) {
        skipped_unless_required("GDSYNC_REQUIRE_RDMA", test, &format!("{why} ({PACKAGES})"));
        return None;
    }
    let library = static_library("libgdsync_mpi");
    let compiler = compiler.include(root().join("c")).include(root().join("tests/c"));
    let compiler = compiler.options(of.sources()).libraries([library]);
    Some(compiler.libraries(["-lpthread", "-ldl", "-lm"]))
}

pub(crate) fn program(test: &str, of: Library, source: &str) -> Option<Program> {
    Some(compiler(test, of)?.build(&root().join(of.programs()).join(source)))
}

pub(crate) fn run(program: &Program, ranks: &str, options: &[&str], environment: &[(&str, &str)]) -> Output {
    let _alone = ALONE.lock();
    let device = [("GDSYNC_MPI_DEVICE", "software")];
    let environment: Vec<_> =
        open_mpi::ENVIRONMENT.iter().chain(&device).chain(environment).copied().collect();
    let command: Vec<_> = ["mpirun", "--oversubscribe", "-n", ranks].iter().chain(options).copied().collect();
    program.run_under(&command, &environment)
}

/// Runs a test program, which must print on rank 0 that all is well. Returns its stderr.
pub(crate) fn succeeds(
    test: &str,
    (of, name): (Library, &str),
    ranks: &[&str],
    environment: &[(&str, &str)],
) -> Option<String> {
    let program = program(test, of, &format!("{name}.c"))?;
    let errors = ranks.iter().map(|ranks| succeeds_with(&program, name, ranks, environment));
    Some(errors.collect())
}

fn succeeds_with(program: &Program, name: &str, ranks: &str, environment: &[(&str, &str)]) -> String {
    let output = run(program, ranks, &[], environment);
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{said}{errors}", output.status);
    assert_eq!(said, format!("{name} ok\n"), "{errors}");
    errors.into_owned()
}

/// Runs the benchmark `examples/mpi/steps.c` with a library. It checks every byte itself.
pub(crate) fn steps_are_measured(test: &str, of: Library, options: &[&str], row: &str) {
    let Some(compiler) = compiler(test, of) else { return };
    let program = compiler.options(options).build(&root().join("../../examples/mpi/steps.c"));
    for (options, first) in
        [("", "4 ranks, a ring, 200 steps of 1000 bytes"), ("--grid", "4 ranks, a grid, 200 steps")]
    {
        let script = format!("exec \"$0\" --steps 200 --size 1000 {options}");
        let output = run(&program, "4", &["sh", "-c", &script], &[]);
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}\n{said}{errors}", output.status);
        assert!(said.starts_with(first), "{said}");
        for row in [row, "MPI_Isend, MPI_Irecv ", "the first : MPI "] {
            assert!(said.lines().any(|line| line.starts_with(row)), "{said}");
        }
    }
}
