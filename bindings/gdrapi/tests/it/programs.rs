//! C and C++ programs on the library, with the stand-in backend.

use crate::support::{Language, Linked, build};
use gdsync_test_support::skipped;

const STAND_IN: &[(&str, &str)] = &[("GDSYNC_MAPPING", "stand-in")];

#[test]
fn wrong_arguments_are_refused_by_their_errno_values() {
    let test = "wrong_arguments_are_refused_by_their_errno_values";
    let Some(program) = build(test, Language::C, "arguments.c", Linked::Shared) else { return };
    program.succeed(STAND_IN);
    // Again, with every refusal logged.
    let output = program.run(&[("GDSYNC_MAPPING", "stand-in"), ("GDRCOPY_ENABLE_LOGGING", "1")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for expected in [
        "gdr_pin_buffer: size is 0x0",
        "gdr_pin_buffer: p2p_token is 0x1",
        "gdr_map: the memory begins 4096 bytes after a page of 65536",
        "gdr_map: the memory is mapped already",
        "gdr_unmap: the memory is not mapped",
        "belongs to another gdr_t",
        "0xdeadbeef is no gdr_t",
        "lie outside the mapping",
        "h_ptr is a null pointer",
        "errno=11",
    ] {
        assert!(said.contains(expected), "nothing is logged of {expected}:\n{said}");
    }
    assert!(!said.contains("INFO"), "{said}");
}

#[test]
fn what_is_mapped_is_copied_and_unmapped() {
    for (language, linked) in
        [(Language::C, Linked::Shared), (Language::Cpp, Linked::Shared), (Language::C, Linked::Static)]
    {
        let test = "what_is_mapped_is_copied_and_unmapped";
        let Some(program) = build(test, language, "mapping.c", linked) else { return };
        program.succeed(STAND_IN);
    }
}

#[test]
fn a_child_process_begins_anew() {
    let Some(program) = build("a_child_process_begins_anew", Language::C, "fork.c", Linked::Shared) else {
        return;
    };
    program.succeed(STAND_IN);
}

#[test]
fn threads_share_the_library() {
    let Some(program) = build("threads_share_the_library", Language::C, "threads.c", Linked::Shared) else {
        return;
    };
    program.succeed(STAND_IN);
}

#[test]
fn a_library_that_cannot_map_does_not_open_and_says_why() {
    let test = "a_library_that_cannot_map_does_not_open_and_says_why";
    let Some(program) = build(test, Language::C, "open.c", Linked::Shared) else { return };
    let said = |environment: &[(&str, &str)]| {
        let output = program.run(environment);
        assert!(output.status.success());
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let null = || "null\n".to_owned();
    // Silent unless the environment asks for a log.
    assert_eq!(said(&[("GDSYNC_MAPPING", "nonsense")]), (null(), String::new()));
    let (printed, text) = said(&[("GDSYNC_MAPPING", "nonsense"), ("GDRCOPY_ENABLE_LOGGING", "")]);
    assert!(text.contains("GDSYNC_MAPPING") && text.contains("stand-in"), "{text}");
    assert_eq!(printed, null());
    let logged = ("GDRCOPY_ENABLE_LOGGING", "1");
    let (_, text) = said(&[("GDSYNC_MAPPING", "nonsense"), logged, ("GDRCOPY_LOG_LEVEL", "5")]);
    assert_eq!(text, "");
    let (printed, text) = said(&[("GDSYNC_MAPPING", "stand-in"), logged, ("GDRCOPY_LOG_LEVEL", "2")]);
    assert!(printed == "open\n" && text.contains("mapped by stand-in"), "{text}");
    // With the backend that this machine has.
    let (printed, text) = said(&[logged]);
    if printed == "open\n" {
        skipped(test, "this machine maps GPU memory: it cannot show what is said where none can");
        return;
    }
    assert_eq!(printed, null());
    for backend in ["gdrdrv", "dma-buf", "nvrm"] {
        assert!(text.contains(backend), "{text}");
    }
    let (printed, text) = said(&[logged, ("GDRCOPY_USE_DMABUF_MMAP", "1")]);
    assert_eq!(printed, null());
    assert!(text.contains("dma-buf: ") && !text.contains("nvrm: "), "{text}");
}

#[test]
fn gpu_memory_is_mapped_where_it_can_be() {
    let test = "gpu_memory_is_mapped_where_it_can_be";
    let Some(program) = build(test, Language::C, "gpu.c", Linked::Shared) else { return };
    let printed = program.succeed(&[("GDRCOPY_ENABLE_LOGGING", "1")]);
    if let Some(why) = printed.strip_prefix("SKIPPED ") {
        skipped(test, why.trim_end());
    } else {
        assert!(printed.ends_with("passed\n"), "{printed}");
    }
}
