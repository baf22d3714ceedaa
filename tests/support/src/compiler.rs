//! C and C++ programs of tests: compilers and their output.

use crate::folder::Folder;
use crate::skipped_unless_required;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A compiler with its options. Warnings are errors.
#[derive(Clone, Debug)]
pub struct Compiler {
    program: String,
    /// Options before the source.
    options: Vec<OsString>,
    /// Options after the source.
    libraries: Vec<OsString>,
    /// Files next to the program, under these names.
    beside: Vec<(String, PathBuf)>,
}

impl Compiler {
    fn new(variable: &str, program: &str, language: &str, standard: &str) -> Compiler {
        let program = std::env::var(variable).unwrap_or_else(|_| program.to_owned());
        let compiler = Compiler { program, options: Vec::new(), libraries: Vec::new(), beside: Vec::new() };
        let standard = format!("-std={standard}");
        compiler.options(["-x", language, &standard, "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
    }

    /// Returns the C compiler, `CC` or `cc`, for a standard such as `gnu11`.
    pub fn c(standard: &str) -> Compiler {
        Compiler::new("CC", "cc", "c", standard)
    }

    /// Returns the C++ compiler, `CXX` or `c++`, for a standard such as `c++17`.
    pub fn cpp(standard: &str) -> Compiler {
        Compiler::new("CXX", "c++", "c++", standard)
    }

    /// Returns MPI's C compiler, `MPICC` or `mpicc`.
    pub fn mpi(standard: &str) -> Compiler {
        Compiler::new("MPICC", "mpicc", "c", standard)
    }

    /// Returns MPI's C++ compiler, `MPICXX` or `mpicxx`.
    pub fn mpi_cpp(standard: &str) -> Compiler {
        Compiler::new("MPICXX", "mpicxx", "c++", standard)
    }

    /// Adds options.
    pub fn options(mut self, options: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Compiler {
        self.options.extend(options.into_iter().map(|option| option.as_ref().to_owned()));
        self
    }

    /// Adds a folder of headers.
    pub fn include(self, folder: impl AsRef<Path>) -> Compiler {
        self.options(["-I".as_ref(), folder.as_ref().as_os_str()])
    }

    /// Adds libraries: options like `-lm`, or files.
    pub fn libraries(mut self, libraries: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Compiler {
        self.libraries.extend(libraries.into_iter().map(|library| library.as_ref().to_owned()));
        self
    }

    /// Links a shared library built by cargo, which programs load as `lib{name}.so.2`.
    pub fn shared(mut self, name: &str, built: &Path) -> Compiler {
        let names = [format!("lib{name}.so"), format!("lib{name}.so.2")];
        self.beside.extend(names.map(|name| (name, built.to_owned())));
        self.libraries([format!("-l{name}")])
    }

    fn run(&self, source: &Path, folder: &Folder) -> std::io::Result<Output> {
        let mut command = Command::new(&self.program);
        command.args(&self.options).arg(source).args(["-x", "none", "-o"]).arg(folder.path().join(PROGRAM));
        command.arg("-L").arg(folder.path()).args(&self.libraries).output()
    }

    /// Compiles a program of these lines and an empty `main`. `Err` is the reason if that fails.
    pub fn probe(&self, lines: &str) -> Result<(), String> {
        let folder = Folder::new("probe");
        let source = folder.path().join(SOURCE);
        std::fs::write(&source, format!("{lines}\nint main(void) {{ return 0; }}\n")).unwrap();
        // The libraries are under test, not part of the machine.
        let compiler = Compiler { libraries: Vec::new(), ..self.clone() };
        match compiler.run(&source, &folder) {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                let error = said.lines().find(|line| line.contains("error")).or(said.lines().next());
                Err(format!("{} does not work: {}", self.program, error.unwrap_or_default()))
            }
            Err(error) => Err(format!("no compiler {}: {error}", self.program)),
        }
    }

    /// Returns true if it can compile programs that begin with these lines. Otherwise reports the test as skipped;
    /// `GDSYNC_REQUIRE_RDMA_HEADERS=1` makes that a failure.
    pub fn works(&self, test: &str, lines: &str) -> bool {
        let packages = "apt-get install gcc g++ libc6-dev libibverbs-dev";
        let why = self.probe(lines).err().map(|why| format!("{why} ({packages})"));
        if let Some(why) = &why {
            skipped_unless_required("GDSYNC_REQUIRE_RDMA_HEADERS", test, why);
        }
        why.is_none()
    }

    /// Compiles a source; an error fails the test.
    pub fn build(&self, source: &Path) -> Program {
        let folder = Folder::new("program");
        for (name, built) in &self.beside {
            std::os::unix::fs::symlink(built, folder.path().join(name)).unwrap();
        }
        let output = self.run(source, &folder).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Program { folder }
    }

    /// Compiles a text.
    pub fn build_text(&self, text: &str) -> Program {
        let folder = Folder::new("source");
        let source = folder.path().join(SOURCE);
        std::fs::write(&source, text).unwrap();
        self.build(&source)
    }
}

const SOURCE: &str = "main";
const PROGRAM: &str = "program";
/// Prefixes of the variables for the libraries under test.
const OURS: [&str; 3] = ["GDSYNC_", "GDS_", "GDRCOPY_"];

/// A built program or library, in a separate folder.
#[derive(Debug)]
pub struct Program {
    folder: Folder,
}

impl Program {
    /// Returns its path.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(PROGRAM)
    }

    /// Runs it for at most two minutes, with only these variables for the libraries under test.
    pub fn run(&self, environment: &[(&str, &str)]) -> Output {
        self.run_under(&[], environment)
    }

    /// Like [`Self::run`], as the argument of another command.
    pub fn run_under(&self, wrapper: &[&str], environment: &[(&str, &str)]) -> Output {
        let mut command = Command::new("timeout");
        command.arg("120").args(wrapper).arg(self.path());
        for (name, _) in std::env::vars_os() {
            if OURS.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes())) {
                command.env_remove(name);
            }
        }
        command.env("LD_LIBRARY_PATH", self.folder.path()).envs(environment.iter().copied());
        command.output().unwrap()
    }

    /// Runs it, asserts success, and returns its output.
    pub fn succeed(&self, environment: &[(&str, &str)]) -> String {
        Self::printed(self.run(environment))
    }

    /// Does the same under valgrind, where every invalid access fails it. `None` if valgrind is not installed.
    pub fn succeed_in_valgrind(&self, environment: &[(&str, &str)]) -> Option<String> {
        let valgrind = Command::new("valgrind").arg("--version").output().ok()?;
        let wrapper = ["valgrind", "--quiet", "--error-exitcode=9", "--undef-value-errors=no"];
        valgrind.status.success().then(|| Self::printed(self.run_under(&wrapper, environment)))
    }

    fn printed(output: Output) -> String {
        let printed = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\n{printed}{errors}", output.status);
        printed
    }
}

/// Returns the path of a library that cargo built next to the tests.
pub fn library(file: &str) -> PathBuf {
    let built = std::env::current_exe().unwrap().with_file_name(file);
    assert!(built.exists(), "cargo has not built {}", built.display());
    built
}

/// Returns the path of a static library that cargo built next to the tests: `name` and a hash.
pub fn static_library(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let is_it = |path: &PathBuf| {
        let file = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        file.strip_prefix(name).is_some_and(|rest| rest.starts_with(['-', '.']) && rest.ends_with(".a"))
    };
    let files = tests.parent().unwrap().read_dir().unwrap().map(|entry| entry.unwrap().path());
    // Builds with other features are in the same folder. Cargo touched the right one last.
    let newest = files.filter(is_it).max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.unwrap_or_else(|| panic!("cargo has not built {name}"))
}
