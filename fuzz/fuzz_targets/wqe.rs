//! The card reads a send work request: whatever bytes a program leaves in its queue.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| softhca::card::fuzzing::work_request(bytes));
