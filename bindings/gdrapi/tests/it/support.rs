//! Builds programs on libgdrapi.

use gdsync_test_support::compiler::{Compiler, Program, library};
use std::path::Path;

/// A language with its standard.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Language {
    C,
    Cpp,
}

/// The way in which a program is linked to the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linked {
    Shared,
    Static,
}

/// Builds a program of `tests/c`. `None` without a compiler: the test is skipped.
pub(crate) fn build(test: &str, language: Language, source: &str, linked: Linked) -> Option<Program> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiler = match language {
        Language::C => Compiler::c("c11"),
        Language::Cpp => Compiler::cpp("c++17"),
    };
    let compiler = compiler.options(["-Wpedantic"]).include(package.join("include"));
    let compiler = match linked {
        Linked::Shared => compiler.shared("gdrapi", &library("libgdrapi.so")),
        Linked::Static => compiler.libraries([library("libgdrapi.a")]),
    };
    let works = compiler.works(test, "#include <stdio.h>");
    let compiler = compiler.libraries(["-lpthread", "-ldl", "-lm"]);
    works.then(|| compiler.build(&package.join("tests/c").join(source)))
}
