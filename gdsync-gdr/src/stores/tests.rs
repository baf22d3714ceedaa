//! Copies by several threads, to ordinary memory that stands in for a GPU's.

use super::*;

const PART: usize = MIN_LEN;

/// Memory that is mapped twice, whose GPU address is that number times 1 TiB: tests run side by side.
fn memory<const GROUPS: usize>(number: u64, len: usize) -> ([Stores; GROUPS], u64) {
    let mapping = Arc::new(Mapping::stand_in(len).unwrap());
    ([(); GROUPS].map(|()| Stores::new(mapping.clone())), number << 40)
}

#[test]
fn copies_have_ended_when_they_are_finished_or_dropped() {
    let bytes = vec![7; 64 * PART];
    for finishes in [true, false] {
        let ([stores, other], gpu) = memory(1, 64 * PART);
        for at in (0..64).map(|part| part * PART) {
            // SAFETY: the bytes outlive the value.
            assert!(unsafe { stores.begin(gpu + at as u64, at, bytes[at..].as_ptr(), PART) });
        }
        if finishes {
            stores.finish().unwrap();
        } else {
            drop(stores);
        }
        let mut seen = vec![0; 64 * PART];
        other.mapping().copy_from(0, &mut seen).unwrap();
        assert!(seen == bytes, "finishes: {finishes}");
    }
}

#[test]
fn overlapping_copies_take_effect_in_order() {
    let (groups, gpu) = memory::<2>(2, PART + 8);
    let contents: Vec<Vec<u8>> = (0..200).map(|number| vec![number; PART]).collect();
    for (number, content) in contents.iter().enumerate() {
        let at = number % 3 * 4;
        // SAFETY: the contents outlive the copies.
        assert!(unsafe { groups[number % 2].begin(gpu + at as u64, at, content.as_ptr(), PART) });
    }
    Stores::await_copies(gpu, PART + 8);
    let mut seen = [0; 1];
    for (offset, last) in [(PART / 2, 199), (0, 198), (PART + 3, 199), (PART + 7, 197)] {
        groups[0].mapping().copy_from(offset, &mut seen).unwrap();
        assert_eq!(seen, [last], "{offset}");
    }
    groups.iter().for_each(|group| group.finish().unwrap());
}

#[test]
fn a_write_at_once_has_all_its_bytes() {
    let ([stores], gpu) = memory(6, 4096);
    let sent: Vec<u8> = (0..200).map(|i| i as u8 + 1).collect();
    for (at, len) in [(0, 0), (0, 1), (60, 4), (60, 5), (60, 68), (3, 64), (64, 64), (128, 200), (4088, 8)] {
        stores.write(gpu + at as u64, at, &sent[..len]).unwrap();
        let mut seen = vec![0; len];
        stores.mapping().copy_from(at, &mut seen).unwrap();
        assert_eq!(seen, sent[..len], "{len} bytes at {at}");
    }
    assert!(matches!(stores.write(gpu, 4000, &sent), Err(MappingError::OutOfBounds { .. })));
}

#[test]
fn a_child_begins_none() {
    let ([stores], gpu) = memory(5, PART);
    let bytes = vec![7; PART];
    // SAFETY: the child exits without running the test harness.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // Made before the fork, and after it.
        let own = Mapping::stand_in(PART).map(|mapping| Stores::new(Arc::new(mapping)));
        // SAFETY: the bytes outlive the values.
        let begun = |stores: &Stores| unsafe { stores.begin(gpu, 0, bytes.as_ptr(), PART) };
        let code = own.map_or(2, |own| i32::from(begun(&stores) || begun(&own)));
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0), "status {status:#x}");
}

#[test]
fn what_cannot_be_written_or_is_short_is_not_begun() {
    let (([stores], gpu), bytes) = (memory(3, PART), vec![7; 2 * PART]);
    for (at, len) in [(1, PART), (0, PART - 1)] {
        // SAFETY: the bytes outlive the value.
        assert!(!unsafe { stores.begin(gpu, at, bytes.as_ptr(), len) });
    }
    stores.finish().unwrap();
}

#[test]
fn a_failure_is_returned_once_and_to_its_group() {
    let (([fails, other], gpu), bytes) = (memory(4, 2 * PART), vec![7; PART]);
    // The second leaves the mapping.
    for (group, at) in [(&fails, 0), (&fails, PART + 1), (&other, PART)] {
        group.add(lock(&OPEN), gpu, at, bytes.as_ptr(), PART);
    }
    assert!(matches!(fails.finish(), Err(MappingError::OutOfBounds { .. })));
    assert_eq!((fails.finish(), other.finish()), (Ok(()), Ok(())));
    fails.add(lock(&OPEN), gpu, 0, bytes.as_ptr(), PART);
    assert_eq!(fails.finish(), Ok(()));
    assert!(lock(&OPEN).iter().all(|(group, ..)| ![fails.group, other.group].contains(group)));
}

#[test]
fn threads_copy_what_no_one_waits_for() {
    const COPIES: usize = 8;
    let (([stores], gpu), bytes) = (memory(7, COPIES * PART), vec![7; PART]);
    for round in 0..50 {
        if round % 2 == 1 {
            // They sleep.
            thread::sleep(10 * SPIN);
        }
        for at in (0..COPIES).map(|part| part * PART) {
            // SAFETY: the bytes outlive the value.
            assert!(unsafe { stores.begin(gpu + at as u64, at, bytes.as_ptr(), PART) });
        }
        let has_ended = |copy: &&OpenCopy| copy.0 == stores.group && copy.2.has_come.load(Ordering::Acquire);
        let begun = Instant::now();
        while lock(&OPEN).iter().filter(has_ended).count() < COPIES - LEFT {
            assert!(begun.elapsed() < Duration::from_secs(60), "round {round}");
            thread::yield_now();
        }
        stores.finish().unwrap();
    }
}

#[test]
fn threads_that_begin_and_finish_at_once_get_their_own_copies() {
    let (groups, gpu) = memory::<4>(8, 4 * PART);
    thread::scope(|scope| {
        for (number, stores) in groups.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..200u8 {
                    let (bytes, at) = (vec![round; PART], number * PART);
                    // SAFETY: the bytes outlive the copy.
                    assert!(unsafe { stores.begin(gpu + at as u64, at, bytes.as_ptr(), PART) });
                    stores.finish().unwrap();
                    let mut seen = vec![0; PART];
                    stores.mapping().copy_from(at, &mut seen).unwrap();
                    assert!(seen == bytes, "{number}, round {round}");
                }
            });
        }
    });
}
