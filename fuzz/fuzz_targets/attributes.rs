//! The preload library's decoder of commands, for arbitrary attributes from a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| softhca_uverbs::fuzzing::command(bytes));
