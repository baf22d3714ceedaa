use super::*;
use std::collections::HashSet;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// Takes memory, and fills it with a byte.
fn filled(memory: &Memory, layout: Layout, byte: u8) -> *mut u8 {
    // SAFETY: no layout of these tests is empty.
    let block = unsafe { memory.alloc(layout) };
    assert!(!block.is_null() && block.addr().is_multiple_of(layout.align()), "{layout:?}");
    // SAFETY: memory of this size.
    unsafe { block.write_bytes(byte, layout.size()) };
    block
}

fn has_only(block: *const u8, size: usize, byte: u8) -> bool {
    // SAFETY: the tests pass memory of this size, which they have filled.
    unsafe { std::slice::from_raw_parts(block, size) }.iter().all(|found| *found == byte)
}

#[test]
fn requests_of_all_sizes_have_memory_of_their_own() {
    let memory = Memory::new();
    let sizes = [1, 15, 16, 17, 100, 4095, 4096, 5000, 65_536, 65_537, 1 << 20, (3 << 20) + 5];
    let aligned = |size| [1, 8, 128, 4096].map(|align| layout(size, align));
    let layouts: Vec<_> = sizes.into_iter().flat_map(aligned).collect();
    let blocks: Vec<_> = layouts
        .iter()
        .zip(1..)
        .map(|(layout, byte)| (filled(&memory, *layout, byte), *layout, byte))
        .collect();
    for (block, layout, byte) in &blocks {
        assert!(has_only(*block, layout.size(), *byte), "{layout:?}");
        // SAFETY: taken above with this layout.
        unsafe { memory.dealloc(*block, *layout) };
    }
}

#[test]
fn a_block_is_used_again_with_zeros_where_they_are_asked_for() {
    let (memory, wanted) = (Memory::new(), layout(100, 8));
    let first = filled(&memory, wanted, 7);
    // SAFETY: taken with this layout.
    let again = unsafe {
        memory.dealloc(first, wanted);
        memory.alloc_zeroed(wanted)
    };
    assert_eq!(again, first);
    assert!(has_only(again, 100, 0));
    // SAFETY: a layout that is not empty.
    assert!(has_only(unsafe { memory.alloc_zeroed(layout(100_000, 8)) }, 100_000, 0));
}

#[test]
fn memory_grows_and_shrinks_with_its_content() {
    let memory = Memory::new();
    let (mut size, mut block) = (10, filled(&memory, layout(10, 1), 9));
    for next in [16, 17, 3000, 60_000, 70_000, 1 << 21, 70_000, 100, 10] {
        // SAFETY: taken with this size, which the last round left.
        block = unsafe { memory.realloc(block, layout(size, 1), next) };
        assert!(has_only(block, size.min(next).min(10), 9), "{size} to {next}");
        size = next;
    }
}

#[test]
fn more_than_a_page_of_alignment_is_refused() {
    let memory = Memory::new();
    for size in [1, 1 << 20] {
        // SAFETY: a layout that is not empty.
        assert!(unsafe { memory.alloc(layout(size, 8192)) }.is_null());
    }
}

#[test]
fn threads_take_and_give_blocks_at_once() {
    let memory = Memory::new();
    let all: Vec<usize> = std::thread::scope(|scope| {
        let threads = [1u8, 2, 3].map(|byte| {
            let memory = &memory;
            scope.spawn(move || {
                let mut kept = Vec::new();
                for round in 0..2000 {
                    let wanted = layout(16 << (round % 4), 8);
                    let block = filled(memory, wanted, byte);
                    if round % 3 == 0 {
                        kept.push((block, wanted.size()));
                    } else {
                        assert!(has_only(block, wanted.size(), byte));
                        // SAFETY: taken with this layout.
                        unsafe { memory.dealloc(block, wanted) };
                    }
                }
                assert!(kept.iter().all(|(block, size)| has_only(*block, *size, byte)));
                kept.into_iter().map(|(block, _)| block.addr()).collect::<Vec<_>>()
            })
        });
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "two requests have one block");
}

#[test]
fn the_child_of_a_fork_begins_anew_though_the_lock_was_held() {
    let (memory, wanted) = (Memory::new(), layout(32, 8));
    let before = filled(&memory, wanted, 5);
    // SAFETY: taken with this layout.
    unsafe { memory.dealloc(before, wanted) };
    memory.lock.lock();
    memory.forget();
    let after = filled(&memory, wanted, 6);
    assert_ne!(after, before);
}
