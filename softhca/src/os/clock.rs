//! The clock that the card's time is read from.

/// Nanoseconds of `CLOCK_MONOTONIC` (clock_gettime(2)).
pub(crate) fn nanoseconds() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is valid. This clock is there on every Linux: the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
