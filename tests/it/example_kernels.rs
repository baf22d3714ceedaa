//! The kernels of the examples: what is committed is what the sources say, and each way of compiling them works.

#[path = "../../examples/device/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "the examples use the rest")]
mod device;

use device::{HEADERS, Source};
use gdsync_test_support::skipped;

/// The sources, and their kernels.
const SOURCES: [(Source, &[&str]); 2] = [
    (
        Source {
            name: "find_even.cu",
            text: include_str!("../../examples/device/find_even.cu"),
            ptx: include_str!("../../examples/device/find_even.ptx"),
        },
        &["find_even"],
    ),
    (
        Source {
            name: "matvec.cu",
            text: include_str!("../../examples/device/matvec.cu"),
            ptx: include_str!("../../examples/device/matvec.ptx"),
        },
        &["multiply", "serve"],
    ),
];

fn has_kernels(ptx: &str, kernels: &[&str]) {
    for kernel in kernels {
        assert!(ptx.contains(&format!(".visible .entry {kernel}(")), "{kernel}");
    }
}

#[test]
fn the_ptx_is_that_of_the_sources_and_the_header() {
    for (source, kernels) in SOURCES {
        let texts = std::iter::once(source.text).chain(HEADERS.iter().map(|(_, text)| *text));
        // FNV-1a, as `scripts/gpu/ptx` computes it.
        let hash = texts.flat_map(str::bytes).fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let marker = format!("// source: {hash:016x}");
        let name = source.name;
        assert_eq!(source.ptx.lines().next(), Some(&*marker), "{name} has changed: run scripts/gpu/ptx");
        // What any driver since CUDA 12.0 takes.
        let directive = |name: &str| source.ptx.lines().find_map(|line| line.strip_prefix(name));
        assert_eq!((directive(".version "), directive(".target ")), (Some("8.0"), Some("sm_70")));
        has_kernels(source.ptx, kernels);
    }
}

#[test]
fn nvrtc_compiles_them_with_the_header_in_memory() {
    for (source, kernels) in SOURCES {
        match device::compile(&source, "compute_75") {
            Ok(ptx) => has_kernels(&ptx, kernels),
            Err(reason) => {
                let reason = reason.to_string();
                assert!(reason.starts_with("no libnvrtc is found"), "{reason}");
                return skipped("nvrtc_compiles_them_with_the_header_in_memory", &reason);
            }
        }
    }
    let wrong = Source { name: "wrong.cu", text: "#include \"gdsync/device_verbs.cuh\"\nnonsense", ptx: "" };
    let reason = device::compile(&wrong, "compute_75").unwrap_err().to_string();
    assert!(reason.contains("wrong.cu(2)"), "{reason}");
}

#[test]
fn a_cpp_compiler_makes_them_for_the_cpu() {
    for (source, kernels) in SOURCES {
        let last = kernels.last().unwrap();
        match device::load_for_host(&source) {
            // SAFETY: looked up, and not called.
            Ok(library) => assert!(unsafe { library.get::<unsafe extern "C" fn()>(last.as_bytes()) }.is_ok()),
            Err(reason) => {
                let reason = reason.to_string();
                assert!(reason.contains("does not start"), "{reason}");
                return skipped("a_cpp_compiler_makes_them_for_the_cpu", &reason);
            }
        }
    }
    let wrong = Source { name: "wrong.cu", text: "nonsense", ptx: "" };
    let reason = device::load_for_host(&wrong).err().unwrap().to_string();
    assert!(reason.contains("refuses wrong.cu") && reason.contains("nonsense"), "{reason}");
}
