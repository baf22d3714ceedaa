use super::*;
use proptest::prelude::*;

#[test]
fn words_behave_as_atomics_do() {
    let (byte, short, long) = (SharedU8::new(7), SharedU32::new(7), SharedU64::new(0));
    for order in [Ordering::Relaxed, Ordering::Acquire, Ordering::Release, Ordering::AcqRel, Ordering::SeqCst]
    {
        byte.store(200, order);
        short.store(0x8000_0001, order);
        long.store(u64::MAX - 1, order);
        assert_eq!((byte.load(order), short.load(order), long.load(order)), (200, 0x8000_0001, u64::MAX - 1));
        assert_eq!(
            (short.swap(3, order), short.fetch_add(u32::MAX, order), short.load(order)),
            (0x8000_0001, 3, 2)
        );
        assert_eq!((long.swap(1 << 40, order), long.fetch_add(5, order)), (u64::MAX - 1, 1 << 40));
        assert_eq!(long.compare_exchange((1 << 40) + 5, 9, order, Ordering::Relaxed), Ok((1 << 40) + 5));
        assert_eq!(long.compare_exchange(8, 1, order, Ordering::Relaxed), Err(9));
        assert_eq!(short.compare_exchange(2, 1 << 31, order, Ordering::Acquire), Ok(2));
        assert_eq!(short.compare_exchange(2, 0, order, Ordering::Acquire), Err(1 << 31));
        assert_eq!((short.load(order), long.load(order)), (1 << 31, 9));
    }
    assert_eq!(format!("{byte:?} {long:?}"), "200 9");
}

#[test]
fn words_of_all_sizes_are_the_same_memory() {
    let words = [const { SharedU64::new(0) }; 2];
    // SAFETY: two aligned words, of which only these types are used.
    let (bytes, short) = unsafe {
        let first = words.as_ptr().cast_mut();
        (
            std::slice::from_raw_parts(first.cast::<SharedU8>(), 16),
            SharedU32::from_ptr(first.cast::<u32>().add(1)),
        )
    };
    bytes[0].store(1, Ordering::Relaxed);
    short.store(u32::from_ne_bytes([2, 3, 4, 5]), Ordering::Relaxed);
    assert_eq!(words[0].load(Ordering::Relaxed).to_ne_bytes(), [1, 0, 0, 0, 2, 3, 4, 5]);
    assert_eq!((words[1].load(Ordering::Relaxed), bytes[7].load(Ordering::Relaxed)), (0, 5));
}

#[test]
fn additions_of_several_threads_are_all_counted() {
    let rounds = if cfg!(miri) { 50 } else { 20_000 };
    let (short, long) = (SharedU32::new(0), SharedU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    short.fetch_add(1, Ordering::Relaxed);
                    let mut seen = long.load(Ordering::Relaxed);
                    while let Err(found) =
                        long.compare_exchange(seen, seen + 1, Ordering::AcqRel, Ordering::Relaxed)
                    {
                        seen = found;
                    }
                }
            });
        }
    });
    assert_eq!(
        (short.load(Ordering::Relaxed), long.load(Ordering::Relaxed)),
        (2 * rounds, u64::from(2 * rounds))
    );
}

/// Copies inside one buffer, for every relative position of source and target.
fn check(from: usize, to: usize, len: usize) {
    const SIZE: usize = 512;
    let mut buffer = [[0u64; SIZE / 8]; 1];
    let base: *mut u8 = buffer.as_mut_ptr().cast();
    let initial: Vec<u8> = (0..SIZE).map(|i| (i * 7 + 1) as u8).collect();
    let mut expected = initial.clone();
    expected.copy_within(from..from + len, to);
    // SAFETY: both ranges are inside the buffer.
    let found = unsafe {
        base.copy_from_nonoverlapping(initial.as_ptr(), SIZE);
        copy(base.add(to), base.add(from), len);
        std::slice::from_raw_parts(base, SIZE).to_vec()
    };
    assert_eq!(found, expected, "{len} bytes from {from} to {to}");
}

#[test]
fn short_copies_at_every_offset() {
    for len in 0..if cfg!(miri) { 10 } else { 100 } {
        (0..9).flat_map(|from| (0..9).map(move |to| (from, to))).for_each(|(from, to)| {
            check(from, 200 + to, len);
            check(200 + from, to, len);
            check(from, to, len);
        });
    }
}

proptest! {
    #[test]
    fn any_bytes_are_copied_wherever_they_are(from in 0usize..250, to in 0usize..250, len in 0usize..262) {
        check(from, to, len);
    }
}

/// A program may poll the last word of a message and then write to the message.
#[cfg(all(target_arch = "x86_64", not(any(miri, fuzzing, gdsync_sanitize))))]
#[test]
fn bytes_arrive_in_the_order_of_their_addresses_and_once() {
    const WORDS: usize = 97;
    let words = || (0..WORDS).map(|_| SharedU64::new(0)).collect::<Vec<_>>();
    let (source, target, wanted) = (words(), words(), SharedU64::new(0));
    // The other thread may share this one's core.
    let until = |word: &SharedU64, value| {
        let mut looks = 0u32;
        while word.load(Ordering::Acquire) != value {
            looks += 1;
            if looks.is_multiple_of(1 << 10) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    };
    let rounds = 20_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=rounds {
                source.iter().for_each(|word| word.store(round, Ordering::Relaxed));
                until(&wanted, round);
                // SAFETY: both have so many words.
                unsafe { copy(target.as_ptr().cast_mut().cast(), source.as_ptr().cast(), WORDS * 8) };
            }
        });
        for round in 1..=rounds {
            wanted.store(round, Ordering::Release);
            until(&target[WORDS - 1], round);
            // Any further store of the copy would come after the last word.
            target.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            let late = || target.iter().position(|word| word.load(Ordering::Relaxed) != 0);
            assert_eq!(
                (0..20).find_map(|_| late()),
                None,
                "a word came after the last one, in round {round}"
            );
        }
    });
}
