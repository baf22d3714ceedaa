//! Ranks that a signal stops: given up by default, and waited for by cards that are asked to.

use crate::death::{VICTIM, WITHIN, team};
use crate::ranks::{LONG, Ranks, ended_well};
use gdsync_notify::NotifyError;
use gdsync_test_support::process::role;
use softhca::card::STOPPED_VARIABLE;
use std::process::Child;
use std::time::{Duration, Instant};

/// The state of a process: `T` if stopped.
fn state_of(process: u32) -> char {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap()
}

fn signal(process: &Child, number: i32) {
    // SAFETY: a signal to a child that was not waited for.
    assert_eq!(unsafe { libc::kill(process.id() as libc::pid_t, number) }, 0);
}

fn be_stopped() {
    // SAFETY: a signal to this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
}

/// Starts three ranks, one of which stops itself, and returns them once it has.
fn three(test: &'static str, stopped: &str) -> (Ranks, [Child; 3]) {
    let ranks = Ranks::new(module_path!(), test, 3);
    let children = [(0, "live"), (1, "live"), (VICTIM, "stop")]
        .map(|(rank, role)| ranks.command(rank, role).env(STOPPED_VARIABLE, stopped).spawn().unwrap());
    let started = Instant::now();
    while state_of(children[VICTIM as usize].id()) != 'T' {
        assert!(started.elapsed() < LONG, "it does not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
    (ranks, children)
}

#[test]
fn a_rank_that_is_stopped_is_given_up() {
    const TEST: &str = "a_rank_that_is_stopped_is_given_up";
    let Some(role) = role() else {
        let (_ranks, [first, second, mut stopped]) = three(TEST, "expire");
        [first, second].into_iter().for_each(|child| _ = ended_well(child));
        signal(&stopped, libc::SIGKILL);
        stopped.wait().unwrap();
        return;
    };
    let team = team(1);
    let segment = team.allocate(64, 3).unwrap();
    segment.expect_from(2..3, VICTIM).unwrap();
    team.barrier().unwrap();
    if role == "stop" {
        be_stopped();
    }
    let started = Instant::now();
    let waited = segment.notify_waitsome(2..3, LONG);
    assert!(matches!(waited, Err(NotifyError::PeerDead { rank: VICTIM, .. })), "{waited:?}");
    assert!(started.elapsed() < WITHIN, "{:?}", started.elapsed());
    assert_eq!(team.shrink().unwrap(), [VICTIM]);
    team.barrier().unwrap();
}

#[test]
fn a_rank_that_is_stopped_is_waited_for_where_cards_are_asked_to() {
    const TEST: &str = "a_rank_that_is_stopped_is_waited_for_where_cards_are_asked_to";
    let Some(role) = role() else {
        let (_ranks, children) = three(TEST, "wait");
        // Longer than the transport's time-out and the probe period.
        std::thread::sleep(Duration::from_millis(600));
        signal(&children[VICTIM as usize], libc::SIGCONT);
        return children.into_iter().for_each(|child| _ = ended_well(child));
    };
    let team = team(1);
    let segment = team.allocate(64, 3).unwrap();
    segment.expect_from(2..3, VICTIM).unwrap();
    team.barrier().unwrap();
    let queue = team.queue(0).unwrap();
    if role == "stop" {
        be_stopped();
        (0..2).for_each(|to| queue.notify(to, &segment, 2, 1).unwrap());
    } else {
        queue.notify(VICTIM, &segment, team.rank(), 1).unwrap();
        assert_eq!(segment.notify_waitsome(0..3, LONG).unwrap(), Some(2));
    }
    queue.flush(LONG).unwrap();
    // Before the barrier: a rank that has passed it may leave and then counts as dead.
    assert_eq!(team.dead(), []);
    team.barrier().unwrap();
}
