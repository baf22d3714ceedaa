//! Kernels compiled at run time. Reported as skipped without NVRTC (`scripts/nvrtc` takes it from PyPI).

use gdsync::device::nvrtc::{self, CompileError};
use gdsync_test_support::skipped_unless_required;

/// The oldest GPUs that the header, or this NVRTC, supports. `None` without NVRTC: the test is skipped.
fn oldest(test: &str) -> Option<(i32, i32)> {
    match nvrtc::compile("empty.cu", "", (7, 0)) {
        Ok(_) => Some((7, 0)),
        Err(CompileError::Capability { oldest, .. }) => Some(oldest),
        Err(error @ CompileError::Library { .. }) => {
            skipped_unless_required("GDSYNC_REQUIRE_NVRTC", test, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_header_comes_from_memory_and_a_mistake_is_named() {
    let Some(oldest) = oldest("the_header_comes_from_memory_and_a_mistake_is_named") else { return };
    let header = "#include \"gdsync/device_verbs.cuh\"\n";
    let kernel = "extern \"C\" __global__ void put(gdsync_device_qp qp, gdsync::remote_memory to) { gdsync::put_inline(qp, to, &to, 8); }";
    let ptx = nvrtc::compile("put.cu", &format!("{header}{kernel}"), oldest).unwrap();
    assert!(
        ptx.contains(".visible .entry put(") && ptx.contains(&format!(".target sm_{}{}", oldest.0, oldest.1))
    );
    let wrong = nvrtc::compile("wrong.cu", &format!("{header}nonsense"), oldest).unwrap_err();
    let CompileError::Source { name, log } = &wrong else { panic!("{wrong}") };
    assert!(name == "wrong.cu" && log.contains("wrong.cu(2)"), "{wrong}");
}

#[test]
fn what_nvrtc_cannot_compile_is_refused() {
    let Some(oldest) = oldest("what_nvrtc_cannot_compile_is_refused") else { return };
    let old = nvrtc::compile("old.cu", "", (1, 0)).unwrap_err();
    assert!(matches!(old, CompileError::Capability { capability: (1, 0), .. }), "{old}");
    let zero = nvrtc::compile("zero.cu", "int\0", oldest).unwrap_err();
    assert!(matches!(&zero, CompileError::ZeroByte { name, at: 3 } if name == "zero.cu"), "{zero}");
    // A GPU of the future gets PTX for the newest one that this NVRTC knows.
    assert!(nvrtc::compile("new.cu", "", (99, 0)).unwrap().contains(".target sm_"));
}
