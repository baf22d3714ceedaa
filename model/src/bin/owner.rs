//! A send queue with one owner: its inbox, and what keeps the regions of its posts.

#![allow(dead_code, reason = "the library uses more of its files than the models do")]

#[path = "../../../gdsync/src/queue/inbox.rs"]
mod inbox;
#[path = "../../../gdsync/src/verbs/keeper.rs"]
mod keeper;
pub(crate) mod util {
    pub(crate) use gdsync_model::sync;
}

use gdsync_model::{breaks, holds};
use inbox::{Inbox, Posted};
use keeper::Keeper;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// The memory of a region. Loom reports whoever reads it while it goes.
struct Memory(Arc<UnsafeCell<bool>>);

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: loom reports who accesses it at the same time.
        self.0.with_mut(|there| unsafe { *there = false });
    }
}

/// The owner posts a region and drops its handle, while the card reads the region, and the completion
/// is polled.
fn a_region_stays_until_its_post_has_retired(keeps: bool) {
    let (keeper, memory) = (Arc::new(Keeper::new()), Arc::new(UnsafeCell::new(true)));
    let owner = {
        let (keeper, memory) = (keeper.clone(), Memory(memory.clone()));
        thread::spawn(move || {
            keeper.post(1);
            if keeps {
                // Not dropped where it is not taken.
                let mut memory = Some(memory);
                keeper.keep(1, || memory.take());
            }
        })
    };
    while keeper.posted() == 0 {
        thread::yield_now();
    }
    // SAFETY: as above.
    assert!(memory.with(|there| unsafe { *there }), "the card reads memory that is gone");
    keeper.retire(1);
    owner.join().unwrap();
    // SAFETY: as above.
    assert!(memory.with(|there| unsafe { !*there }), "it stays for ever");
}

/// The owner posts more requests than there are slots, and another thread takes them.
fn requests_come_out_as_they_went_in(takes_first: bool) {
    const POSTS: u32 = 2;
    let (inbox, keeper) = (Arc::new(Inbox::new(1, 0)), Arc::new(Keeper::<()>::new()));
    let owner = {
        let (inbox, keeper) = (inbox.clone(), keeper.clone());
        thread::spawn(move || {
            for number in 0..POSTS {
                while inbox.tail() != number {
                    thread::yield_now();
                }
                let (first, index) = (number, u64::from(number));
                inbox.put(index, Posted { wr_id: 7 + index, first, blocks: 1, signaled: true });
                inbox.expect(number + 1);
                keeper.post(index + 1);
            }
        })
    };
    for number in 0..POSTS {
        let index = u64::from(number);
        while keeper.posted() == index {
            thread::yield_now();
        }
        if !takes_first {
            inbox.free(number + 1);
        }
        let request = Posted { wr_id: 7 + index, first: number, blocks: 1, signaled: true };
        assert_eq!(inbox.take(index), Some(request));
        assert!(inbox.signaled() > number);
        inbox.free(number + 1);
    }
    owner.join().unwrap();
}

fn main() {
    holds("a region stays until its post has retired, and goes then", || {
        a_region_stays_until_its_post_has_retired(true);
    });
    breaks("a region that nothing keeps", || a_region_stays_until_its_post_has_retired(false));
    holds("requests come out of the inbox as they went in", || requests_come_out_as_they_went_in(true));
    breaks("a slot that is free before it was taken", || requests_come_out_as_they_went_in(false));
}
