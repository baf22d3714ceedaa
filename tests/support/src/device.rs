//! The device header as C++ for the CPU, if there is a C++ compiler.

use crate::compiler::{Compiler, Program};
use crate::{root, skipped};
use libloading::Library;
use std::path::Path;
use std::process::Command;

/// `gdsync::status` of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// `ok`.
    Ok,
    /// `no_room`.
    NoRoom,
    /// `timed_out`.
    TimedOut,
    /// `failed`.
    Failed,
    /// `invalid`.
    Invalid,
    /// `peer_dead`.
    PeerDead,
}

impl Ended {
    /// Converts a code.
    pub fn new(code: i32) -> Self {
        *[Ended::Ok, Ended::NoRoom, Ended::TimedOut, Ended::Failed, Ended::Invalid, Ended::PeerDead]
            .get(code as usize)
            .expect("a status that the header does not have")
    }
}

/// Returns the C++ compiler with the device header's folder.
fn compiler(options: &[&str]) -> Compiler {
    Compiler::cpp("c++17").include(root().join("gdsync/include")).options(["-pthread"]).options(options)
}

/// Compiles a source, given relative to the workspace, into a library. `Err` is the reason if that fails.
pub fn build(source: &str) -> Result<Program, String> {
    let compiler = compiler(&["-shared", "-fPIC"]);
    compiler.probe("#include <thread>")?;
    Ok(compiler.build(&root().join(source)))
}

/// Loads a library from [`build`].
pub fn open(path: &Path) -> Library {
    // SAFETY: the library is ours and has no initialisers.
    unsafe { Library::new(path) }.unwrap()
}

/// Compiles a source like [`build`], and loads the library.
pub fn load(source: &str) -> Result<Library, String> {
    build(source).map(|built| open(&built.path()))
}

/// Compiles a program, given relative to the workspace, and runs it under ThreadSanitizer. Skips the test if that is
/// not possible.
pub fn run_sanitized(test: &str, source: &str, arguments: &[&str]) {
    let compiler = compiler(&["-fsanitize=thread"]);
    if let Err(why) = compiler.probe("#include <thread>") {
        return skipped(test, &why);
    }
    let program = compiler.build(&root().join(source));
    let mut command = Command::new(program.path());
    let output = command.args(arguments).env("TSAN_OPTIONS", "halt_on_error=1").output().unwrap();
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if errors.contains("unexpected memory mapping") {
        return skipped(test, "ThreadSanitizer does not run on this kernel");
    }
    assert!(output.status.success() && printed == "ok\n", "{:?} {printed} {errors}", output.status);
}
