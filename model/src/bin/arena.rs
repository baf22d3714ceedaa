//! Model of the arena: allocated blocks belong to one owner at a time, and are zeroed.

#![allow(dead_code, reason = "the library uses more of its files than the models do")]

pub(crate) mod util {
    pub(crate) use gdsync_model::sync;
}

#[path = "."]
mod memory {
    //! Ordinary memory instead of pinned memory.

    use std::io;

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct HostAddr(pub(crate) u64);

    #[derive(Debug)]
    pub(crate) struct PinnedMemory(Box<[std::cell::UnsafeCell<u64>]>);

    // SAFETY: the arena and its callers synchronise accesses, which the model checks.
    unsafe impl Send for PinnedMemory {}
    // SAFETY: as above.
    unsafe impl Sync for PinnedMemory {}

    impl PinnedMemory {
        pub(crate) fn allocate_whole(len: usize) -> io::Result<Self> {
            Ok(PinnedMemory((0..len.div_ceil(8)).map(|_| std::cell::UnsafeCell::new(u64::MAX)).collect()))
        }

        pub(crate) fn as_ptr(&self) -> *mut u8 {
            self.0.as_ptr().cast::<u8>().cast_mut()
        }

        pub(crate) fn len(&self) -> usize {
            self.0.len() * 8
        }
    }

    #[path = "../../../gdsync/src/memory/arena.rs"]
    pub(crate) mod arena;
}

use gdsync_model::holds;
use loom::sync::Arc;
use loom::thread;
use memory::arena::Arena;

const LEN: usize = 100;

/// Allocates a block, fills it, checks that it stays unchanged, frees it.
fn use_block(arena: &Arena, mark: u8) {
    let block = arena.allocate(LEN, 64).unwrap();
    // SAFETY: this thread owns the block of that length, which the model verifies.
    let bytes = || unsafe { std::slice::from_raw_parts(block, LEN) };
    assert!(bytes().iter().all(|byte| *byte == 0), "a block is not zeroed");
    // SAFETY: as above.
    unsafe { block.write_bytes(mark, LEN) };
    thread::yield_now();
    assert!(bytes().iter().all(|byte| *byte == mark), "somebody else has the block, too");
    assert!(arena.release(block));
}

fn main() {
    holds("two threads take blocks and give them back", || {
        let arena = Arc::new(Arena::default());
        let other = arena.clone();
        let thread = thread::spawn(move || {
            use_block(&other, 1);
            use_block(&other, 2);
        });
        use_block(&arena, 3);
        thread.join().unwrap();
    });
    holds("of two that give one block back, one does", || {
        let arena = Arc::new(Arena::default());
        let block = arena.allocate(LEN, 64).unwrap() as usize;
        let other = arena.clone();
        let thread = thread::spawn(move || other.release(block as *mut u8));
        let (here, there) = (arena.release(block as *mut u8), thread.join().unwrap());
        assert!(here != there);
    });
}
