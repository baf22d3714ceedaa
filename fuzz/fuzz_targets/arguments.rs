//! The tool's arguments: one to a line. They parse, or are refused in words.
#![no_main]
#![allow(dead_code, unused_imports, reason = "only the parser of the command is here, not what it calls")]

#[path = "../../src/cli/mod.rs"]
mod cli;
#[path = "../../src/failure.rs"]
mod failure;
#[path = "../../src/fault_plan.rs"]
mod fault_plan;
#[path = "../../src/gpus.rs"]
mod gpus;
#[path = "../../src/hca.rs"]
mod hca;
#[path = "../../src/placement.rs"]
mod placement;
#[path = "../../src/size.rs"]
mod size;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    use std::os::unix::ffi::OsStrExt;
    let words = bytes.split(|byte| *byte == b'\n').map(std::ffi::OsStr::from_bytes);
    if let Err(error) = cli::Cli::parse_words(std::iter::once("gdsync".as_ref()).chain(words)) {
        assert!(!error.to_string().is_empty());
    }
});
