//! Mappings leak nothing.

use gdsync_gdr::Mapping;
use gdsync_test_support::process::alone;

#[test]
fn nothing_is_left_of_a_stand_in() {
    // The test counts the files and mappings of the process.
    if !alone(module_path!(), "nothing_is_left_of_a_stand_in", &[]) {
        return;
    }
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
