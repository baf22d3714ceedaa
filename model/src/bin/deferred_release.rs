//! Model of the keeper of regions of posts that hold no reference.

#![allow(dead_code, reason = "the library uses more of its files than the models do")]

#[path = "../../../gdsync/src/verbs/deferred_release.rs"]
mod deferred_release;
pub(crate) mod util {
    pub(crate) use gdsync_model::sync;
}

use gdsync_model::{breaks, holds};
use deferred_release::DeferredRelease;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// The memory of a region. Loom reports reads concurrent with its drop.
struct Memory(Arc<UnsafeCell<bool>>);

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: loom reports concurrent accesses.
        self.0.with_mut(|there| unsafe { *there = false });
    }
}

/// One thread posts a region and drops its handle while the card reads the region; another thread polls the completion.
fn a_region_stays_until_its_post_has_retired(keeps: bool) {
    let (deferred, memory) = (Arc::new(DeferredRelease::new()), Arc::new(UnsafeCell::new(true)));
    let poster = {
        let (deferred, memory) = (deferred.clone(), Memory(memory.clone()));
        thread::spawn(move || {
            deferred.post(1);
            if keeps {
                // Not dropped unless taken.
                let mut memory = Some(memory);
                deferred.keep(1, || memory.take());
            }
        })
    };
    while deferred.posted() == 0 {
        thread::yield_now();
    }
    // SAFETY: as above.
    assert!(memory.with(|there| unsafe { *there }), "the card reads memory that is gone");
    deferred.retire(1);
    poster.join().unwrap();
    // SAFETY: as above.
    assert!(memory.with(|there| unsafe { !*there }), "it is kept after its post has retired");
}

fn main() {
    holds("a region stays until its post has retired, and goes then", || {
        a_region_stays_until_its_post_has_retired(true);
    });
    breaks("a region that nothing keeps", || a_region_stays_until_its_post_has_retired(false));
}
