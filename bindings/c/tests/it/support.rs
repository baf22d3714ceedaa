//! Programs on the C library.

use gdsync_test_support::compiler::{Compiler, Program, library};
use std::path::Path;

/// The old OFED's dialect of the headers.
pub(crate) const OLD_DIALECT: &str = "-DGDSYNC_EXP_VERBS";

/// A language with its standard.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Language {
    C,
    Cpp,
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns a language's compiler with the headers and the library.
pub(crate) fn compiler(language: Language) -> Compiler {
    let compiler = match language {
        Language::C => Compiler::c("gnu11"),
        Language::Cpp => Compiler::cpp("c++17"),
    };
    let compiler = compiler.options(["-Wpedantic"]).include(root().join("include"));
    let compiler = compiler.include(root().join("../../gdsync/include"));
    compiler.shared("gdsync", &library("libgdsync_c.so")).libraries(["-lpthread"])
}

/// Returns the compiler, or skips the test if it cannot build programs in that language here.
pub(crate) fn works(test: &str, language: Language) -> Option<Compiler> {
    let compiler = compiler(language);
    compiler.works(test, "#include <infiniband/verbs.h>").then_some(compiler)
}

/// Builds a program of `tests/c`.
pub(crate) fn build(compiler: &Compiler, source: &str) -> Program {
    compiler.build(&root().join("tests/c").join(source))
}
