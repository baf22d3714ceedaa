//! Waits of GPUs that gdsync does not know.

use std::sync::atomic::{AtomicUsize, Ordering};

static HELD: AtomicUsize = AtomicUsize::new(0);

/// While one lives, gdsync gives back no memory that a GPU knows. Giving it back waits for the GPU, and gdsync does so while
/// the streams that it knows are idle: a wait of another stream, of a graph that the program launches say, would block the
/// thread that does it. Dropping one calls no function of CUDA.
#[derive(Debug)]
pub struct HeldBack(());

/// Has gdsync hold back what waits for the GPU: see [`HeldBack`].
pub fn hold_back() -> HeldBack {
    // AcqRel, as in `any`: what is launched after this is not overtaken by what looks before it.
    HELD.fetch_add(1, Ordering::AcqRel);
    HeldBack(())
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether one lives.
pub(super) fn any() -> bool {
    HELD.load(Ordering::Acquire) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counts_until_it_is_dropped() {
        let (one, other) = (hold_back(), hold_back());
        drop(one);
        assert!(any());
        drop(other);
        assert!(!any());
    }
}
