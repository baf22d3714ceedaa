//! Completion queues, the card's side.
//!
//! To arm a queue, a program writes its arm record and then rings the register at 0x20. All queues
//! of a program share that register, so a second doorbell may overwrite the first before the card
//! polls it. Therefore the card takes the *records* of all queues when the register rings. It
//! replaces each record by a value that no arm has: so it sees every arm once, even one that
//! repeats the former.
//!
//! So a doorbell may find its record taken: by the look that another queue's doorbell caused, or by an
//! earlier doorbell of its own queue, as the program had already written its next record. Then the record
//! that was taken last is that of this arm, or of one after it. A doorbell after that one has no record.

use crate::card::config::CqAttributes;
use crate::card::memory::ring::{CqRing, Record};
use gdsync_sys::prm::cqe::Cqe64;
use gdsync_sys::prm::doorbell::{self, CqArm};

/// The queue was full: the program has not consumed its entries in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overrun {
    /// It is the first time. Only then the card raises an event.
    pub(crate) first: bool,
}

/// How far the card has filled a queue, for those who wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Entries that it has written.
    pub(crate) produced: u32,
    /// Index of the first entry that is an error.
    pub(crate) first_error: Option<u32>,
    /// It takes no more entries.
    pub(crate) overrun: bool,
}

/// Whether the card raises a completion event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Fires(pub(crate) bool);

/// Value of an arm record that the card has taken. No arm has it: of the highest 4 bits, an arm's
/// sequence number uses 2.
const TAKEN: u32 = u32::MAX;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    ring: CqRing,
    consumer: Record,
    arm_record: Record,
    /// The arm that has not fired yet.
    armed: Option<CqArm>,
    /// The last arm that was taken from the record.
    taken: Option<CqArm>,
    produced: u32,
    /// Producer index at the last event. The program polls those entries anyway, so the next arm
    /// concerns later ones. (The field `last_notified_index` of mlx5's completion queue context
    /// suggests this; how hardware uses it is not published.)
    notified: u32,
    /// Index of the last entry that is solicited or an error.
    last_solicited: Option<u32>,
    /// Index of the first entry that is an error.
    first_error: Option<u32>,
    ignores_overrun: bool,
    overrun: bool,
    /// Send and receive queues that complete here.
    pub(crate) users: u32,
}

impl Cq {
    pub(crate) fn new(ring: CqRing, consumer: Record, arm_record: Record, ignores_overrun: bool) -> Self {
        arm_record.exchange(TAKEN);
        Cq {
            ring,
            consumer,
            arm_record,
            armed: None,
            taken: None,
            produced: 0,
            notified: 0,
            last_solicited: None,
            first_error: None,
            ignores_overrun,
            overrun: false,
            users: 0,
        }
    }

    /// Its state.
    pub(crate) fn attributes(&self) -> CqAttributes {
        CqAttributes {
            entries: self.ring.entries(),
            produced: self.produced & 0xff_ffff,
            consumed: doorbell::ci_value(self.consumer.load()),
            armed: self.armed.map(|arm| arm.is_solicited_only()),
            overrun: self.overrun,
        }
    }

    /// How far it is filled.
    pub(crate) fn progress(&self) -> Progress {
        Progress { produced: self.produced, first_error: self.first_error, overrun: self.overrun }
    }

    fn is_full(&self) -> bool {
        let consumed = doorbell::ci_value(self.consumer.load());
        self.produced.wrapping_sub(consumed) & 0xff_ffff >= self.ring.entries()
    }

    /// Writes the next entry.
    pub(crate) fn write(&mut self, cqe: Cqe64) -> Result<Fires, Overrun> {
        if self.overrun || !self.ignores_overrun && self.is_full() {
            let first = !self.overrun;
            self.overrun = true;
            return Err(Overrun { first });
        }
        let owner = (self.produced >> self.ring.entries().trailing_zeros()) & 1 == 1;
        self.ring.write(self.produced, &cqe.with_owner(owner));
        let solicited = cqe.is_solicited() || cqe.is_error();
        if solicited {
            self.last_solicited = Some(self.produced);
        }
        if cqe.is_error() {
            self.first_error.get_or_insert(self.produced);
        }
        self.produced = self.produced.wrapping_add(1);
        let fires = self.armed.take_if(|arm| solicited || !arm.is_solicited_only()).is_some();
        if fires {
            self.notified = self.produced;
        }
        Ok(Fires(fires))
    }

    /// Handles the doorbell of this queue. `None` if the record never had the arm of the doorbell,
    /// which is the program's mistake; the caller then uses the doorbell.
    pub(crate) fn rung(&mut self, arm: CqArm) -> Option<Fires> {
        match self.arm_record.exchange(TAKEN) {
            TAKEN => self.taken.is_some_and(|taken| !is_after(arm, taken)).then_some(Fires(false)),
            record => Some(self.take(record)),
        }
    }

    /// Polls the arm record, as another queue's doorbell may have overwritten the one of this
    /// queue.
    pub(crate) fn poll_arm_record(&mut self) -> Fires {
        match self.arm_record.exchange(TAKEN) {
            TAKEN => Fires(false),
            record => self.take(record),
        }
    }

    fn take(&mut self, record: u32) -> Fires {
        let arm = CqArm::from_record(record);
        self.taken = Some(arm);
        self.arm(arm)
    }

    /// Arms the queue. It fires at once if it has a matching entry that no event has covered and
    /// that the program has not consumed.
    ///
    /// A program that arms the queue and then empties it, as ibv_get_cq_event(3) asks, does not
    /// sleep beside an entry. If the entry was written after the card took the arm, the arm fires.
    /// If it was written before, it is not consumed. Either no event has covered it, and the arm
    /// fires at once; or an event was raised after it. If the program read that event before it
    /// armed the queue, it saw the entry when it emptied the queue; if not, that event wakes it.
    ///
    /// A queue that is armed for every entry stays so when it is armed for solicited entries (IB
    /// specification, 11.4.2.2).
    pub(crate) fn arm(&mut self, arm: CqArm) -> Fires {
        let unconsumed = self.produced.wrapping_sub(arm.consumer_index()) & 0xff_ffff;
        let unseen = unconsumed.min(self.produced.wrapping_sub(self.notified));
        // More than the ring holds means an impossible index: more than a lap old, or ahead of the
        // card.
        let has_entry = 0 < unseen && unconsumed <= self.ring.entries();
        let matches = if arm.is_solicited_only() {
            self.last_solicited.is_some_and(|last| self.produced.wrapping_sub(last) <= unseen)
        } else {
            true
        };
        let fires = has_entry && matches;
        if fires {
            self.armed = None;
            self.notified = self.produced;
        } else if self.armed.is_none_or(|earlier| earlier.is_solicited_only()) {
            self.armed = Some(arm);
        }
        Fires(fires)
    }
}

/// Whether a program arms so after it has armed as `earlier` says: it has got the next event, or it has
/// consumed more entries.
fn is_after(arm: CqArm, earlier: CqArm) -> bool {
    match arm.sequence().wrapping_sub(earlier.sequence()) & 3 {
        0 => {
            (1..1 << 23).contains(&(arm.consumer_index().wrapping_sub(earlier.consumer_index()) & 0xff_ffff))
        }
        1 => true,
        // Not after it but before: the card cannot be two events behind.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync_sys::prm::cqe::{CqeOpcode, Syndrome};
    use gdsync_sys::prm::wqe::Opcode;

    /// Memory that outlives its queue.
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
            // SAFETY: the tests keep the memory longer than the queue, and use it through atomics
            // or these pointers only.
            unsafe {
                let ring = CqRing::new(self.ring.as_mut_ptr().cast(), entries, false);
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
        assert_eq!(cq.rung(first), Some(Fires(false)), "its own doorbell, late: the arm has fired");
        memory.write_arm(first);
        assert_eq!(cq.rung(first), Some(Fires(false)), "the same words again are another arm");
        assert_eq!(cq.write(good(false)), Ok(Fires(true)));
        assert_eq!(cq.rung(CqArm::new(0, false, 1)), None, "a doorbell without a record");
    }

    #[test]
    fn a_record_that_is_ahead_of_its_doorbell_arms_once() {
        let mut memory = Memory::new(8);
        let mut cq = memory.queue();
        let (first, second) = (CqArm::new(0, false, 0), CqArm::new(1, false, 0));
        memory.write_arm(second);
        assert_eq!(cq.rung(first), Some(Fires(false)), "the first doorbell finds the second record");
        assert_eq!(cq.write(good(false)), Ok(Fires(true)));
        assert_eq!(cq.rung(second), Some(Fires(false)), "the arm is known already");
        assert_eq!(cq.write(good(false)), Ok(Fires(false)), "one arm, one event");
        assert_eq!(cq.rung(CqArm::new(2, false, 1)), None);
    }

    #[test]
    fn the_same_words_twice_before_the_card_looks_are_no_mistake() {
        let mut memory = Memory::new(8);
        let mut cq = memory.queue();
        let arm = CqArm::new(0, false, 0);
        // The program has written its second record before the card takes the first doorbell, and its
        // third before the card looks because of another queue: then the doorbells come.
        memory.write_arm(arm);
        assert_eq!(cq.rung(arm), Some(Fires(false)));
        assert_eq!(cq.rung(arm), Some(Fires(false)), "the second doorbell");
        memory.write_arm(CqArm::new(0, false, 2));
        assert_eq!(cq.poll_arm_record(), Fires(false));
        assert_eq!(cq.rung(arm), Some(Fires(false)), "an older doorbell");
        assert_eq!(cq.rung(CqArm::new(0, true, 2)), Some(Fires(false)), "written over at once");
        assert_eq!(cq.rung(CqArm::new(0, false, 2)), Some(Fires(false)));
        assert_eq!(cq.rung(CqArm::new(0, false, 3)), None, "no record was so far");
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
        /// The program of ibv_get_cq_event(3), in every order of its steps and the card's. It never
        /// sleeps while the queue has an entry.
        #[test]
        fn a_program_that_arms_and_then_empties_the_queue_sees_every_entry(steps in proptest::collection::vec(0u8..3, 1..200)) {
            let mut memory = Memory::new(256);
            let mut cq = memory.queue();
            let (mut produced, mut consumed, mut events, mut sequence) = (0u32, 0u32, 0u32, 0u8);
            // The program has written the arm record and rung the doorbell; next it empties the
            // queue.
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
                            let fires = cq.rung(arm);
                            proptest::prop_assert!(fires.is_some(), "a mistake that is none");
                            events += u32::from(fires == Some(Fires(true)));
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
                events += u32::from(cq.rung(arm) == Some(Fires(true)));
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
}
