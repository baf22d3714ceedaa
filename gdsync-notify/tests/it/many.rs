//! Teams of many ranks in one process, each a thread with its own stream.

use crate::ranks::{Prepare, domain, each_within};
use gdsync::{Batch, SoftStream, Stream};
use gdsync_notify::{ConnectionKind, NotifyError, Operation, Team, TeamConfig, WaitNotification};
use gdsync_test_support::process::alone;
use std::time::Duration;

/// Upper limit of any wait, on however busy a machine.
const LONG: Duration = Duration::from_secs(300);
/// Bytes of a message.
const BLOCK: usize = 64;
/// Ranks to which a batch sends: queues have room for the requests.
const TO_AT_ONCE: usize = 32;

/// The message of a round.
fn message(from: u32, to: u32, round: u32) -> [u8; BLOCK] {
    std::array::from_fn(|at| (from * 31 + to * 17 + round * 101 + at as u32 * 7) as u8)
}

/// In each round every rank writes a message to every other, and its stream waits for those of all others. Rounds alternate
/// between two halves of the memory: a rank that has heard from all in one round has been read by all in the last.
fn all_to_all(team: &Team, rounds: u32) {
    let (own, size) = (team.rank(), team.size());
    let half = size as usize * BLOCK;
    let (outbox, inbox) = (team.allocate(2 * half, 0).unwrap(), team.allocate(2 * half, 2 * size).unwrap());
    let (queue, stream) = (team.queue(0).unwrap(), Stream::new(SoftStream::new().unwrap()).unwrap());
    // Ranks start with different ones.
    let others: Vec<u32> = (1..size).map(|distance| (own + distance) % size).collect();
    for round in 0..rounds {
        let base = (round % 2) as usize * half;
        for some in others.chunks(TO_AT_ONCE) {
            let mut batch = Batch::new();
            for to in some {
                let at = base + *to as usize * BLOCK;
                outbox.write(at, &message(own, *to, round)).unwrap();
                let (from, id) = (outbox.slice(at..at + BLOCK).unwrap(), round % 2 * size + own);
                let offset = (base + own as usize * BLOCK) as u64;
                for send in queue
                    .sends(Operation::WriteNotify {
                        from: &from,
                        rank: *to,
                        to: &inbox,
                        offset,
                        id,
                        value: round + 1,
                    })
                    .unwrap()
                {
                    batch = batch.send(send);
                }
            }
            stream.post(batch).unwrap();
        }
        let words: Vec<_> =
            others.iter().map(|from| inbox.notification(round % 2 * size + from).unwrap()).collect();
        stream.post(words.iter().fold(Batch::new(), |batch, word| batch.wait_notification(word))).unwrap();
        stream.synchronize().unwrap();
        for from in &others {
            let mut bytes = [0; BLOCK];
            inbox.read(base + *from as usize * BLOCK, &mut bytes).unwrap();
            assert!(bytes == message(*from, own, round), "round {round}, from {from} to {own}: {bytes:?}");
        }
    }
    queue.flush(LONG).unwrap();
}

fn play(size: u32, rounds: u32, config: &TeamConfig) {
    each_within(LONG, size, |bootstrap| {
        let team = Team::new(&domain(), bootstrap, config.clone()).unwrap();
        all_to_all(&team, rounds);
        team.barrier().unwrap();
    });
}

#[test]
fn a_hundred_ranks_write_to_each_other() {
    play(100, 3, &TeamConfig::default().connections(ConnectionKind::Each));
}

/// Teams of more than 16 ranks use DC by default. `GDSYNC_TEST_RANKS` is the number of ranks: 256 in `.ci/rotation`.
#[test]
fn ranks_with_dynamic_connections_write_to_each_other() {
    let ranks = std::env::var("GDSYNC_TEST_RANKS").map_or(64, |ranks| ranks.parse().unwrap());
    if alone(module_path!(), "ranks_with_dynamic_connections_write_to_each_other", &[]) {
        // Its hundreds of threads yield to other tests, which do not wait so long for each other.
        // SAFETY: the call has no preconditions. It applies to this thread and those that it starts.
        let _ = unsafe { libc::nice(10) };
        play(ranks, 1, &TeamConfig::default());
    }
}

#[test]
fn a_large_team_has_no_queue_pairs_for_kernels_unless_told() {
    each_within(LONG, 65, |bootstrap| {
        let rank = bootstrap.rank();
        let team = Team::new(&domain(), bootstrap, TeamConfig::default()).unwrap();
        let refused = team.queue(0).unwrap().queue_pair(1).unwrap_err();
        assert!(matches!(refused, NotifyError::NoQueuePair { rank: 1 }), "{refused}");
        assert!(rank != 0 || refused.to_string().contains("ConnectionKind::Each"), "{refused}");
        all_to_all(&team, 1);
        team.barrier().unwrap();
    });
}
