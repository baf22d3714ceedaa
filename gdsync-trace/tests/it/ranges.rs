//! Spans are ranges for profilers, with and without a trace.

use gdsync_test_support::compiler::Compiler;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::process::{again, role};
use gdsync_trace::{EventKind, TRACE_VARIABLE, enabled, span};
use std::path::Path;

const TEST: &str = "what_lasts_is_a_range";

#[test]
fn what_lasts_is_a_range() {
    if role().is_some() {
        let post = span(EventKind::Posted, || [1, 2, 3]);
        drop(span(EventKind::Kernel, || [0; 3]));
        std::thread::spawn(|| drop(span(EventKind::Synchronize, || [0; 3]))).join().unwrap();
        drop(post);
        eprintln!("traced: {}", enabled());
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/profiler.c");
    let compiler = Compiler::c("gnu11").options(["-shared", "-fPIC"]);
    if !Compiler::c("gnu11").works(TEST, "#include <stdint.h>") {
        return;
    }
    let profiler = compiler.build(&source);
    let folder = Folder::new(TEST);
    for is_traced in [false, true] {
        let mut command = again(module_path!(), TEST, "lasts");
        command.env("NVTX_INJECTION64_PATH", profiler.path());
        if is_traced {
            command.env(TRACE_VARIABLE, folder.path().join("t.json"));
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let of_library = |line: &&str| {
            let first = line.split([' ', ':']).next();
            first.is_some_and(|first| ["domain", "push", "pop", "traced"].contains(&first))
        };
        let lines: Vec<_> = said.lines().filter(of_library).collect();
        let ranges = ["domain gdsync", "push post", "push kernel", "pop", "push synchronize", "pop", "pop"];
        let last = format!("traced: {is_traced}");
        assert_eq!(lines, [&ranges[..], &[&*last]].concat(), "{said}");
    }
}
