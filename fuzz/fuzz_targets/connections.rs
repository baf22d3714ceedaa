//! The preload library's connection manager, for arbitrary writes of a program to its file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| softhca_uverbs::fuzzing::manager(bytes));
