//! The batch compiler's merging: no observer can distinguish merged batches from unmerged ones.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(what) = gdsync::fuzzing::compare_merged_and_unmerged(bytes) {
        panic!("{what}");
    }
});
