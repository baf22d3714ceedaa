use super::*;

fn pair() -> (Producer, Consumer) {
    let (memory, fd) = SharedMemory::create(RING_BYTES).unwrap();
    let other = SharedMemory::receive(std::os::fd::AsFd::as_fd(&fd), RING_BYTES).unwrap();
    let producer = Producer::new(memory).unwrap();
    (producer, Consumer::new(other).unwrap())
}

fn push(producer: &mut Producer, header: &[u8], payload: &[u8]) -> Result<MustWake, PushError> {
    let (first, second) = payload.split_at(payload.len() / 3);
    // SAFETY: two slices that outlive the call.
    unsafe { producer.push(header, &[(first.as_ptr(), first.len()), (second.as_ptr(), second.len())]) }
}

fn pop(consumer: &mut Consumer) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut taken = None;
    let got = consumer.pop(|packet| {
        // SAFETY: the parts are valid while the packet is handled; the producer does not write
        // meanwhile.
        let part = |(at, len): (*const u8, usize)| unsafe { std::slice::from_raw_parts(at, len) };
        let payload = packet.payload.map(|piece| if piece.1 == 0 { &[][..] } else { part(piece) }).concat();
        taken = Some((packet.header.to_vec(), payload));
    });
    got.unwrap();
    taken
}

#[test]
fn packets_of_every_length_wrap_at_every_place() {
    let (mut producer, mut consumer) = pair();
    let bytes: Vec<u8> = (0..MAX_PAYLOAD).map(|i| (i * 7 + i / 256) as u8).collect();
    let mut total = 0;
    for i in 0..3000usize {
        let header = &bytes[..i % (MAX_HEADER + 1)];
        let payload = &bytes[i % 100..][..(i * 977) % (MAX_PAYLOAD - 100)];
        push(&mut producer, header, payload).unwrap();
        assert_eq!(pop(&mut consumer).unwrap(), (header.to_vec(), payload.to_vec()));
        total += payload.len();
    }
    assert!(total > 20 * CAPACITY && pop(&mut consumer).is_none());
    let longest = vec![1; MAX_PAYLOAD];
    push(&mut producer, &[2; MAX_HEADER], &longest).unwrap();
    assert_eq!(pop(&mut consumer).unwrap().1, longest);
    assert_eq!(push(&mut producer, &[0; MAX_HEADER + 1], &[]).unwrap_err(), PushError::Corrupt);
    assert_eq!(push(&mut producer, &[], &vec![0; MAX_PAYLOAD + 1]).unwrap_err(), PushError::Corrupt);
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
    let wakes: Vec<bool> = (0..pushed).map(|_| consumer.pop(|_| ()).unwrap().unwrap().0).collect();
    assert_eq!(wakes.iter().filter(|wake| **wake).count(), 1, "once, when half of it is free: {wakes:?}");
    push(&mut producer, &[], &payload).unwrap();
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
    let (mut producer, consumer) = pair();
    consumer.shared.word64(AT_HEAD).store(9, Ordering::Release);
    assert_eq!(push(&mut producer, &[], &[]).unwrap_err(), PushError::Corrupt);
    let (memory, _fd) = SharedMemory::create(RING_BYTES).unwrap();
    assert!(Consumer::new(memory).is_err(), "not a ring");
    for len in [4096, RING_BYTES - 4096, RING_BYTES + 4096] {
        let memory = || SharedMemory::create(len).unwrap().0;
        assert!(Producer::new(memory()).is_err() && Consumer::new(memory()).is_err(), "{len} bytes");
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
