use super::*;

fn pair() -> (Producer, Consumer) {
    let (memory, fd) = SharedMemory::create(RING_BYTES).unwrap();
    let other = SharedMemory::receive(std::os::fd::AsFd::as_fd(&fd), RING_BYTES).unwrap();
    let producer = Producer::new(memory, Speed::default()).unwrap();
    (producer, Consumer::new(other, Speed::default()).unwrap().0)
}

fn push(producer: &mut Producer, header: &[u8], payload: &[u8]) -> Result<MustWake, PushError> {
    let (first, second) = payload.split_at(payload.len() / 3);
    // SAFETY: two slices that outlive the call.
    unsafe { producer.push(header, &[(first.as_ptr(), first.len()), (second.as_ptr(), second.len())]) }
}

fn pop(consumer: &mut Consumer) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut taken = None;
    let got = consumer.pop(|packet| {
        // SAFETY: the parts are valid while the packet is handled; the producer does not write meanwhile.
        let part = |(at, len): (*const u8, usize)| unsafe { std::slice::from_raw_parts(at, len) };
        let payload = packet.payload.map(|piece| if piece.1 == 0 { &[][..] } else { part(piece) }).concat();
        taken = Some((packet.header.to_vec(), payload));
        Use::Over
    });
    got.unwrap();
    taken
}

#[test]
fn packets_of_every_length_wrap_at_every_place() {
    let (mut producer, mut consumer) = pair();
    let bytes: Vec<u8> = (0..MAX_PAYLOAD).map(|i| (i * 7 + i / 256) as u8).collect();
    let packet = |i: usize| {
        let header = &bytes[..i % (MAX_HEADER + 1)];
        (header.to_vec(), bytes[i % 100..][..(i * 977) % (MAX_PAYLOAD - 100)].to_vec())
    };
    // One packet is in the ring all the time, so the producer does not restart at offset 0.
    let mut total = 0;
    for i in 0..3000usize {
        let (header, payload) = packet(i);
        push(&mut producer, &header, &payload).unwrap();
        total += payload.len();
        if i > 0 {
            assert_eq!(pop(&mut consumer).unwrap(), packet(i - 1));
        }
    }
    assert_eq!(pop(&mut consumer).unwrap(), packet(2999));
    assert!(total > 20 * CAPACITY && pop(&mut consumer).is_none());
    let longest = vec![1; MAX_PAYLOAD];
    push(&mut producer, &[2; MAX_HEADER], &longest).unwrap();
    assert_eq!(pop(&mut consumer).unwrap().1, longest);
    assert_eq!(push(&mut producer, &[0; MAX_HEADER + 1], &[]).unwrap_err(), PushError::Corrupt);
    assert_eq!(push(&mut producer, &[], &vec![0; MAX_PAYLOAD + 1]).unwrap_err(), PushError::Corrupt);
}

#[test]
fn a_producer_whose_packets_are_taken_stays_at_the_beginning() {
    let (mut producer, mut consumer) = pair();
    let behind = RESTART_LIMIT + 4 * SHORT_RECORD;
    for i in 0..2000usize {
        // Up to three packets are in the ring.
        for _ in 0..i % 4 {
            push(&mut producer, &[i as u8], &vec![i as u8; i * 31 % (SHORT_RECORD - 32)]).unwrap();
        }
        assert!(producer.position() as usize & (CAPACITY - 1) < behind);
        let before = producer.position();
        assert!(producer.has_taken(before) == (i % 4 == 0));
        (0..i % 4).for_each(|_| assert_eq!(pop(&mut consumer).unwrap().0, [i as u8]));
        assert!(pop(&mut consumer).is_none() && consumer.is_empty() && producer.has_taken(before));
        assert!(consumer.has_taken(before) && consumer.arrived() == before);
    }
    // Back at offset 0, and nothing arrives.
    push(&mut producer, &[], &vec![0; MAX_PAYLOAD]).unwrap();
    push(&mut producer, &[], &vec![0; MAX_PAYLOAD]).unwrap();
    (0..2).for_each(|_| _ = pop(&mut consumer).unwrap());
    // A long packet does not restart.
    assert!(producer.position() as usize & (CAPACITY - 1) > RESTART_LIMIT);
    // SAFETY: no part.
    unsafe { producer.place(&[], &[], &mut Vec::new()) }.unwrap();
    producer.take_back();
    producer.publish();
    assert!(pop(&mut consumer).is_none() && consumer.is_empty());
    push(&mut producer, &[7], &[]).unwrap();
    assert_eq!(pop(&mut consumer).unwrap().0, [7]);
    assert_eq!(producer.position() as usize & (CAPACITY - 1), record_bytes(1, 0));
    // The skipped bytes are room again.
    let all = std::iter::from_fn(|| push(&mut producer, &[], &[0; MAX_PAYLOAD]).ok()).count();
    assert_eq!(all, CAPACITY / record_bytes(0, MAX_PAYLOAD));
}

#[test]
fn a_full_ring_asks_to_be_told_of_room() {
    let (mut producer, mut consumer) = pair();
    let payload = vec![3; MAX_PAYLOAD];
    let mut pushed = 0;
    while push(&mut producer, &[], &payload).is_ok() {
        pushed += 1;
    }
    assert_eq!(pushed, CAPACITY / record_bytes(0, MAX_PAYLOAD));
    assert_eq!(push(&mut producer, &[], &payload).unwrap_err(), PushError::Full);
    let wakes: Vec<bool> = (0..pushed).map(|_| consumer.pop(|_| Use::Over).unwrap().unwrap().0).collect();
    assert_eq!(wakes.iter().filter(|wake| **wake).count(), 1, "once, when half of it is free: {wakes:?}");
    push(&mut producer, &[], &payload).unwrap();
}

#[test]
fn what_is_placed_comes_with_what_fills_it_or_not_at_all() {
    let (mut producer, mut consumer) = pair();
    let bytes: Vec<u8> = (0..40_000).map(|i| (i * 3 + i / 256) as u8).collect();
    let mut sent = Vec::new();
    // Either a packet is in the ring all the time, or the ring is empty now and then.
    for (keeps, i) in [0, 1].into_iter().flat_map(|keeps| (0..800usize).map(move |i| (keeps, i))) {
        let hole = 1 + i * 97 % 30_000;
        let mut holes = Vec::new();
        let parts = [(bytes.as_ptr(), 5), (std::ptr::null(), hole), (bytes[5..].as_ptr(), i % 9)];
        // SAFETY: the parts outlive the call, and the hole is filled below.
        unsafe { producer.place(&[i as u8], &parts, &mut holes) }.unwrap();
        assert!(keeps == 1 || pop(&mut consumer).is_none(), "it is not published");
        assert_eq!(holes.iter().flatten().map(|part| part.1).sum::<usize>(), hole);
        let mut from = &bytes[i..];
        for (at, len) in holes.into_iter().flatten() {
            // SAFETY: the ring's own memory, which the consumer does not read yet.
            unsafe { at.copy_from_nonoverlapping(from.as_ptr(), len) };
            from = &from[len..];
        }
        match i % 4 {
            0 => producer.withdraw(),
            // Only the last one is taken back, and pushed again differently.
            1 => {
                let place = producer.position();
                // SAFETY: no part.
                unsafe { producer.place(&[], &[(std::ptr::null(), 9)], &mut Vec::new()) }.unwrap();
                producer.take_back();
                assert_eq!(producer.position(), place);
                push(&mut producer, &[], &[]).unwrap();
                sent.push(i);
            }
            _ => {
                producer.publish();
                sent.push(i);
            }
        }
        while sent.len() > keeps {
            let (header, payload) = pop(&mut consumer).unwrap();
            if header.is_empty() {
                continue;
            }
            let i = sent.remove(0);
            assert_eq!(header, [i as u8]);
            let hole = 1 + i * 97 % 30_000;
            let whole = [&bytes[..5], &bytes[i..i + hole], &bytes[5..5 + i % 9]].concat();
            assert_eq!(payload, whole);
        }
        while keeps == 0 && pop(&mut consumer).is_some_and(|(header, _)| header.is_empty()) {}
    }
}

#[test]
fn what_is_withdrawn_is_not_taken_back_once_more() {
    let (mut producer, mut consumer) = pair();
    for i in 0..2 {
        let before = producer.position();
        // SAFETY: no part, and so no hole.
        (0..2).for_each(|_| unsafe { producer.place(&[1], &[], &mut Vec::new()) }.unwrap());
        producer.withdraw();
        producer.take_back();
        assert_eq!(producer.position(), before);
        push(&mut producer, &[2 + i], &[]).unwrap();
        assert_eq!(pop(&mut consumer).unwrap().0, [2 + i]);
    }
}

#[test]
fn room_comes_back_when_its_use_ends() {
    let (mut producer, mut consumer) = pair();
    let payload = vec![3; MAX_PAYLOAD];
    let mut fill = || std::iter::from_fn(|| push(&mut producer, &[], &payload).ok()).count();
    let all = fill();
    let mut take = |used| consumer.pop(|_| used).unwrap().unwrap();
    (0..all - 2).for_each(|_| assert_eq!(take(Use::GoesOn), MustWake(false)));
    assert_eq!(fill(), 0);
    take(Use::Over);
    assert_eq!(fill(), all - 1, "and of all that came before it");
    (0..all).for_each(|_| _ = take(Use::GoesOn));
    assert_eq!(fill(), 0);
    consumer.release();
    assert_eq!(fill(), all);
}

#[test]
fn a_sleeping_consumer_is_woken_once() {
    let (mut producer, mut consumer) = pair();
    assert!(consumer.announce_sleep());
    assert_eq!(push(&mut producer, &[1], &[]).unwrap(), MustWake(true));
    assert_eq!(push(&mut producer, &[1], &[]).unwrap(), MustWake(false));
    assert!(!consumer.announce_sleep(), "there is work");
    pop(&mut consumer).unwrap();
    pop(&mut consumer).unwrap();
    assert!(consumer.announce_sleep());
    consumer.awake();
    assert_eq!(push(&mut producer, &[1], &[]).unwrap(), MustWake(false));
}

#[test]
fn a_broken_ring_is_given_up() {
    for (at, value) in [(AT_TAIL, u64::MAX), (AT_TAIL, CAPACITY as u64 + 8), (AT_TAIL, 4)] {
        let (producer, mut consumer) = pair();
        producer.shared.word64(at).store(value, Ordering::Release);
        assert!(consumer.pop(|_| panic!("no packet is there")).is_err());
    }
    for lengths in [(65u64 << 32), MAX_PAYLOAD as u64 + 1, 64 << 32 | 8, u64::MAX] {
        let (producer, mut consumer) = pair();
        producer.shared.word64(CONTROL).store(lengths, Ordering::Release);
        producer.shared.word64(AT_TAIL).store(16, Ordering::Release);
        assert!(consumer.pop(|_| panic!("the packet is incomplete")).is_err());
    }
    // The rest is marked as skipped although it is not there; twice.
    for tail in [16, CAPACITY as u64 - 8, CAPACITY as u64] {
        let (producer, mut consumer) = pair();
        producer.shared.word64(CONTROL).store(SKIP_REST, Ordering::Release);
        producer.shared.word64(AT_TAIL).store(tail, Ordering::Release);
        let popped = consumer.pop(|_| panic!("there is no packet"));
        assert_eq!(popped.is_err(), tail < CAPACITY as u64);
        producer.shared.word64(AT_TAIL).store(CAPACITY as u64 + 8, Ordering::Release);
        assert!(consumer.pop(|_| panic!("there is no packet")).is_err());
    }
    let (mut producer, consumer) = pair();
    consumer.shared.word64(AT_HEAD).store(9, Ordering::Release);
    assert_eq!(push(&mut producer, &[], &[]).unwrap_err(), PushError::Corrupt);
    let (memory, _fd) = SharedMemory::create(RING_BYTES).unwrap();
    assert!(Consumer::new(memory, Speed::default()).is_err(), "not a ring");
    for len in [4096, RING_BYTES - 4096, RING_BYTES + 4096] {
        let memory = || SharedMemory::create(len).unwrap().0;
        assert!(
            Producer::new(memory(), Speed::default()).is_err()
                && Consumer::new(memory(), Speed::default()).is_err(),
            "{len} bytes"
        );
    }
}

#[test]
fn memory_of_another_size_or_unsealed_is_refused() {
    let (_memory, fd) = SharedMemory::create(4096).unwrap();
    assert!(SharedMemory::receive(std::os::fd::AsFd::as_fd(&fd), RING_BYTES).is_err());
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(SharedMemory::receive(std::os::fd::AsFd::as_fd(&file), 4096).is_err());
}

#[test]
fn two_threads_lose_nothing() {
    let (mut producer, mut consumer) = pair();
    const COUNT: u64 = 200_000;
    let writer = std::thread::spawn(move || {
        let mut i = 0u64;
        while i < COUNT {
            let payload = vec![i as u8; (i % 700) as usize];
            match push(&mut producer, &i.to_ne_bytes(), &payload) {
                Ok(_) => i += 1,
                Err(_) => std::thread::yield_now(),
            }
        }
    });
    let mut next = 0u64;
    while next < COUNT {
        let Some((header, payload)) = pop(&mut consumer) else {
            std::thread::yield_now();
            continue;
        };
        assert_eq!(header, next.to_ne_bytes());
        assert!(payload.len() == (next % 700) as usize && payload.iter().all(|byte| *byte == next as u8));
        next += 1;
    }
    writer.join().unwrap();
}
