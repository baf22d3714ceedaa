use super::*;

#[test]
fn a_gpu_gets_the_newest_architecture_that_it_runs() {
    let known = [75, 80, 90, 100, 120];
    let cases =
        [((7, 5), Some(75)), ((9, 0), Some(90)), ((8, 9), Some(80)), ((12, 1), Some(120)), ((7, 0), None)];
    for (capability, expected) in cases {
        assert_eq!(newest_of(&known, capability), expected, "{capability:?}");
    }
}

#[test]
fn every_include_of_the_header_is_a_name() {
    let names: Vec<&str> = included().map(|(name, _)| name).collect();
    for (_, text) in headers() {
        for line in text.lines().filter_map(|line| line.strip_prefix("#include \"")) {
            assert!(names.contains(&line.strip_suffix('"').unwrap()), "{line}");
        }
    }
    assert!(names.contains(&"gdsync/device_verbs.cuh"), "{names:?}");
}

#[test]
fn what_the_linker_says_names_the_file() {
    // SAFETY: there is no such library, so none of its code runs.
    let error = unsafe { Library::new("libnvrtc-there-is-none.so") }.unwrap_err();
    assert!(said(&error).contains("libnvrtc-there-is-none.so"), "{error:?}");
}

#[test]
fn errors_name_values_and_remedies() {
    let driver = CompileError::Driver { version: (12, 9), driver: 12_040 }.to_string();
    assert!(driver.starts_with("NVRTC 12.9 writes PTX that the driver, which is of CUDA 12.4, "), "{driver}");
    let old = CompileError::Capability { version: (13, 0), oldest: (7, 5), capability: (7, 0) }.to_string();
    assert!(old.contains("7.5 or newer, and this one has 7.0: run `pip install"), "{old}");
}
