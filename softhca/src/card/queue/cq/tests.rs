//! Tests of [`super`].

use super::*;
use gdsync_sys::prm::cqe::{CqeOpcode, Syndrome};
use gdsync_sys::prm::wqe::Opcode;

struct Memory {
    ring: Vec<u64>,
    record: [u32; 2],
}

impl Memory {
    fn new(entries: usize) -> Box<Self> {
        Box::new(Memory { ring: vec![0; entries * 8], record: [0; 2] })
    }

    fn queue(&mut self) -> Cq {
        let entries = (self.ring.len() / 8) as u32;
        let record = self.record.as_mut_ptr();
        // SAFETY: the tests keep the memory longer than the queue, and use it through atomics or these pointers only.
        unsafe {
            let ring = CqRing::new(self.ring.as_mut_ptr().cast(), entries, 64, false);
            Cq::new(ring, Record::new(record), Record::new(record.add(1)), false)
        }
    }

    fn write_arm(&mut self, arm: CqArm) {
        // SAFETY: our own record.
        unsafe { Record::new(self.record.as_mut_ptr().add(1)) }.exchange(arm.record());
    }
}

fn good(solicited: bool) -> Cqe64 {
    Cqe64::responder(CqeOpcode::RespSend, 5, 6, 0, 0, [0; 4], solicited)
}

#[test]
fn one_arm_fires_once() {
    let mut memory = Memory::new(8);
    let mut cq = memory.queue();
    assert_eq!(cq.write(good(true)), Ok(Fires(false)), "not armed");
    assert_eq!(cq.arm(CqArm::new(0, false, 1)), Fires(false));
    assert_eq!(cq.write(good(false)), Ok(Fires(true)));
    assert_eq!(cq.write(good(false)), Ok(Fires(false)));
}

#[test]
fn an_arm_for_entries_that_are_there_fires_at_once() {
    let mut memory = Memory::new(8);
    let mut cq = memory.queue();
    assert_eq!(cq.write(good(false)), Ok(Fires(false)));
    assert_eq!(cq.arm(CqArm::new(0, false, 0)), Fires(true));
    assert_eq!(cq.write(good(false)), Ok(Fires(false)), "an arm fires only once");
    assert_eq!(cq.arm(CqArm::new(1, false, 2)), Fires(false), "both have been seen");
}

#[test]
fn an_entry_raises_one_event_whether_consumed_or_not() {
    let mut memory = Memory::new(8);
    let mut cq = memory.queue();
    assert_eq!(cq.arm(CqArm::new(0, false, 0)), Fires(false));
    assert_eq!(cq.write(good(false)), Ok(Fires(true)));
    // Programs fetch the event, arm again, and only then poll.
    assert_eq!(cq.arm(CqArm::new(1, false, 0)), Fires(false), "an event has covered that one");
    assert_eq!(cq.write(good(false)), Ok(Fires(true)));
    assert_eq!(cq.write(good(false)), Ok(Fires(false)));
    assert_eq!(cq.arm(CqArm::new(2, false, 0)), Fires(true), "no event has covered the third");
}

#[test]
fn a_solicited_arm_waits_for_solicited_entries_and_errors() {
    let mut memory = Memory::new(8);
    let mut cq = memory.queue();
    assert_eq!(cq.arm(CqArm::new(0, true, 0)), Fires(false));
    assert_eq!(cq.write(good(false)), Ok(Fires(false)));
    assert_eq!(cq.write(good(true)), Ok(Fires(true)));
    assert_eq!(cq.write(good(false)), Ok(Fires(false)));
    assert_eq!(cq.arm(CqArm::new(1, true, 2)), Fires(false), "the solicited one has been seen");
    let error = Cqe64::error(CqeOpcode::RequesterError, 0, 5, 0, Syndrome::WrFlush, 0);
    assert_eq!(cq.write(error), Ok(Fires(true)));
    assert_eq!(cq.write(error), Ok(Fires(false)));
    assert_eq!(cq.arm(CqArm::new(2, true, 2)), Fires(true), "the second error has not");
    assert_eq!(cq.arm(CqArm::new(2, false, 0x80_0000)), Fires(false), "an index that cannot be");
}

#[test]
fn an_arm_whose_doorbell_is_lost_is_found_in_the_record() {
    let mut memory = Memory::new(8);
    let mut cq = memory.queue();
    assert_eq!(cq.poll_arm_record(), Fires(false));
    let first = CqArm::new(0, false, 0);
    memory.write_arm(first);
    assert_eq!(cq.poll_arm_record(), Fires(false), "armed, though its word is that of a new record");
    assert_eq!(cq.write(good(false)), Ok(Fires(true)));
    assert_eq!(cq.rung(first), Fires(false), "its own doorbell, late: the arm has fired");
    memory.write_arm(first);
    assert_eq!(cq.rung(first), Fires(false), "the same words again are another arm");
    assert_eq!(cq.write(good(false)), Ok(Fires(true)));
    assert_eq!(cq.rung(CqArm::new(0, false, 1)), Fires(false), "every entry has had its event");
    assert_eq!(cq.write(good(false)), Ok(Fires(true)), "a doorbell after all records arms by itself");
}

#[test]
fn a_record_that_is_ahead_of_its_doorbell_arms_once() {
    let mut memory = Memory::new(8);
    let mut cq = memory.queue();
    let (first, second) = (CqArm::new(0, false, 0), CqArm::new(1, false, 0));
    memory.write_arm(second);
    assert_eq!(cq.rung(first), Fires(false), "the first doorbell finds the second record");
    assert_eq!(cq.write(good(false)), Ok(Fires(true)));
    assert_eq!(cq.rung(second), Fires(false), "the arm is known already");
    assert_eq!(cq.write(good(false)), Ok(Fires(false)), "one arm, one event");
    assert_eq!(cq.rung(CqArm::new(2, false, 1)), Fires(true), "a third arm, for the second entry");
}

#[test]
fn the_same_words_twice_before_the_card_looks_are_no_mistake() {
    let mut memory = Memory::new(8);
    let mut cq = memory.queue();
    let arm = CqArm::new(0, false, 0);
    // The program has written its second record before the card takes the first doorbell, and its third before another
    // queue's doorbell makes the card poll; then the doorbells come.
    memory.write_arm(arm);
    assert_eq!(cq.rung(arm), Fires(false));
    assert_eq!(cq.rung(arm), Fires(false), "the second doorbell");
    memory.write_arm(CqArm::new(0, false, 2));
    assert_eq!(cq.poll_arm_record(), Fires(false));
    assert_eq!(cq.rung(arm), Fires(false), "an older doorbell");
    assert_eq!(cq.rung(CqArm::new(0, true, 2)), Fires(false), "written over at once");
    assert_eq!(cq.rung(CqArm::new(0, false, 2)), Fires(false));
    assert_eq!(
        cq.rung(CqArm::new(0, false, 3)),
        Fires(false),
        "no record was so far: another thread's was written over it"
    );
    assert_eq!(cq.write(good(false)), Ok(Fires(true)), "it is armed");
}

#[test]
fn an_arm_for_everything_stays_one() {
    let mut memory = Memory::new(8);
    let mut cq = memory.queue();
    assert_eq!(cq.arm(CqArm::new(0, false, 0)), Fires(false));
    assert_eq!(cq.arm(CqArm::new(0, true, 0)), Fires(false));
    assert_eq!(cq.write(good(false)), Ok(Fires(true)));
    assert_eq!(cq.arm(CqArm::new(1, true, 1)), Fires(false));
    assert_eq!(cq.write(good(false)), Ok(Fires(false)));
    assert_eq!(cq.arm(CqArm::new(1, false, 2)), Fires(false), "now for everything");
    assert_eq!(cq.write(good(false)), Ok(Fires(true)));
}

proptest::proptest! {
    /// The program of ibv_get_cq_event(3), in every order of its steps and the card's. It never sleeps while the queue
    /// has an entry.
    #[test]
    fn a_program_that_arms_and_then_empties_the_queue_sees_every_entry(steps in proptest::collection::vec(0u8..3, 1..200)) {
        let mut memory = Memory::new(256);
        let mut cq = memory.queue();
        let (mut produced, mut consumed, mut events, mut sequence) = (0u32, 0u32, 0u32, 0u8);
        // The program has written the arm record and rung the doorbell; next it empties the queue.
        let (mut bell, mut is_awake) = (Some(CqArm::new(0, false, 0)), true);
        memory.write_arm(CqArm::new(0, false, 0));
        for step in steps {
            match step {
                0 => {
                    events += u32::from(cq.write(good(false)) == Ok(Fires(true)));
                    produced += 1;
                }
                1 => {
                    if let Some(arm) = bell.take() {
                        events += u32::from(cq.rung(arm).0);
                        proptest::prop_assert!(cq.has_record(), "a mistake that is none");
                    } else {
                        events += u32::from(cq.poll_arm_record().0);
                    }
                }
                _ if is_awake => {
                    consumed = produced;
                    // SAFETY: our own record.
                    unsafe { memory.record.as_mut_ptr().write(doorbell::ci_record(consumed)) };
                    is_awake = false;
                }
                _ if events > 0 => {
                    (events, sequence) = (events - 1, sequence.wrapping_add(1));
                    let arm = CqArm::new(sequence, false, consumed);
                    memory.write_arm(arm);
                    (bell, is_awake) = (Some(arm), true);
                }
                _ => {}
            }
        }
        if let Some(arm) = bell {
            events += u32::from(cq.rung(arm).0);
        }
        let will_look = is_awake || events > 0;
        proptest::prop_assert!(will_look || consumed == produced, "{consumed} of {produced} were seen");
    }
}

#[test]
fn the_owner_bit_changes_with_every_lap_until_the_queue_overruns() {
    let mut memory = Memory::new(4);
    let (base, word) = (memory.ring.as_mut_ptr().cast::<u8>(), memory.record.as_mut_ptr());
    let mut cq = memory.queue();
    for n in 0..20u32 {
        assert_eq!(cq.write(Cqe64::requester(Opcode::Send, 5, n as u16, 0)), Ok(Fires(false)));
        // SAFETY: inside the ring.
        let op_own = unsafe { base.add((n as usize % 4) * 64 + 63).read() };
        assert_eq!(u32::from(op_own), n / 4 % 2, "entry {n}");
        // SAFETY: our own record.
        unsafe { word.write(doorbell::ci_record(n + 1)) };
    }
    for _ in 0..4 {
        assert_eq!(cq.write(Cqe64::requester(Opcode::Send, 5, 0, 0)), Ok(Fires(false)));
    }
    assert_eq!(cq.write(Cqe64::requester(Opcode::Send, 5, 0, 0)), Err(Overrun { first: true }));
    let now = cq.attributes();
    assert_eq!((now.entries, now.produced, now.consumed, now.overrun), (4, 24, 20, true));
    // SAFETY: our own record.
    unsafe { word.write(doorbell::ci_record(24)) };
    assert_eq!(
        cq.write(Cqe64::requester(Opcode::Send, 5, 0, 0)),
        Err(Overrun { first: false }),
        "the queue stays overrun"
    );
}

#[test]
fn a_queue_moves_on_to_another_ring() {
    for (old, new) in [(8usize, 16usize), (16, 8)] {
        let mut memory = Memory::new(old);
        let mut cq = memory.queue();
        let mut ring = vec![0u64; new * 8];
        // Three entries, of which one is consumed and an event has covered two.
        assert_eq!(cq.write(good(false)), Ok(Fires(false)));
        assert_eq!(cq.arm(CqArm::new(0, false, 1)), Fires(false));
        assert_eq!(cq.write(good(true)), Ok(Fires(true)));
        assert_eq!(cq.write(good(false)), Ok(Fires(false)));
        // SAFETY: our own record; the ring is kept longer than the queue is used.
        let moved = unsafe {
            memory.record.as_mut_ptr().write(doorbell::ci_record(1));
            cq.resize(CqRing::new(ring.as_mut_ptr().cast(), new as u32, 64, false))
        };
        assert!(moved);
        let op_own = |ring: *const u64, index: usize| {
            // SAFETY: inside the ring.
            unsafe { ring.cast::<u8>().add(index * 64 + 63).read() }
        };
        assert_eq!(op_own(memory.ring.as_ptr(), 3) >> 4, CqeOpcode::Resize as u8);
        // The program has copied entries 1 and 2 to places 2 and 3, and consumed the entry of the resize.
        assert_eq!(cq.write(good(false)), Ok(Fires(false)));
        assert_eq!(op_own(ring.as_ptr(), 4) >> 4, CqeOpcode::RespSend as u8);
        assert_eq!(op_own(memory.ring.as_ptr(), 4), 0, "nothing more in the old ring");
        let now = cq.attributes();
        assert_eq!((now.entries, now.produced), (new as u32, 5));
        assert_eq!(cq.arm(CqArm::new(1, false, 2)), Fires(true), "the third and the fifth are not covered");
        assert_eq!(cq.arm(CqArm::new(2, true, 2)), Fires(false), "the solicited one was");
        // The owner bit follows the laps of the new ring.
        // SAFETY: our own record.
        unsafe { memory.record.as_mut_ptr().write(doorbell::ci_record(5)) };
        for n in 5..5 + new {
            assert!(cq.write(good(false)).is_ok());
            assert_eq!(usize::from(op_own(ring.as_ptr(), n % new) & 1), n / new % 2, "entry {n}");
        }
        assert_eq!(cq.write(good(false)), Err(Overrun { first: true }));
    }
}

#[test]
fn a_ring_without_room_is_no_place_to_move_to() {
    let mut memory = Memory::new(8);
    let mut cq = memory.queue();
    let mut small = vec![0u64; 4 * 8];
    let base = small.as_mut_ptr().cast();
    (0..3).for_each(|_| assert!(cq.write(good(false)).is_ok()));
    // SAFETY: the ring is kept longer than the queue is used.
    let moves = |cq: &mut Cq| cq.resize(unsafe { CqRing::new(base, 4, 64, false) });
    assert!(!moves(&mut cq), "three entries, and one for what comes");
    (3..8).for_each(|_| assert!(cq.write(good(false)).is_ok()));
    assert!(!moves(&mut cq), "no room in the old ring for the entry that says so");
    assert_eq!(cq.write(good(false)), Err(Overrun { first: true }));
    // SAFETY: our own record.
    unsafe { memory.record.as_mut_ptr().write(doorbell::ci_record(8)) };
    assert!(!moves(&mut cq), "it has overrun");
}

#[test]
fn entries_of_128_bytes_end_with_the_entry() {
    let mut memory = Memory::new(8);
    let record = memory.record.as_mut_ptr();
    // SAFETY: the memory is kept longer than the queue; 8 entries of 64 bytes are 4 of 128.
    let mut cq = unsafe {
        let ring = CqRing::new(memory.ring.as_mut_ptr().cast(), 4, 128, false);
        Cq::new(ring, Record::new(record), Record::new(record.add(1)), false)
    };
    assert!(cq.write(good(false)).is_ok() && cq.write(good(false)).is_ok());
    assert_eq!((cq.ring.stride, cq.attributes().stride), (128, 128));
    for (half, is_there) in [(0, false), (1, true), (2, false), (3, true), (4, false), (5, false)] {
        let used = memory.ring[half * 8..][..8].iter().any(|word| *word != 0);
        assert_eq!(used, is_there, "half {half}");
    }
}

#[test]
fn moderation_holds_an_event_back_until_enough_entries_or_time() {
    let mut memory = Memory::new(64);
    let mut cq = memory.queue();
    let now = Instant::now();
    let armed = |cq: &mut Cq, sequence, consumed| {
        let fires = cq.arm(CqArm::new(sequence, false, consumed));
        cq.moderate(fires, now)
    };
    cq.set_moderation(CqModeration { count: 3, period: 100 });
    assert_eq!(armed(&mut cq, 0, 0), Fires(false));
    assert_eq!(
        (cq.complete(good(false), now), cq.due()),
        (Ok(Fires(false)), Some(now + Duration::from_micros(100)))
    );
    assert_eq!(cq.complete(good(false), now), Ok(Fires(false)));
    assert_eq!((cq.complete(good(false), now), cq.due()), (Ok(Fires(true)), None), "the third");
    assert_eq!(cq.complete(good(false), now), Ok(Fires(false)), "not armed");
    assert_eq!(armed(&mut cq, 1, 3), Fires(false), "one is there: it is held back, too");
    assert!(cq.due().is_some() && cq.release() && !cq.release(), "its time has come");
    assert_eq!(armed(&mut cq, 2, 3), Fires(false), "the event has covered it");
    assert_eq!(cq.due(), None);
    for off in [
        CqModeration { count: 0, period: 100 },
        CqModeration { count: 3, period: 0 },
        CqModeration { count: 1, period: 9 },
    ] {
        cq.set_moderation(off);
        assert_eq!(cq.complete(good(false), now), Ok(Fires(true)), "{off:?}");
        let produced = cq.attributes().produced;
        assert_eq!(armed(&mut cq, 3, produced), Fires(false));
    }
}
