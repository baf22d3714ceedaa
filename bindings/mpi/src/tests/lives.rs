//! Random lives of queues: lists of transfers and barriers are started, awaited and aborted at random. When all requests
//! are aborted, every stream ends, and no thread is left once everything is dropped, in any order.
//!
//! `GDSYNC_LIVES_SECONDS` is the time of the test (default 3 s), `GDSYNC_LIVES_SEED` the seed of its first life.

use super::{matched, memory, pair, queue, request, started, transfer};
use crate::request::{Request, RequestKind};
use gdsync_test_support::lives::{self, Random, threads};
use gdsync_test_support::process::alone;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const PAIRS: usize = 3;
const QUEUES: usize = 2;

/// Lives a life. Returns the number of lists that were started.
fn live(seed: u64) -> usize {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let memory: Vec<_> = (0..2 * PAIRS).map(|_| memory(&[1; 64])).collect();
    let mut requests: Vec<_> = (0..).zip(&memory).map(|(at, one)| transfer(at % 2 == 0, one)).collect();
    requests.chunks(2).for_each(|both| assert_eq!(pair(&both[0], &both[1]).unwrap(), 64));
    let barriers: Vec<_> = (0..2).map(|rank| request(RequestKind::Barrier { rank, size: 2 })).collect();
    matched(&barriers).unwrap();
    requests.extend(barriers);
    let queues: Vec<_> = (0..QUEUES).map(|_| queue()).collect();
    let mut lists = 0;
    for _ in 0..10 + random.below(40) {
        let queue = &queues[random.below(QUEUES)];
        match random.below(9) {
            0..5 => {
                let list: Vec<&Arc<Request>> = requests.iter().filter(|_| random.below(4) == 0).collect();
                lists += usize::from(started(queue, &list).is_ok());
            }
            5..8 => _ = queue.enqueue_wait(),
            // A failure ends most of what follows.
            _ if random.below(8) == 0 => requests[random.below(requests.len())].abort(),
            _ => {}
        }
    }
    requests.iter().for_each(|request| request.abort());
    for queue in &queues {
        let has_ended = queue.stream.synchronize(LONG).unwrap();
        assert!(has_ended, "life {seed} waits: {:?}", queue.stream.explain_wait());
    }
    let requests = requests.into_iter().map(|one| Box::new(one) as Box<dyn Any>);
    let mut parts: Vec<_> = requests.chain(queues.into_iter().map(|one| Box::new(one) as _)).collect();
    while !parts.is_empty() {
        drop(parts.swap_remove(random.below(parts.len())));
    }
    lists
}

#[test]
fn streams_of_queues_end_when_their_requests_are_aborted() {
    if !alone(module_path!(), "streams_of_queues_end_when_their_requests_are_aborted", &[]) {
        return;
    }
    let (seconds, first) = lives::settings();
    // The first life opens the card of the process.
    let mut lists = live(first);
    let (mut seed, end, own) = (first + 1, Instant::now() + Duration::from_secs(seconds), threads());
    while Instant::now() < end {
        lists += live(seed);
        let deadline = Instant::now() + LONG;
        // Any stream reaps the work of dropped streams.
        while threads() > own {
            assert!(Instant::now() < deadline, "a stream of life {seed} still waits");
            drop(queue());
            std::thread::sleep(Duration::from_millis(1));
        }
        seed += 1;
    }
    eprintln!("{} lives, {lists} lists, {own} threads before and after", seed - first);
    assert!(lists > 10, "{lists} lists");
}
