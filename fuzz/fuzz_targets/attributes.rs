//! The preload library reads a command: whatever attributes a program hands to the kernel.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| softhca_uverbs::fuzzing::command(bytes));
