//! The card's decoder of send WQEs, for arbitrary bytes in a queue.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| softhca::card::fuzzing::work_request(bytes));
