//! The kernels: all ways of compiling them work, and the committed PTX of `gdsync pingpong` matches its source.

#[path = "../../gdsync/examples/device/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "the examples use the rest")]
mod device;

use device::Source;
use gdsync::device::nvrtc::{self, CompileError};
use gdsync_test_support::kernels::{SOURCES, source};
use gdsync_test_support::{root, skipped, skipped_unless_required};

const COMMITTED: &str = include_str!("../../kernels/ptx/pingpong.ptx");

const KERNELS: [(&str, &[&str]); 8] = [
    ("conditional.cu", &["send_while"]),
    ("notify.cu", &["all_to_all_warp", "all_to_all_block", "together_warp", "together_block"]),
    ("pingpong.cu", &["fill", "check", "stamp"]),
    ("find_even.cu", &["find_even"]),
    ("matvec.cu", &["multiply", "serve"]),
    ("bench.cu", &["operations", "storm", "together", "exchange", "attempt", "cycles", "steps", "rate"]),
    ("soak.cu", &["post_requests"]),
    ("trigger.cu", &["release_rounds", "release_together", "release_cycles", "release_next", "prepare_next"]),
];

fn has_kernels(ptx: &str, kernels: &[&str]) {
    for kernel in kernels {
        assert!(ptx.contains(&format!(".visible .entry {kernel}(")), "{kernel}");
    }
}

fn files(folder: &str, extension: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = names.filter(|name| name.ends_with(extension)).collect();
    found.sort();
    found
}

#[test]
fn every_source_is_in_the_tables() {
    let found = ["kernels", "gdsync/examples/kernels", "gdsync-lab/kernels"]
        .map(|folder| files(folder, ".cu"))
        .concat();
    assert_eq!(found, SOURCES.map(|(name, _)| name));
    assert_eq!(found, KERNELS.map(|(name, _)| name));
    assert_eq!(files("kernels/ptx", ""), ["pingpong.ptx"]);
}

#[test]
fn the_committed_ptx_is_that_of_the_source() {
    // FNV-1a, as in `build.rs` and `scripts/gpu/ptx`.
    let hash = source("pingpong.cu")
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let marker = format!("// source: {hash:016x}");
    assert_eq!(COMMITTED.lines().next(), Some(&*marker), "pingpong.cu has changed: run scripts/gpu/ptx");
    has_kernels(COMMITTED, KERNELS[2].1);
}

#[test]
fn any_driver_since_cuda_12_takes_the_committed_ptx() {
    let directive = |name: &str| COMMITTED.lines().find_map(|line| line.strip_prefix(name));
    // PTX ISA 8.0 came with CUDA 12.0.
    assert_eq!((directive(".version "), directive(".target ")), (Some("8.0"), Some("sm_70")));
}

#[test]
fn nvrtc_compiles_every_kernel() {
    let mut capability = (7, 0);
    for ((name, text), (_, kernels)) in SOURCES.into_iter().zip(KERNELS) {
        let mut compiled = nvrtc::compile(name, text, capability);
        if let Err(CompileError::Capability { oldest, .. }) = compiled {
            // CUDA 13's NVRTC starts at sm_75.
            capability = oldest;
            compiled = nvrtc::compile(name, text, capability);
        }
        match compiled {
            Ok(ptx) => has_kernels(&ptx, kernels),
            Err(error @ CompileError::Library { .. }) => {
                let test = "nvrtc_compiles_every_kernel";
                return skipped_unless_required("GDSYNC_REQUIRE_NVRTC", test, &error.to_string());
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// With the compiler of `scripts/nvrtc`, the committed PTX is reproducible.
#[test]
fn nvrtc_of_cuda_12_0_writes_the_committed_ptx() {
    let test = "nvrtc_of_cuda_12_0_writes_the_committed_ptx";
    match nvrtc::version() {
        Ok((12, 0)) => {}
        Ok(other) => return skipped(test, &format!("this is NVRTC {other:?}")),
        Err(error) => {
            return skipped_unless_required("GDSYNC_REQUIRE_NVRTC", test, &error.to_string());
        }
    }
    let made = nvrtc::compile("pingpong.cu", source("pingpong.cu"), (7, 0)).unwrap();
    // `scripts/gpu/ptx` omits redundant lines.
    let made = made.lines().filter(|line| !line.trim().is_empty() && !line.contains("inline asm"));
    assert!(made.eq(COMMITTED.lines().skip(1)), "run scripts/gpu/ptx");
}

/// The kernels of the examples are C++, too.
#[test]
fn a_cpp_compiler_makes_those_of_the_examples_for_the_cpu() {
    for (name, function) in [("find_even.cu", "find_even"), ("matvec.cu", "serve")] {
        match device::load_for_host(&Source { name, text: source(name) }) {
            Ok(library) => {
                // SAFETY: looked up, but not called.
                let found = unsafe { library.get::<unsafe extern "C" fn()>(function.as_bytes()) };
                assert!(found.is_ok(), "{name} has no {function}");
            }
            Err(reason) => {
                let reason = reason.to_string();
                assert!(reason.contains("does not start"), "{reason}");
                return skipped("a_cpp_compiler_makes_those_of_the_examples_for_the_cpu", &reason);
            }
        }
    }
    let wrong = Source { name: "wrong.cu", text: "nonsense" };
    let reason = device::load_for_host(&wrong).err().unwrap().to_string();
    assert!(reason.contains("refuses wrong.cu") && reason.contains("nonsense"), "{reason}");
}
