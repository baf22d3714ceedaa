use super::*;
use crate::util::contain::tests::Bomb;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);

/// A task that reports `Progress` until `looks` is 0, and then `Done`.
#[derive(Default)]
struct Countdown {
    left: AtomicU32,
    looks: AtomicU32,
    thread: AtomicI32,
}

impl Task for Countdown {
    fn poll(&self) -> Polled {
        // SAFETY: `gettid` has no preconditions.
        self.thread.store(unsafe { libc::gettid() }, Ordering::Relaxed);
        self.looks.fetch_add(1, Ordering::Release);
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left.is_ok() { Polled::Progress } else { Polled::Done }
    }
}

fn countdown(poller: &Poller, looks: u32) -> Arc<Countdown> {
    let task = Arc::new(Countdown { left: AtomicU32::new(looks), ..Countdown::default() });
    poller.add(task.clone());
    task
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The poller has dropped the task.
fn ended<T>(task: &Arc<T>) -> bool {
    Arc::strong_count(task) == 1
}

#[test]
fn tasks_are_polled_until_they_are_done() {
    static POLLER: Poller = Poller::new("poller-test");
    let early = countdown(&POLLER, 0);
    POLLER.start().unwrap();
    POLLER.start().unwrap();
    let tasks: Vec<_> = (0..10).map(|looks| countdown(&POLLER, looks)).collect();
    eventually("the tasks end", || ended(&early) && tasks.iter().all(ended));
    for (looks, task) in (1..).zip(&tasks) {
        assert_eq!(task.looks.load(Ordering::Acquire), looks);
        assert_eq!(task.thread.load(Ordering::Relaxed), early.thread.load(Ordering::Relaxed));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn the_thread_has_the_name_and_sleeps_while_there_is_no_task() {
    static POLLER: Poller = Poller::new("poller-sleeps");
    POLLER.start().unwrap();
    for _ in 0..3 {
        let task = countdown(&POLLER, 5);
        eventually("the task ends", || ended(&task));
        let thread = format!("/proc/self/task/{}", task.thread.load(Ordering::Relaxed));
        assert_eq!(std::fs::read_to_string(format!("{thread}/comm")).unwrap().trim(), POLLER.name);
        // A thread that pauses between two looks gives up the core at least every 500 µs.
        let switches = || {
            let status = std::fs::read_to_string(format!("{thread}/status")).unwrap();
            status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap().to_owned()
        };
        eventually("the thread sleeps", || {
            let before = switches();
            thread::sleep(Duration::from_millis(50));
            switches() == before
        });
    }
}

#[test]
fn a_task_that_panics_ends_alone() {
    struct Panics;
    impl Task for Panics {
        fn poll(&self) -> Polled {
            panic!("out of cheese")
        }
    }
    static POLLER: Poller = Poller::new("poller-panics");
    POLLER.start().unwrap();
    let (before, panics) = (countdown(&POLLER, 1000), Arc::new(Panics));
    POLLER.add(panics.clone());
    let after = countdown(&POLLER, 1000);
    eventually("the tasks end", || ended(&before) && ended(&panics) && ended(&after));
    for task in [before, after] {
        assert_eq!(task.looks.load(Ordering::Acquire), 1001);
    }
}

#[test]
fn neither_a_payload_nor_a_task_whose_drop_panics_ends_the_thread() {
    struct Panics;
    impl Task for Panics {
        fn poll(&self) -> Polled {
            std::panic::panic_any(Bomb)
        }
    }
    struct Holds(Bomb);
    impl Task for Holds {
        fn poll(&self) -> Polled {
            let _bomb = &self.0;
            Polled::Done
        }
    }
    static POLLER: Poller = Poller::new("poller-bombs");
    POLLER.start().unwrap();
    POLLER.add(Arc::new(Panics));
    POLLER.add(Arc::new(Holds(Bomb)));
    let after = countdown(&POLLER, 1000);
    eventually("the task ends", || ended(&after));
    assert_eq!(after.looks.load(Ordering::Acquire), 1001);
}

#[test]
fn a_thread_that_does_not_start_is_an_error_and_is_tried_again() {
    static POLLER: Poller = Poller::new("poller-fails");
    let too_much = thread::Builder::new().stack_size(1 << 60);
    assert!(POLLER.start_as(too_much).is_err());
    let task = countdown(&POLLER, 3);
    assert!(!ended(&task));
    POLLER.start().unwrap();
    eventually("the task ends", || ended(&task));
}
