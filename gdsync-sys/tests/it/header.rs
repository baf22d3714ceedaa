//! Queries the installed headers of rdma-core with the C compiler.

use gdsync_test_support::compiler::Compiler;

/// Returns the output of a C program that includes the headers. `None`, and the test is skipped, without a compiler
/// or the headers.
pub(crate) fn ask(test: &str, source: &str) -> Option<String> {
    let includes = "#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n";
    let compiler = Compiler::c("gnu11");
    let works = compiler.works(test, includes);
    works.then(|| compiler.build_text(&format!("{includes}{source}")).succeed(&[]))
}
