//! A C or C++ compiler, the headers, and the library: what tests of the C interface need.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]
#![allow(dead_code, reason = "each test uses some of it")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A language, its standard, and who compiles it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Language {
    C,
    Cpp,
}

impl Language {
    fn compiler(self) -> &'static str {
        match self {
            Language::C => "cc",
            Language::Cpp => "c++",
        }
    }

    fn flags(self) -> [&'static str; 3] {
        match self {
            Language::C => ["-x", "c", "-std=gnu11"],
            Language::Cpp => ["-x", "c++", "-std=c++17"],
        }
    }
}

/// A folder that goes with the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn folder() -> Folder {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    Folder(path)
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether programs can be built in that language here; says why not.
pub(crate) fn can_build(test: &str, language: Language) -> bool {
    let folder = folder();
    let source = folder.path().join("probe");
    std::fs::write(&source, "#include <infiniband/verbs.h>\nint main(void) { return 0; }\n").unwrap();
    let built =
        Command::new(language.compiler()).args(language.flags()).arg("-fsyntax-only").arg(&source).output();
    let why = match built {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("").to_owned(),
        Err(error) => format!("{}: {error}", language.compiler()),
    };
    assert!(std::env::var_os("GDSYNC_REQUIRE_RDMA_HEADERS").is_none(), "{test}: {why}");
    skipped(test, &format!("{why} (apt-get install gcc g++ libibverbs-dev)"));
    false
}

/// The library, which cargo has built beside the tests, under the name that programs look for.
fn library(into: &Path) {
    let tests = std::env::current_exe().unwrap();
    let deps = tests.parent().unwrap();
    let built = deps.join("libgdsync_c.so");
    assert!(built.exists(), "cargo has not built {}", built.display());
    for name in ["libgdsync.so", "libgdsync.so.2"] {
        std::os::unix::fs::symlink(&built, into.join(name)).unwrap();
    }
}

/// A program that was built, in its folder.
pub(crate) struct Program {
    folder: Folder,
}

/// Past libtest's capture.
pub(crate) fn skipped(test: &str, why: &str) {
    std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes()).unwrap();
}

/// Builds a program from a source, with every warning an error, against the library alone.
pub(crate) fn build(language: Language, source: &Path, more: &[&str]) -> Program {
    build_with(language, source, more, &[])
}

/// The same, against other libraries, too.
pub(crate) fn build_with(language: Language, source: &Path, more: &[&str], libraries: &[&str]) -> Program {
    let folder = folder();
    library(folder.path());
    let output = Command::new(language.compiler())
        .args(language.flags())
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-g"])
        .args(more)
        .arg("-I")
        .arg(root().join("include"))
        .arg("-I")
        .arg(concat!(env!("OUT_DIR"), "/include"))
        .arg(source)
        .args(["-x", "none", "-o"])
        .arg(folder.path().join("program"))
        .arg("-L")
        .arg(folder.path())
        .args(["-lgdsync", "-lpthread"])
        .args(libraries)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Program { folder }
}

impl Program {
    /// Runs it, on a software card of this process alone.
    pub(crate) fn run(&self, environment: &[(&str, &str)]) -> Output {
        let mut command = Command::new("timeout");
        command.arg("120").arg(self.folder.path().join("program")).env("LD_LIBRARY_PATH", self.folder.path());
        command.envs(environment.iter().copied());
        command.output().unwrap()
    }

    /// Runs it to a good end; what it printed.
    pub(crate) fn succeed(&self, environment: &[(&str, &str)]) -> String {
        let output = self.run(environment);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\n{said}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }
}
