//! Mappings leave nothing behind. A program of its own, as it counts the files of the process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use gdsync_gdr::Mapping;

#[test]
fn nothing_is_left_of_a_stand_in() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("gdsync-stand-in").count();
    let before = open();
    let several: Vec<Mapping> = (0..5).map(|_| Mapping::stand_in(10_000).unwrap()).collect();
    assert_eq!((open(), mapped()), (before + 5, 5));
    drop(several);
    assert_eq!((open(), mapped()), (before, 0));
    assert!(Mapping::stand_in(1 << 62).is_err());
    assert_eq!(open(), before, "a failure closes its file");
}
