//! The preload library's connection manager performs commands: whatever a program writes to its file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| softhca_uverbs::fuzzing::manager(bytes));
