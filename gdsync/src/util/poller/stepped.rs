//! Steps instead of polling threads, for programs of one thread.

use super::{Polled, Task, poll};
use crate::util::contain::drop_contained;
use gdsync_sys::pause::Pause;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

thread_local! {
    static SIMULATED: RefCell<Option<State>> = const { RefCell::new(None) };
}

struct State {
    tasks: Vec<Arc<dyn Task>>,
    /// What cards do while a call waits for them.
    workers: Vec<Worker>,
    start: Instant,
    now: Instant,
}

type Worker = Box<dyn FnMut() -> Option<Duration>>;

/// Runs `work` on the state of this thread's simulation, if there is one.
fn with<R>(work: impl FnOnce(&mut State) -> R) -> Option<R> {
    SIMULATED.try_with(|state| state.borrow_mut().as_mut().map(work)).ok().flatten()
}

pub(super) fn is_simulated() -> bool {
    with(|_| ()).is_some()
}

/// Keeps a task for the steps of this thread's simulation. Returns it if there is none.
pub(super) fn keep(task: Arc<dyn Task>) -> Option<Arc<dyn Task>> {
    let mut task = Some(task);
    with(|state| state.tasks.extend(task.take()));
    task
}

/// The time by which the library decides: that of this thread's simulation, or the system's.
pub(crate) fn now() -> Instant {
    with(|state| state.now).unwrap_or_else(Instant::now)
}

/// The wait of a call that cannot go on before a card has worked.
pub(crate) struct CallWait {
    began: Instant,
    pause: Pause,
}

impl CallWait {
    pub(crate) fn new() -> Self {
        CallWait { began: now(), pause: Pause::new() }
    }

    /// Lets time pass between two looks. Returns false once this time is over, and in a simulation whose cards have all ended.
    pub(crate) fn goes_on(&mut self, limit: Duration) -> bool {
        if now().duration_since(self.began) > limit {
            return false;
        }
        // Out of the state: cards may have the library's memory looked at, or tasks added.
        let Some(mut workers) = with(|state| std::mem::take(&mut state.workers)) else {
            self.pause.pause();
            return true;
        };
        let mut latest = Duration::ZERO;
        workers.retain_mut(|work| work().inspect(|elapsed| latest = latest.max(*elapsed)).is_some());
        let is_alone = workers.is_empty();
        with(|state| {
            state.workers.append(&mut workers);
            state.advance_to(latest);
        });
        !is_alone
    }
}

impl State {
    fn advance_to(&mut self, elapsed: Duration) {
        self.now = self.now.max(self.start + elapsed);
    }
}

/// The library without threads of its own, for a program of one thread that repeats to the bit.
///
/// While it lives, the work that this thread gives to threads of the library (checked waits, persistent requests, collectors,
/// masters, doorbells of the proxy, the flushes of failed queue pairs) is done by [`Self::step`] only, and the library decides by
/// the time of [`Self::advance_to`]. The cards are those of `softhca::card::simulation`, the streams those of
/// [`SoftStream::stepped`](crate::SoftStream::stepped), and no call waits: time-outs are 0. The reset of a queue pair whose
/// trigger has a master cannot go on before the card has stopped, and has the cards work ([`Self::add_worker`]).
///
/// ```
/// use gdsync::stream::Simulation;
/// let simulation = Simulation::new().expect("this thread has no other");
/// assert!(!simulation.step(), "nothing to do");
/// assert!(Simulation::new().is_none());
/// ```
pub struct Simulation {
    /// Its thread's.
    _local: PhantomData<*const ()>,
}

impl Simulation {
    /// Begins one on this thread. `None` if the thread has one.
    pub fn new() -> Option<Simulation> {
        SIMULATED.with_borrow_mut(|state| {
            let now = Instant::now();
            let is_first = state.is_none();
            is_first.then(|| {
                *state = Some(State { tasks: Vec::new(), workers: Vec::new(), start: now, now });
                Simulation { _local: PhantomData }
            })
        })
    }

    /// Does what there is to do once. Returns whether something was new.
    pub fn step(&self) -> bool {
        let mut tasks = with(|state| std::mem::take(&mut state.tasks)).unwrap_or_default();
        let mut progress = false;
        tasks.retain(|task| {
            let polled = poll("simulation", &**task);
            progress |= polled != Polled::Nothing;
            polled != Polled::Done
        });
        with(|state| {
            tasks.append(&mut state.tasks);
            state.tasks = tasks;
        });
        progress
    }

    /// Moves the time forward, to this long after the beginning.
    pub fn advance_to(&self, elapsed: Duration) {
        with(|state| state.advance_to(elapsed));
    }

    /// Adds what a card does while a call waits for it: a bounded amount of work. `work` returns the time since the beginning,
    /// to which it has moved, or `None` once the card has ended. Without any, calls take the card for one that does not answer.
    pub fn add_worker(&self, work: impl FnMut() -> Option<Duration> + 'static) {
        with(|state| state.workers.push(Box::new(work)));
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = with(|state| state.tasks.len());
        f.debug_struct("Simulation").field("tasks", &tasks).finish_non_exhaustive()
    }
}

impl Drop for Simulation {
    /// The remaining tasks are dropped.
    fn drop(&mut self) {
        // Their drop may add others.
        while let Some(task) = with(|state| state.tasks.pop()).flatten() {
            drop_contained(task, "what a polling task held");
        }
        SIMULATED.with_borrow_mut(|state| *state = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::util::poller::Poller;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Adds another task with its first poll, and is done after some more.
    struct Countdown(Arc<AtomicUsize>, bool);

    static POLLER: Poller = Poller::new("of a simulation");

    impl Task for Countdown {
        fn poll(&self) -> Polled {
            if self.1 {
                POLLER.add(Arc::new(Countdown(self.0.clone(), false)));
                return Polled::Done;
            }
            match self.0.fetch_sub(1, Ordering::Relaxed) {
                1 => Polled::Done,
                _ => Polled::Nothing,
            }
        }
    }

    #[test]
    fn a_call_that_waits_has_the_cards_work_until_its_time_is_over_or_they_have_ended() {
        let simulation = Simulation::new().unwrap();
        let limit = Duration::from_secs(3600);
        assert!(!CallWait::new().goes_on(limit), "no card");
        let turn = Arc::new(AtomicUsize::new(0));
        let turns = turn.clone();
        simulation.add_worker(move || {
            let hour = turns.fetch_add(1, Ordering::Relaxed);
            (hour < 4).then(|| Duration::from_secs(3600 * hour as u64))
        });
        let mut first = CallWait::new();
        assert!(
            first.goes_on(limit) && first.goes_on(limit) && first.goes_on(limit) && !first.goes_on(limit)
        );
        assert_eq!(turn.load(Ordering::Relaxed), 3);
        let mut second = CallWait::new();
        assert!(second.goes_on(limit) && !second.goes_on(limit), "the card has ended");
        assert!(!second.goes_on(limit) && turn.load(Ordering::Relaxed) == 5);
    }

    #[test]
    fn the_thread_that_simulates_polls_its_tasks_itself() {
        let simulation = Simulation::new().unwrap();
        POLLER.start().unwrap();
        let left = Arc::new(AtomicUsize::new(2));
        POLLER.add(Arc::new(Countdown(left.clone(), true)));
        assert!(simulation.step() && left.load(Ordering::Relaxed) == 2, "it has added another");
        assert!(!simulation.step() && left.load(Ordering::Relaxed) == 1);
        assert!(simulation.step() && !simulation.step());
        let before = now();
        simulation.advance_to(Duration::from_secs(3600));
        assert!(now() >= before + Duration::from_secs(3600));
        POLLER.add(Arc::new(Countdown(left.clone(), false)));
        drop(simulation);
        assert_eq!((Arc::strong_count(&left), now() < before + Duration::from_secs(1800)), (1, true));
    }
}
