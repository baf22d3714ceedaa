//! What ties a kernel's PTX to the texts that it was made of. `build.rs` and `tests/it/kernels.rs`
//! share it.

/// The first line of the PTX of these texts: their hash (FNV-1a), as `scripts/gpu/ptx` writes it.
/// First comes the kernel's source; if that includes the device header, the header's files follow,
/// `device_verbs.cuh` first and the others by name.
pub(crate) fn first_line<'a>(source: &'a str, header: impl IntoIterator<Item = &'a str>) -> String {
    let header = header.into_iter().filter(|_| source.contains("#include \"gdsync/"));
    let bytes = std::iter::once(source).chain(header).flat_map(str::bytes);
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("// source: {hash:016x}")
}
