//! Completion queues, the card's side.
//!
//! Arming: a program writes what it wants into its record, and then rings the register at 0x20. All queues of a program share
//! that register, so a second doorbell may come before the card has seen the first. So the card takes the *records* of all
//! queues whenever the register rings: it leaves a value there that no arm has, so that every arm, even one that repeats the
//! one before, is seen as new, and is seen once.

use super::config::CqAttributes;
use super::dma::{CqRing, Record};
use gdsync_sys::prm::cqe::Cqe64;
use gdsync_sys::prm::doorbell::{self, CqArm};

/// The queue was full: the program has not made room in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overrun {
    /// This is the first time: whoever must know is told now.
    pub(super) first: bool,
}

/// Whether the program that armed the queue is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) struct Fires(pub(super) bool);

/// What the card leaves in an arm record that it has taken: sequence numbers have 2 bits of the highest 4.
const TAKEN: u32 = u32::MAX;

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    ring: CqRing,
    consumer: Record,
    arm_record: Record,
    /// What it is armed for, until that happens.
    armed: Option<CqArm>,
    /// The arm that was taken from the record before its own doorbell was seen, which may still come.
    taken_early: Option<CqArm>,
    produced: u32,
    /// Entries written when the program was last told: it looks for those anyway, so another arm is about later ones
    /// (as the field `last_notified_index` of mlx5's completion queue context suggests; what hardware does with it is not
    /// published).
    notified: u32,
    /// Where the last entry is that is solicited or an error.
    last_solicited: Option<u32>,
    dead: bool,
    /// Queue pairs that complete here, counted once for each of their two queues.
    pub(super) users: u32,
}

impl Cq {
    pub(super) fn new(ring: CqRing, consumer: Record, arm_record: Record) -> Self {
        arm_record.exchange(TAKEN);
        Cq {
            ring,
            consumer,
            arm_record,
            armed: None,
            taken_early: None,
            produced: 0,
            notified: 0,
            last_solicited: None,
            dead: false,
            users: 0,
        }
    }

    /// Where it is.
    pub(super) fn attributes(&self) -> CqAttributes {
        CqAttributes {
            entries: self.ring.entries(),
            produced: self.produced & 0xff_ffff,
            consumed: doorbell::ci_value(self.consumer.load()),
            armed: self.armed.map(|arm| arm.is_solicited_only()),
            overrun: self.dead,
        }
    }

    /// Writes the next entry.
    pub(super) fn write(&mut self, cqe: Cqe64) -> Result<Fires, Overrun> {
        let consumed = doorbell::ci_value(self.consumer.load());
        let used = self.produced.wrapping_sub(consumed) & 0xff_ffff;
        if self.dead || used >= self.ring.entries() {
            let first = !self.dead;
            self.dead = true;
            return Err(Overrun { first });
        }
        let owner = (self.produced >> self.ring.entries().trailing_zeros()) & 1 == 1;
        self.ring.write(self.produced, &cqe.with_owner(owner));
        let solicited = cqe.is_solicited() || cqe.is_error();
        if solicited {
            self.last_solicited = Some(self.produced);
        }
        self.produced = self.produced.wrapping_add(1);
        let fires = self.armed.take_if(|arm| solicited || !arm.is_solicited_only()).is_some();
        if fires {
            self.notified = self.produced;
        }
        Ok(Fires(fires))
    }

    /// The doorbell of this queue rang with an arm. `None` where the record does not say the same, which the program should
    /// have seen to; the doorbell counts then.
    pub(super) fn rung(&mut self, arm: CqArm) -> Option<Fires> {
        let early = self.taken_early.take();
        match self.arm_record.exchange(TAKEN) {
            TAKEN if early == Some(arm) => Some(Fires(false)),
            TAKEN => None,
            record => {
                // A program that arms again at once may have written its next record before the first doorbell was seen.
                let next = CqArm::from_record(record);
                self.taken_early = (next != arm).then_some(next);
                Some(self.arm(next))
            }
        }
    }

    /// Another queue's doorbell rang: perhaps this one's did, too, just before.
    pub(super) fn look_at_arm_record(&mut self) -> Fires {
        match self.arm_record.exchange(TAKEN) {
            TAKEN => Fires(false),
            record => {
                let arm = CqArm::from_record(record);
                self.taken_early = Some(arm);
                self.arm(arm)
            }
        }
    }

    /// Arms the queue; fires at once where such an entry is there already, of which the program has neither been told nor
    /// says that it has consumed it.
    ///
    /// No entry is lost to a program that arms and then empties the queue, as ibv_get_cq_event(3) asks. Say that such a program
    /// sleeps, and an entry is there. If it was written after the arm was taken, it fires. If before, then it is not consumed,
    /// and where it is among those that were told of, that event came after it: one that the program had read before it armed
    /// would have let it see the entry, and one that it has not read wakes it.
    ///
    /// A queue that is armed for every entry stays so when it is armed for solicited ones (IB specification, 11.4.2.2).
    pub(super) fn arm(&mut self, arm: CqArm) -> Fires {
        let unconsumed = self.produced.wrapping_sub(arm.consumer_index()) & 0xff_ffff;
        let unseen = unconsumed.min(self.produced.wrapping_sub(self.notified));
        // More than the ring holds is an index that cannot be: from before a lap, or ahead of the card.
        let is_there = 0 < unseen && unconsumed <= self.ring.entries();
        let counts = if arm.is_solicited_only() {
            self.last_solicited.is_some_and(|last| self.produced.wrapping_sub(last) <= unseen)
        } else {
            true
        };
        let fires = is_there && counts;
        if fires {
            self.armed = None;
            self.notified = self.produced;
        } else if self.armed.is_none_or(|earlier| earlier.is_solicited_only()) {
            self.armed = Some(arm);
        }
        Fires(fires)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync_sys::prm::cqe::{CqeOpcode, Syndrome};
    use gdsync_sys::prm::wqe::Opcode;

    /// Memory of a queue that outlives it.
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
                let ring = CqRing::new(self.ring.as_mut_ptr().cast(), entries);
                Cq::new(ring, Record::new(record), Record::new(record.add(1)))
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
        assert_eq!(cq.write(good(false)), Ok(Fires(false)), "and only once");
        assert_eq!(cq.arm(CqArm::new(1, false, 2)), Fires(false), "both have been seen");
    }

    #[test]
    fn an_entry_is_told_of_once_whether_consumed_or_not() {
        let mut memory = Memory::new(8);
        let mut cq = memory.queue();
        assert_eq!(cq.arm(CqArm::new(0, false, 0)), Fires(false));
        assert_eq!(cq.write(good(false)), Ok(Fires(true)));
        // As programs do: fetch the event, arm again, and only then poll.
        assert_eq!(cq.arm(CqArm::new(1, false, 0)), Fires(false), "it has been told of that one");
        assert_eq!(cq.write(good(false)), Ok(Fires(true)));
        assert_eq!(cq.write(good(false)), Ok(Fires(false)));
        assert_eq!(cq.arm(CqArm::new(2, false, 0)), Fires(true), "there is a third, of which it has not");
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
        assert_eq!(cq.look_at_arm_record(), Fires(false));
        let first = CqArm::new(0, false, 0);
        memory.write_arm(first);
        assert_eq!(cq.look_at_arm_record(), Fires(false), "armed, though its word is that of a new record");
        assert_eq!(cq.write(good(false)), Ok(Fires(true)));
        assert_eq!(cq.rung(first), Some(Fires(false)), "its own doorbell, late: the arm has fired");
        memory.write_arm(first);
        assert_eq!(cq.rung(first), Some(Fires(false)), "the same words again are another arm");
        assert_eq!(cq.write(good(false)), Ok(Fires(true)));
        assert_eq!(cq.rung(first), None, "a doorbell without a record");
    }

    #[test]
    fn a_record_that_is_ahead_of_its_doorbell_arms_once() {
        let mut memory = Memory::new(8);
        let mut cq = memory.queue();
        let (first, second) = (CqArm::new(0, false, 0), CqArm::new(1, false, 0));
        memory.write_arm(second);
        assert_eq!(cq.rung(first), Some(Fires(false)), "the first doorbell finds the second record");
        assert_eq!(cq.write(good(false)), Ok(Fires(true)));
        assert_eq!(cq.rung(second), Some(Fires(false)), "known already");
        assert_eq!(cq.write(good(false)), Ok(Fires(false)), "armed once, told of once");
        assert_eq!(cq.rung(second), None);
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
        /// A program as ibv_get_cq_event(3) shows it, in every order of its steps and the card's: it never sleeps beside an entry.
        #[test]
        fn whoever_arms_and_then_empties_the_queue_is_told_of_every_entry(steps in proptest::collection::vec(0u8..3, 1..200)) {
            let mut memory = Memory::new(256);
            let mut cq = memory.queue();
            let (mut produced, mut consumed, mut events, mut sequence) = (0u32, 0u32, 0u32, 0u8);
            // Arming: the record is written, and the doorbell on its way. Then the program has the queue to empty.
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
                            events += u32::from(cq.rung(arm) == Some(Fires(true)));
                        } else {
                            events += u32::from(cq.look_at_arm_record().0);
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
            "dead is dead"
        );
    }
}
