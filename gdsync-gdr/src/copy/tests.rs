//! Compares every kernel with `memcpy`, on ordinary memory.

use super::*;
use proptest::prelude::*;

/// Line-aligned memory with room around the copied range.
#[repr(align(64))]
struct Arena([u8; 8192]);

const GUARD: u8 = 0xa5;
const START: usize = 256;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) ^ (i >> 8) as u8).collect()
}

proptest! {
    #[test]
    fn what_is_stored_arrives_and_nothing_else_changes(
        offset in 0usize..200, skew in 0usize..64, len in 0usize..6000, seed: u8,
    ) {
        let bytes = pattern(skew + len, seed);
        for kernel in StoreKernel::available() {
            let mut arena = Box::new(Arena([GUARD; 8192]));
            // SAFETY: the processor has the kernel; the ranges are inside two objects.
            unsafe { store(kernel, arena.0.as_mut_ptr().add(START + offset), bytes.as_ptr().add(skew), len) };
            let mut expected = [GUARD; 8192];
            expected[START + offset..START + offset + len].copy_from_slice(&bytes[skew..]);
            prop_assert!(arena.0 == expected, "{kernel}, {len} bytes at {offset}");
        }
    }

    #[test]
    fn what_is_loaded_arrives_and_nothing_else_changes(
        offset in 0usize..200, skew in 0usize..64, len in 0usize..6000, seed: u8,
    ) {
        let mut arena = Box::new(Arena([0; 8192]));
        arena.0.copy_from_slice(&pattern(8192, seed));
        for kernel in LoadKernel::available() {
            let mut out = vec![GUARD; skew + len + 64];
            // SAFETY: the processor has the kernel; the ranges are inside two objects, the source with 256 bytes
            // around it.
            unsafe { load(kernel, out.as_mut_ptr().add(skew), arena.0.as_ptr().add(START + offset), len) };
            prop_assert!(out[..skew].iter().all(|byte| *byte == GUARD), "{kernel}: before");
            prop_assert!(out[skew..skew + len] == arena.0[START + offset..][..len], "{kernel}, {len} at {offset}");
            prop_assert!(out[skew + len..].iter().all(|byte| *byte == GUARD), "{kernel}: after");
        }
    }
}

#[test]
fn kernels_have_names_and_the_best_is_one_that_there_is() {
    for kernel in StoreKernel::ALL {
        assert_eq!(kernel.to_string().parse(), Ok(kernel));
    }
    for kernel in LoadKernel::ALL {
        assert_eq!(kernel.to_string().parse(), Ok(kernel));
    }
    let error = "mmx".parse::<StoreKernel>().unwrap_err();
    assert!(error.contains("mmx") && error.contains("avx2"), "{error}");
    for caching in [Caching::WriteCombining, Caching::Cached, Caching::Device] {
        assert!(StoreKernel::best(caching).is_available() && LoadKernel::best(caching).is_available());
    }
    // Device memory allows aligned accesses of ordinary width only.
    assert_eq!(StoreKernel::best(Caching::Device), StoreKernel::Volatile);
    assert_eq!(LoadKernel::best(Caching::Device), LoadKernel::Volatile);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn an_x86_has_wide_kernels() {
    assert!(StoreKernel::Sse2.is_available() && !StoreKernel::Neon.is_available());
    assert!(!LoadKernel::Neon.is_available());
    assert_eq!(StoreKernel::Avx2.is_available(), is_x86_feature_detected!("avx2"));
}
