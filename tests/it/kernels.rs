//! The kernels: the committed PTX is that of their sources, and each way of compiling those of the
//! examples works.

#[path = "../../examples/device/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "the examples use the rest")]
mod device;
#[path = "../../kernels/marker.rs"]
mod marker;

use device::Source;
use std::io::Write;
use std::path::Path;

macro_rules! source {
    ($name:literal) => {
        Source {
            name: concat!($name, ".cu"),
            text: include_str!(concat!("../../kernels/", $name, ".cu")),
            ptx: include_str!(concat!("../../kernels/ptx/", $name, ".ptx")),
        }
    };
}

/// Each source, and its kernels.
const SOURCES: [(Source, &[&str]); 8] = [
    (
        source!("bench"),
        &["operations", "storm", "together", "exchange", "attempt", "cycles", "steps", "rate"],
    ),
    (source!("conditional"), &["send_while"]),
    (source!("find_even"), &["find_even"]),
    (source!("matvec"), &["multiply", "serve"]),
    (source!("notify"), &["all_to_all_warp", "all_to_all_block", "together_warp", "together_block"]),
    (source!("pingpong"), &["fill", "check", "stamp"]),
    (source!("soak"), &["post_requests"]),
    (
        source!("trigger"),
        &["release_rounds", "release_together", "release_cycles", "release_next", "prepare_next"],
    ),
];

/// Those of the examples, which are C++, too.
fn examples() -> impl Iterator<Item = (Source, &'static [&'static str])> {
    SOURCES.into_iter().filter(|(source, _)| ["find_even.cu", "matvec.cu"].contains(&source.name))
}

fn skip(test: &str, why: &str) {
    std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes()).unwrap();
}

fn has_kernels(ptx: &str, kernels: &[&str]) {
    for kernel in kernels {
        assert!(ptx.contains(&format!(".visible .entry {kernel}(")), "{kernel}");
    }
}

#[test]
fn every_source_is_in_the_table() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    for (folder, extension) in [(folder.clone(), "cu"), (folder.join("ptx"), "ptx")] {
        let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut found: Vec<_> =
            paths.filter(|path| path.extension().is_some_and(|it| it == extension)).collect();
        found.sort();
        let stems: Vec<_> = found.iter().map(|path| path.file_stem().unwrap()).collect();
        assert_eq!(stems, SOURCES.map(|(source, _)| source.name.strip_suffix(".cu").unwrap()), "{extension}");
    }
}

#[test]
fn the_ptx_is_that_of_the_source_and_the_header() {
    for (Source { name, text, ptx }, kernels) in SOURCES {
        let marker = marker::first_line(text, gdsync::device::headers().iter().map(|(_, text)| *text));
        assert_eq!(
            ptx.lines().next(),
            Some(&*marker),
            "{name} or the header has changed: run scripts/gpu/ptx"
        );
        has_kernels(ptx, kernels);
    }
}

#[test]
fn any_driver_since_cuda_12_takes_the_ptx() {
    for (Source { name, ptx, .. }, _) in SOURCES {
        let directive = |name: &str| ptx.lines().find_map(|line| line.strip_prefix(name));
        // PTX ISA 8.0 came with CUDA 12.0.
        assert_eq!((directive(".version "), directive(".target ")), (Some("8.0"), Some("sm_70")), "{name}");
    }
}

#[test]
fn nvrtc_compiles_them_with_the_header_in_memory() {
    for (source, kernels) in examples() {
        match device::compile(&source, "compute_75") {
            Ok(ptx) => has_kernels(&ptx, kernels),
            Err(reason) => {
                let reason = reason.to_string();
                assert!(reason.starts_with("no libnvrtc is found"), "{reason}");
                return skip("nvrtc_compiles_them_with_the_header_in_memory", &reason);
            }
        }
    }
    let wrong = Source { name: "wrong.cu", text: "#include \"gdsync/device_verbs.cuh\"\nnonsense", ptx: "" };
    let reason = device::compile(&wrong, "compute_75").unwrap_err().to_string();
    assert!(reason.contains("wrong.cu(2)"), "{reason}");
}

#[test]
fn a_cpp_compiler_makes_them_for_the_cpu() {
    for (source, kernels) in examples() {
        let last = kernels.last().unwrap();
        match device::load_for_host(&source) {
            // SAFETY: looked up, and not called.
            Ok(library) => assert!(unsafe { library.get::<unsafe extern "C" fn()>(last.as_bytes()) }.is_ok()),
            Err(reason) => {
                let reason = reason.to_string();
                assert!(reason.contains("does not start"), "{reason}");
                return skip("a_cpp_compiler_makes_them_for_the_cpu", &reason);
            }
        }
    }
    let wrong = Source { name: "wrong.cu", text: "nonsense", ptx: "" };
    let reason = device::load_for_host(&wrong).err().unwrap().to_string();
    assert!(reason.contains("refuses wrong.cu") && reason.contains("nonsense"), "{reason}");
}
