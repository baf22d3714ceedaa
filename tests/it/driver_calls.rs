//! `scripts/gpu/driver_calls.c` counts a program's calls of a CUDA driver, however the program found it, and passes them on to a library that
//! is preloaded after it.

use gdsync_test_support::compiler::Compiler;
use gdsync_test_support::folder::Folder;
use std::path::Path;
use std::process::Command;

/// A driver, which also finds functions by their names without versions: one that no symbol leads to, and itself.
const DRIVER: &str = r#"
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return flags == 7 ? 0 : 1; }
int cuStreamBatchMemOp_v2(void *stream, unsigned count, void *ops, unsigned flags) { return stream || !ops || flags ? 1 : (int)count; }
static int looked_up(void *stream, unsigned count, void *ops, unsigned flags) { return stream || !ops || flags ? 1 : 100 + (int)count; }
int cuUnlisted(void) { return 5; }
static int find(const char *name, void **to, int version, unsigned long flags, void *status) {
    (void)version; (void)flags; (void)status;
    *to = strcmp(name, "cuStreamBatchMemOp") == 0 ? (void *)looked_up : strcmp(name, "cuGetProcAddress") == 0 ? (void *)find : NULL;
    return *to ? 0 : 1;
}
int cuGetProcAddress_v2(const char *name, void **to, int version, unsigned long flags, void *status) {
    return find(name, to, version, flags, status);
}
"#;

/// A library that has a function of the driver, as the software card's has.
const INTERPOSER: &str = "int cuInit(unsigned flags) { return flags == 9 ? 11 : 1; }";

/// Finds the functions both ways, and by the loader's next library, and checks their results.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
static void *find(void *library, const char *name) { return dlsym(library, name); }
int main(int count, char **arguments) {
    void *library = count == 2 ? dlopen(arguments[1], RTLD_NOW) : NULL, *to = NULL, *at;
    int (*init)(unsigned), (*unlisted)(void), (*batch)(void *, unsigned, void *, unsigned);
    int (*by_name)(const char *, void **, int, unsigned long, void *);
    size_t (*length)(const char *);
    unsigned long (*calls)(void);
    if (!library) return 1;
    at = find(RTLD_DEFAULT, "driver_calls"); memcpy(&calls, &at, sizeof(calls));
    at = find(library, "cuInit"); memcpy(&init, &at, sizeof(init));
    at = find(library, "cuUnlisted"); memcpy(&unlisted, &at, sizeof(unlisted));
    at = find(library, "cuGetProcAddress_v2"); memcpy(&by_name, &at, sizeof(by_name));
    if (getenv("INTERPOSED")) return init(9) == 11 && calls() == 1 ? 0 : 7;
    if (init(7) != 0 || init(7) != 0 || init(1) != 1 || unlisted() != 5) return 2;
    if (by_name("cuNothing", &to, 12000, 0, NULL) != 1 || by_name("cuGetProcAddress", &to, 12000, 0, NULL) != 0) return 3;
    memcpy(&by_name, &to, sizeof(by_name));
    if (by_name("cuStreamBatchMemOp", &to, 12000, 0, NULL) != 0) return 4;
    memcpy(&batch, &to, sizeof(batch));
    if (batch(NULL, 4, arguments, 0) != 104 || batch(NULL, 4, NULL, 0) != 1) return 5;
    at = find(library, "cuStreamBatchMemOp_v2"); memcpy(&batch, &at, sizeof(batch));
    if (batch(NULL, 4, arguments, 0) != 4) return 8;
    at = dlsym(RTLD_NEXT, "strlen"); memcpy(&length, &at, sizeof(length));
    if (length("four") != 4 || find(library, "cuNoSuch") || calls() != 6) return 6;
    return 0;
}
"#;

#[test]
fn calls_of_a_driver_are_counted_however_they_were_found() {
    let compiler = Compiler::c("gnu11");
    if !compiler.works("calls_of_a_driver_are_counted_however_they_were_found", "") {
        return;
    }
    let shared = |name: &str| {
        let options = ["-O2", "-shared", "-fPIC", &format!("-Wl,-soname,{name}")];
        Compiler::c("gnu11").options(options).libraries(["-ldl"])
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/gpu/driver_calls.c");
    let (wrapper, driver) =
        (shared("libdriver_calls.so").build(&source), shared("libcuda.so.1").build_text(DRIVER));
    let program = compiler.libraries(["-ldl"]).build_text(PROGRAM);
    let folder = Folder::new("driver-calls");
    let run = |to: &str| {
        let mut command = Command::new(program.path());
        command.arg(driver.path()).env("LD_PRELOAD", wrapper.path()).env("DRIVER_CALLS", to);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).unwrap()
    };
    let counted = |text: &str| -> Vec<(String, u32)> {
        let count = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            assert_eq!((words[1], words[3], words[6]), ("calls", "mean", "longest"), "{line}");
            (words[0].to_owned(), words[2].parse().unwrap())
        };
        text.lines().map(count).collect()
    };
    let expected = [("cuInit".to_owned(), 3), ("cuStreamBatchMemOp_v2".to_owned(), 3)];
    assert_eq!(counted(&run("-")), expected);
    run(folder.path().join("calls.%p").to_str().unwrap());
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    assert_eq!(counted(&std::fs::read_to_string(file).unwrap()), expected);
    let number = file.extension().unwrap().to_str().unwrap();
    assert!(number.parse::<u32>().is_ok(), "{number}");
    let interposer = shared("libinterposer.so").build_text(INTERPOSER);
    let preload = format!("{}:{}", wrapper.path().display(), interposer.path().display());
    let status = Command::new(program.path())
        .arg(driver.path())
        .env("LD_PRELOAD", preload)
        .env("INTERPOSED", "1")
        .status();
    let status = status.unwrap();
    assert!(status.success(), "{status}");
}
