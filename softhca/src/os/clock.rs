//! The clock of the card.

/// Nanoseconds of `CLOCK_MONOTONIC` (clock_gettime(2)).
pub(crate) fn nanoseconds() -> u64 {
    nanoseconds_of(libc::CLOCK_MONOTONIC)
}

/// [`nanoseconds`], and the nanoseconds of `CLOCK_REALTIME` at the same time.
pub(crate) fn pair() -> (u64, u64) {
    let (before, real, after) = (nanoseconds(), nanoseconds_of(libc::CLOCK_REALTIME), nanoseconds());
    (before + (after - before) / 2, real)
}

fn nanoseconds_of(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is valid. Every Linux has both clocks, so the call cannot fail.
    unsafe { libc::clock_gettime(clock, &mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
