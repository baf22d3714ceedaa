//! The merges of the batch compiler: no observer can tell merged batches from unmerged ones.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(what) = gdsync::fuzzing::compare_merged_and_unmerged(bytes) {
        panic!("{what}");
    }
});
