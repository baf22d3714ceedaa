//! Asks the C compiler what the installed headers of rdma-core say.

use gdsync_test_support::compiler::Compiler;

/// What a C program on top of the headers prints. `None` without a compiler or the headers: the test is skipped.
pub(crate) fn ask(test: &str, source: &str) -> Option<String> {
    let includes = "#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n";
    let compiler = Compiler::c("gnu11");
    let works = compiler.works(test, includes);
    works.then(|| compiler.build_text(&format!("{includes}{source}")).succeed(&[]))
}
