//! The merges of the batch compiler: whatever streams do, merged and plain, nobody can tell the difference.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(what) = gdsync::fuzzing::compare_merged_and_plain(bytes) {
        panic!("{what}");
    }
});
