//! Queue pairs of the program, connected by a bootstrap.

use crate::ranks::{LONG, domain};
use gdsync::{
    Access, ConnectOptions, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest,
};
use gdsync_notify::bootstrap::Bootstrap;
use gdsync_notify::{Connection, NotifyError};

fn queue_pair(pd: &ProtectionDomain) -> QueuePair {
    QueuePair::new(pd, QueuePairConfig::default()).unwrap()
}

/// Runs each rank on its own thread.
fn ranks<T: Send>(size: u32, rank: impl Fn(Bootstrap) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let all = Bootstrap::threads(size, LONG).unwrap();
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(|| rank(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Sends its number to the next rank, and returns the number that arrives.
fn neighbour(bootstrap: &mut Bootstrap) -> u8 {
    let pd = domain();
    // The program moves the first one through its states in other languages.
    let (next, before) = (QueuePair::unmanaged(&pd, QueuePairConfig::default()).unwrap(), queue_pair(&pd));
    let (rank, size) = (bootstrap.rank(), bootstrap.size());
    let previous = (rank + size - 1) % size;
    let memory = MemoryRegion::allocate(&pd, 2, Access::LOCAL_WRITE).unwrap();
    before.post_recv(&[memory.slice(1..2).unwrap()], 1).unwrap();
    let connections = [
        Connection { queue_pair: &next, rank: (rank + 1) % size, tag: rank },
        Connection { queue_pair: &before, rank: previous, tag: previous },
    ];
    bootstrap.connect(&connections, ConnectOptions::default()).unwrap();
    memory.write(0, &[rank as u8 + 10]);
    next.post_send(WorkRequest::send(&[memory.slice(0..1).unwrap()])).unwrap();
    for queue in [next.send_cq(), before.recv_cq()] {
        queue.wait(LONG).unwrap().unwrap().status.unwrap();
    }
    let mut arrived = [0];
    memory.read(1, &mut arrived);
    bootstrap.barrier().unwrap();
    arrived[0]
}

#[test]
fn rings_of_any_size_are_connected_by_one_call() {
    for size in 1..=4 {
        let arrived = ranks(size, |mut bootstrap| neighbour(&mut bootstrap));
        let expected: Vec<u8> = (0..size).map(|rank| 10 + ((rank + size - 1) % size) as u8).collect();
        assert_eq!(arrived, expected, "{size} ranks");
    }
}

#[test]
fn a_queue_pair_without_its_other_side_fails_on_every_rank() {
    let errors = ranks(3, |mut bootstrap| {
        let (pd, rank) = (domain(), bootstrap.rank());
        let own = queue_pair(&pd);
        // Rank 2 has none for rank 1.
        let connections = [Connection { queue_pair: &own, rank: 2, tag: 7 }];
        let connections = if rank == 1 { &connections[..] } else { &[] };
        let error = bootstrap.connect(connections, ConnectOptions::default()).unwrap_err();
        // The exchange is over, and the bootstrap goes on.
        bootstrap.barrier().unwrap();
        error
    });
    assert!(matches!(errors[0], NotifyError::FailedOnRank { rank: 1, .. }), "{}", errors[0]);
    assert_eq!(
        errors[1].to_string(),
        "tag 7: rank 2 has 0 queue pairs to connect with this rank, which has 1: pass one on each side"
    );
    assert!(matches!(errors[2], NotifyError::Unpaired { rank: 1, tag: 7, theirs: 1, ours: 0 }));
}

#[test]
fn a_rank_outside_the_job_fails_on_every_rank() {
    let errors = ranks(2, |mut bootstrap| {
        let pd = domain();
        let own = queue_pair(&pd);
        let rank = if bootstrap.rank() == 0 { 2 } else { 0 };
        let connections = [Connection { queue_pair: &own, rank, tag: 0 }];
        bootstrap.connect(&connections, ConnectOptions::default()).unwrap_err().to_string()
    });
    assert!(errors[0].contains("rank 2 of 2 processes"), "{errors:?}");
    assert!(errors[1].contains("failed on rank 0"), "{errors:?}");
}
