//! The program's capabilities, for commands that the kernel grants to privileged programs only.

/// `CAP_NET_BIND_SERVICE`, `CAP_NET_RAW`, `CAP_SYS_RAWIO`.
pub(crate) const NET_BIND_SERVICE: u32 = 10;
pub(crate) const NET_RAW: u32 = 13;
pub(crate) const SYS_RAWIO: u32 = 17;

/// Returns whether the calling thread has a capability, by its number.
pub(crate) fn has(capability: u32) -> bool {
    // `_LINUX_CAPABILITY_VERSION_3`, and this thread; effective, permitted and inheritable bits, twice 32.
    let (mut header, mut data) = ([0x2008_0522u32, 0], [0u32; 6]);
    // SAFETY: the structures of capget(2), which fills `data`.
    let result = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()) };
    result == 0 && data[0] & 1 << capability != 0
}
