//! Threads of the program that poll for completions and do the card's work meanwhile. It is for machines with few
//! cores: there, a thread that polls occupies the core that the card's thread waits for.
//!
//! While such a thread polls, no packet wakes the card's thread: the poller finds it. A poller that has found
//! completions may leave for other work, for example wait for a message in memory. It then announces that the card's
//! thread sleeps, so that a packet wakes that thread at once. But each wake-up takes microseconds of a core, so a poller
//! that has always come back at once does not announce it.
//!
//! No lock protects these words: the card's thread stores `asleep` and then loads `at_work`; a poller that leaves stores
//! `at_work` and then loads `asleep` (all SeqCst), so at least one of them announces the sleep. A poller that leaves
//! without having found anything, or while another thread has the engine's lock, delays a packet by [`NAP`] at most.

use gdsync_sys::host::cores;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest sleep of the card's thread that a thread which polls may make silent.
pub(super) const NAP: Duration = Duration::from_micros(100);

/// Minimum number of steps of pollers between two looks of the card's thread for which it leaves the work to them: a
/// program that polls now and then does fewer.
const MANY: u32 = 16;

/// Most cores on which a thread that polls is in the card's way. With more, the card's thread works beside it.
pub(super) const FEW_CORES: usize = 2;

/// Minimum time between a poll that has found completions and the next one, for a thread that does other work in
/// between. Threads that only handle completions and post take less.
const OTHER_WORK: Duration = Duration::from_micros(5);

/// Number of returns without other work in succession after which a poller is expected to return.
const RETURNS: u32 = 16;

/// Time over which the card's thread counts the steps of pollers, and the number from which on they poll *steadily*:
/// then it neither spins nor sleeps for short times, which would take the core from them.
const WINDOW: Duration = Duration::from_millis(1);
const STEADY: u32 = 32;

/// Number of steps without work in succession after which a poller yields its core.
const PATIENCE: u32 = 8;

/// Returns whether threads that poll should call [`Card::assist`](super::device::Card::assist).
pub fn has_few_cores() -> bool {
    cores() <= FEW_CORES
}

/// The steps of pollers of late, for the card's thread.
#[derive(Debug)]
pub(super) struct Recent {
    since: Instant,
    steps: u32,
    pub(super) is_steady: bool,
}

impl Recent {
    pub(super) fn new() -> Self {
        Recent { since: Instant::now(), steps: 0, is_steady: false }
    }

    pub(super) fn add(&mut self, steps: u32, now: Instant) {
        self.steps += steps;
        if now.duration_since(self.since) >= WINDOW {
            *self = Recent { since: now, steps: 0, is_steady: self.steps >= STEADY };
        }
    }
}

/// What the pollers and the card's thread know of each other.
#[derive(Debug)]
pub(super) struct Pollers {
    start: Instant,
    /// Steps of pollers since the card's thread looked last.
    pub(super) steps: AtomicU32,
    /// True if the latest poll found nothing: its thread will poll again.
    at_work: AtomicBool,
    /// Number of steps without work since the latest one with work or yield.
    in_vain: AtomicU32,
    /// True if the card's thread sleeps, or will after one more look at `at_work`.
    asleep: AtomicBool,
    /// The time at which a poll found completions, in nanoseconds after `start`, until the next poll; 0 without one.
    found: AtomicU64,
    /// Number of times in succession that a poller that had found completions polled again without other work.
    returned: AtomicU32,
}

impl Pollers {
    pub(super) fn new() -> Self {
        Pollers {
            start: Instant::now(),
            steps: AtomicU32::new(0),
            at_work: AtomicBool::new(false),
            in_vain: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            found: AtomicU64::new(0),
            returned: AtomicU32::new(0),
        }
    }

    fn nanoseconds(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_nanos() as u64
    }

    /// Notes a poll that has found nothing.
    pub(super) fn polls(&self, now: Instant) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        let found = self.found.load(Ordering::Relaxed);
        if found != 0 {
            self.found.store(0, Ordering::Relaxed);
            let did_work = self.nanoseconds(now).saturating_sub(found) > OTHER_WORK.as_nanos() as u64;
            let returned = if did_work { 0 } else { self.returned.load(Ordering::Relaxed).saturating_add(1) };
            self.returned.store(returned, Ordering::Relaxed);
        }
        self.at_work.store(true, Ordering::SeqCst);
    }

    /// Returns whether a poller may be at work, without ordering.
    pub(super) fn may_be_at_work(&self) -> bool {
        self.at_work.load(Ordering::Relaxed)
    }

    /// Notes a poll that has found completions. Returns whether its thread must announce the sleep of the card's thread.
    pub(super) fn finds(&self, now: Instant) -> bool {
        self.at_work.store(false, Ordering::SeqCst);
        self.found.store(self.nanoseconds(now), Ordering::Relaxed);
        self.returned.load(Ordering::Relaxed) < RETURNS && self.asleep.load(Ordering::SeqCst)
    }

    /// Notes a step of a poller. Returns whether it has done enough in vain to yield its core.
    pub(super) fn stepped(&self, worked: bool) -> bool {
        let in_vain = if worked { 0 } else { self.in_vain.load(Ordering::Relaxed) + 1 };
        self.in_vain.store(in_vain % PATIENCE, Ordering::Relaxed);
        in_vain == PATIENCE
    }

    /// Returns whether pollers have done much of the work since the last call. Without any step, none is at work.
    pub(super) fn work_much(&self, recent: &mut Recent, now: Instant) -> bool {
        let steps = self.steps.swap(0, Ordering::Relaxed);
        recent.add(steps, now);
        if steps == 0 && self.may_be_at_work() {
            self.at_work.store(false, Ordering::SeqCst);
        }
        steps >= MANY
    }

    /// Notes that the card's thread will sleep, until [`Self::card_wakes_up`]. Returns whether a poller is at work: then no
    /// packet needs to end the sleep, which may last for [`NAP`].
    pub(super) fn card_falls_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        self.at_work.load(Ordering::SeqCst)
    }

    pub(super) fn card_wakes_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poller_that_always_returns_at_once_announces_nothing_until_it_works() {
        let pollers = Pollers::new();
        pollers.asleep.store(true, Ordering::SeqCst);
        let mut now = pollers.start;
        let mut turn = |away: Duration| {
            now += Duration::from_micros(1);
            pollers.polls(now);
            assert!(pollers.at_work.load(Ordering::SeqCst));
            now += Duration::from_micros(1);
            let announces = pollers.finds(now);
            assert!(!pollers.at_work.load(Ordering::SeqCst));
            now += away;
            announces
        };
        let (at_once, later) = (Duration::from_micros(1), OTHER_WORK);
        assert!((0..=RETURNS).all(|turns| turn(at_once) == (turns < RETURNS)));
        assert!(!turn(at_once) && !turn(later));
        assert!(turn(at_once), "it did other work");
    }

    #[test]
    fn a_poller_that_leaves_an_awake_card_announces_nothing() {
        let pollers = Pollers::new();
        pollers.polls(pollers.start);
        assert!(!pollers.finds(pollers.start + OTHER_WORK));
    }

    #[test]
    fn pollers_are_steady_by_their_steps_of_a_window() {
        let mut recent = Recent::new();
        let start = recent.since;
        recent.add(STEADY, start);
        assert!(!recent.is_steady, "the window has just begun");
        recent.add(0, start + WINDOW);
        assert!(recent.is_steady);
        recent.add(STEADY - 1, start + 2 * WINDOW);
        assert!(!recent.is_steady);
    }
}
