//! A C or C++ compiler, the header, and the library: what tests of the C interface need.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A language, its standard, and its compiler.
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
            Language::C => ["-x", "c", "-std=c11"],
            Language::Cpp => ["-x", "c++", "-std=c++17"],
        }
    }
}

/// A folder that is removed after the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gdrapi-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

pub(crate) fn skipped(test: &str, why: &str) {
    // Past libtest's capture.
    std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes()).unwrap();
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The library with that file ending, which cargo has built beside the tests.
pub(crate) fn library(ending: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let built = tests.parent().unwrap().join(format!("libgdrapi.{ending}"));
    assert!(built.exists(), "cargo has not built {}", built.display());
    built
}

/// How a program is linked to the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linked {
    Shared,
    Static,
}

/// A built program, in its folder.
pub(crate) struct Program {
    folder: Folder,
}

/// Builds a program of `tests/c`, with every warning an error. None, and said why, where there is
/// no compiler.
pub(crate) fn build(test: &str, language: Language, source: &str, linked: Linked) -> Option<Program> {
    let folder = Folder::new();
    let probe = folder.path().join("probe");
    std::fs::write(&probe, "#include <stdio.h>\nint main(void) { return 0; }\n").unwrap();
    let mut command = Command::new(language.compiler());
    let probed = command.args(language.flags()).arg("-fsyntax-only").arg(&probe).output();
    if !probed.is_ok_and(|output| output.status.success()) {
        skipped(
            test,
            &format!("{} does not compile (apt-get install gcc g++ libc6-dev)", language.compiler()),
        );
        return None;
    }
    let mut command = Command::new(language.compiler());
    command
        .args(language.flags())
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-g"])
        .arg("-I")
        .arg(package().join("include"))
        .arg(package().join("tests/c").join(source))
        .args(["-x", "none", "-o"])
        .arg(folder.path().join("program"));
    match linked {
        Linked::Shared => {
            for name in ["libgdrapi.so", "libgdrapi.so.2"] {
                std::os::unix::fs::symlink(library("so"), folder.path().join(name)).unwrap();
            }
            command.arg("-L").arg(folder.path()).arg("-lgdrapi");
        }
        Linked::Static => {
            command.arg(library("a"));
        }
    }
    let output = command.args(["-lpthread", "-ldl", "-lm"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(Program { folder })
}

impl Program {
    pub(crate) fn run(&self, environment: &[(&str, &str)]) -> Output {
        let mut command = Command::new(self.folder.path().join("program"));
        for variable in
            ["GDSYNC_MAPPING", "GDRCOPY_USE_DMABUF_MMAP", "GDRCOPY_ENABLE_LOGGING", "GDRCOPY_LOG_LEVEL"]
        {
            command.env_remove(variable);
        }
        command.env("LD_LIBRARY_PATH", self.folder.path()).envs(environment.iter().copied());
        command.output().unwrap()
    }

    /// Runs it to a good end; what it printed.
    pub(crate) fn succeed(&self, environment: &[(&str, &str)]) -> String {
        let output = self.run(environment);
        let said = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}\n{printed}{said}", output.status);
        printed
    }
}
