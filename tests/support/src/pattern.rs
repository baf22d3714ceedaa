//! Test data. This crate is optimized in tests' builds, too; the tests that use these loops are not.

use std::sync::LazyLock;

/// Most bytes that [`bytes`] returns.
const LONGEST: usize = 1 << 17;

/// Returns `len` bytes, at most 128 KiB, that depend on their position and the seed.
pub fn bytes(seed: u8, len: usize) -> Vec<u8> {
    static PATTERN: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..LONGEST).map(|at| (at * 7 + at / 251) as u8).collect());
    PATTERN[..len].iter().map(|byte| byte.wrapping_add(seed)).collect()
}

/// Returns for each byte its entry of the table. All 256 entries have the same length.
pub fn spread(bytes: &[u8], table: &[u8]) -> Vec<u8> {
    let width = table.len() / 256;
    bytes.iter().flat_map(|byte| &table[usize::from(*byte) * width..][..width]).copied().collect()
}
