//! Deaths end waits once the living ranks have been told of them.

use super::*;
use gdsync::ConnectOptions;
use gdsync_sys::pause::Pause;
use gdsync_test_support::pair;

const SIZE: u32 = 3;
/// More messages than a rank's card has receives, and than are in flight.
const MESSAGES: u32 = 40;

/// The controls of a team, in which rank 1 takes no messages, and rank 0 knows that rank 2 is dead.
fn told_of_a_death() -> (Vec<Control>, Vec<Liveness>) {
    let pd = ProtectionDomain::new(&pair::device()).unwrap();
    let connect = ConnectOptions::default().timeout(20).rnr_retry(7);
    let options = ControlOptions { connect, period: pair::LONG };
    let config = QueuePairConfig::default();
    let control = |rank| Control::new(&pd, config, None, (rank, SIZE), options).unwrap();
    let mut all: Vec<_> = (0..SIZE).map(control).collect();
    for own in 0..SIZE {
        for other in (0..SIZE).filter(|other| *other != own) {
            let remote = all[other as usize].endpoint(own).unwrap().unwrap();
            all[own as usize].connect(other, &remote).unwrap();
        }
    }
    let liveness: Vec<_> = (0..SIZE).map(|_| Liveness::new(SIZE)).collect();
    (0..MESSAGES).for_each(|_| all[0].withdraw(&liveness[0]));
    all[0].handle(vec![(1, Message::Dead { epoch: 0, dead: [2].into() })]);
    all[0].poll(&liveness[0]);
    assert!(!liveness[0].is_alive(2));
    (all, liveness)
}

fn until(mut is_done: impl FnMut() -> bool) {
    let mut pause = Pause::new();
    while !is_done() {
        assert!(pause.elapsed() < pair::LONG);
        pause.pause();
    }
}

#[test]
fn a_death_ends_no_wait_before_all_living_ranks_have_the_message() {
    let (mut all, liveness) = told_of_a_death();
    assert!(!all[0].release(&liveness[0]));
    assert_eq!(liveness[0].wait_enders().all, None);
    until(|| {
        all[1].poll(&liveness[1]);
        all[0].release(&liveness[0])
    });
    assert!(liveness[0].wait_enders().all.is_some());
    // A rank that looks now knows of it.
    all[1].poll(&liveness[1]);
    assert!(!liveness[1].is_alive(2));
}

#[test]
fn a_rank_that_takes_no_messages_delays_the_end_of_waits_for_a_time_only() {
    let (mut all, liveness) = told_of_a_death();
    assert!(!all[0].release(&liveness[0]));
    all[0].told_at = Instant::now();
    assert!(all[0].release(&liveness[0]));
    assert!(liveness[0].wait_enders().all.is_some() && liveness[0].is_alive(1));
}
