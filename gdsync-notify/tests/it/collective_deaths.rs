//! Collectives whose members die: the waits of the others end, their checks name the death, and they go on without it.

use crate::collectives::{Wrong, plans, round, soft, synchronize};
use crate::death::{VICTIM, WITHIN, be_killed, team};
use crate::ranks::{LONG, Ranks, config, domain, each_on_a_thread, ended_well};
use gdsync::ConnectOptions;
use gdsync_notify::collective::{Collective, CollectiveError, Collectives, Element, Operation};
use gdsync_notify::{ConnectionKind, NotifyError, Team};
use gdsync_test_support::process::role;

#[test]
fn a_check_finds_a_death_whose_gap_another_rank_has_passed_on() {
    let pd = domain();
    each_on_a_thread(4, |bootstrap| {
        // In the tree, rank 2 forwards the root's data to rank 3. A time-out of 0 finds no dead rank.
        let timeout = if bootstrap.rank() == 3 { 0 } else { 14 };
        let config = config().connect(ConnectOptions::default().timeout(timeout));
        let team = Team::new(&pd, bootstrap, config).unwrap();
        let plan = plans(&team, 0, &[Collective::Broadcast { root: 0, len: 64 }]).remove(0);
        let stream = soft();
        if team.rank() != 0 {
            plan.post(&stream).unwrap();
        }
        team.barrier().unwrap();
        if team.rank() == 0 {
            return;
        }
        synchronize(&stream);
        let found = plan.check();
        let is_dead = matches!(&found, Err(CollectiveError::Notify(NotifyError::PeerDead { rank: 0, .. })));
        assert!(is_dead, "rank {}: {found:?}", team.rank());
        assert_eq!(team.shrink().unwrap(), [0]);
        // Rank 3 would wait in `shrink` for ranks that have left.
        team.barrier().unwrap();
    });
}

#[test]
fn a_check_finds_connections_that_have_failed_between_two_other_ranks() {
    let pd = domain();
    each_on_a_thread(4, |bootstrap| {
        let team = Team::new(&pd, bootstrap, config().connections(ConnectionKind::Each)).unwrap();
        // In the tree, rank 2 forwards the root's data to rank 3.
        let plan = plans(&team, 0, &[Collective::Broadcast { root: 0, len: 64 }]).remove(0);
        let stream = soft();
        if team.rank() > 1 {
            plan.post(&stream).unwrap();
        }
        team.barrier().unwrap();
        if team.rank() == 0 {
            team.queue(0).unwrap().queue_pair(2).unwrap().abort().unwrap();
        }
        if team.rank() > 1 {
            synchronize(&stream);
            let found = plan.check();
            let is_right = match &found {
                Err(CollectiveError::Notify(NotifyError::Failed { rank: 0, .. })) => team.rank() == 2,
                Err(CollectiveError::Cut { ranks: (0, 2) }) => team.rank() == 3,
                _ => false,
            };
            assert!(is_right, "rank {}: {found:?}", team.rank());
        }
        team.barrier().unwrap();
    });
}

#[test]
fn a_death_in_the_middle_of_rounds_ends_the_waits_of_all_others() {
    const TEST: &str = "a_death_in_the_middle_of_rounds_ends_the_waits_of_all_others";
    let Some(role) = role() else {
        let ranks = Ranks::new(module_path!(), TEST, 4);
        let spawn = |rank| ranks.spawn(rank, if rank == VICTIM { "die" } else { "live" });
        let children: Vec<_> = (0..4).map(spawn).collect();
        for (rank, child) in (0..).zip(children) {
            if rank == VICTIM {
                assert!(!child.wait_with_output().unwrap().status.success());
            } else {
                ended_well(child);
            }
        }
        return;
    };
    // A queue for the stream that the death ends, and one to start over.
    let team = team(2);
    let kinds = [
        Collective::AllToAll { block: 5000 },
        Collective::Barrier,
        Collective::Broadcast { root: 3, len: 100 },
        Collective::AllGather { block: 64 },
        Collective::ReduceScatter { block: 64, element: Element::U64, operation: Operation::Min },
    ];
    let (plans_of_all, stream, wrong) = (plans(&team, 0, &kinds), soft(), Wrong::default());
    let mut ended = None;
    for at in 0.. {
        let plan = &plans_of_all[at % kinds.len()];
        if role == "die" && at == 101 {
            // After the earlier rounds and before a barrier.
            stream.launch(|| be_killed()).unwrap();
        }
        if let Err(error) = plan.post(&stream) {
            ended = Some(error);
            break;
        }
        assert!(at < 100_000, "no rank has died");
    }
    assert!(stream.synchronize_timeout(WITHIN).unwrap(), "the stream is stuck: {:?}", stream.oldest_wait());
    let is_dead = |error: &CollectiveError| match error {
        CollectiveError::Notify(error @ NotifyError::PeerDead { rank: VICTIM, .. }) => {
            assert!(error.to_string().starts_with("rank 2 is dead, as "), "{error}");
            true
        }
        _ => false,
    };
    assert!(ended.as_ref().is_some_and(is_dead), "{ended:?}");
    for plan in &plans_of_all {
        let errors = [plan.check().unwrap_err(), plan.post(&stream).unwrap_err()];
        assert!(errors.iter().all(is_dead), "{errors:?}");
    }
    let error = Collectives::new(&team.queue(1).unwrap(), plans_of_all[0].segment());
    assert!(is_dead(&error.unwrap().plan(Collective::Barrier).unwrap_err()));
    assert_eq!(team.shrink().unwrap(), [VICTIM]);
    for plan in &plans_of_all {
        let errors = [plan.check().unwrap_err(), plan.post(&stream).unwrap_err()];
        let is_ended = |error: &CollectiveError| matches!(error, CollectiveError::Ended { rank: VICTIM });
        assert!(errors.iter().all(is_ended), "{errors:?}");
    }
    // The survivors continue with a new segment and new plans.
    let (plans, stream) = (plans(&team, 1, &kinds), soft());
    assert_eq!(plans[0].members(), [0, 1, 3]);
    for _ in 0..50 {
        plans.iter().for_each(|plan| round(&stream, plan, team.rank(), &wrong, None));
    }
    synchronize(&stream);
    plans.iter().for_each(|plan| plan.check().unwrap());
    assert_eq!(wrong.count(), 0, "wrong outputs of rank {}", team.rank());
    team.queue(1).unwrap().flush(LONG).unwrap();
    team.barrier().unwrap();
}
