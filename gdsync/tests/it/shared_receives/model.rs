//! Any sequence of receives, messages and failures, against a model of the queues' content.

use super::Bed;
use gdsync::Completion;
use gdsync::verbs::AsyncEventKind;
use gdsync_test_support::pair::poll;
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
enum Step {
    Post,
    Send(usize),
    Poll(usize),
    /// Fails both sides of a pair, polls, and connects them again.
    Renew(usize),
    /// Drops a pair, and replaces it by another.
    Replace(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Post),
        6 => (0..PAIRS).prop_map(Step::Send),
        4 => (0..QUEUES).prop_map(Step::Poll),
        1 => (0..PAIRS).prop_map(Step::Renew),
        1 => (0..PAIRS).prop_map(Step::Replace),
    ]
}

const PAIRS: usize = 3;
const QUEUES: usize = 2;

/// The expected content of the queue pairs, the shared queue and the completion queues.
#[derive(Default)]
struct Model {
    /// Receives that no message has taken, by number.
    posted: VecDeque<u64>,
    /// Messages that arrived, by completion queue: receive, queue pair and content.
    arrived: [VecDeque<(u64, u32, u64)>; QUEUES],
    next: u64,
}

impl Model {
    fn outstanding(&self) -> usize {
        self.posted.len() + self.arrived.iter().map(VecDeque::len).sum::<usize>()
    }
}

fn check(bed: &Bed, completion: &Completion, expected: (u64, u32, u64)) {
    assert_eq!(completion.status, Ok(()));
    assert_eq!((completion.wr_id, completion.qp_num, bed.slot(completion.wr_id)), expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Pairs come, fail and go; every message takes the oldest receive, and nothing overruns.
    #[test]
    fn receives_are_taken_once_whatever_becomes_of_queue_pairs(steps in prop::collection::vec(step(), 1..120)) {
        let bed = Bed::new(15);
        let queues = [bed.queue(8), bed.queue(32)];
        let home = |pair: usize| pair % QUEUES;
        let mut pairs: Vec<_> = (0..PAIRS).map(|pair| bed.pair(&queues[home(pair)])).collect();
        let (mut model, mut contents) = (Model::default(), HashMap::new());
        let room = queues[0].entries().min(bed.receives.depth()) as usize;
        for step in steps {
            match step {
                Step::Post => {
                    let fits = model.outstanding() < room;
                    let posted = bed.post(model.next);
                    prop_assert_eq!(posted.is_ok(), fits, "{:?} with {}", posted, model.outstanding());
                    if fits {
                        model.posted.push_back(model.next);
                        model.next += 1;
                    }
                }
                Step::Send(pair) => if let Some(receive) = model.posted.pop_front() {
                    contents.insert(receive, receive * 7 + pair as u64);
                    pairs[pair].send(contents[&receive]);
                    model.arrived[home(pair)].push_back((receive, pairs[pair].taker.number(), contents[&receive]));
                },
                Step::Poll(queue) => match model.arrived[queue].pop_front() {
                    Some(expected) => check(&bed, &poll(&queues[queue]), expected),
                    None => prop_assert_eq!(queues[queue].poll().unwrap(), None),
                },
                Step::Renew(pair) => {
                    pairs[pair].abort();
                    for expected in model.arrived[home(pair)].drain(..) {
                        check(&bed, &poll(&queues[home(pair)]), expected);
                    }
                    pairs[pair].renew();
                }
                Step::Replace(pair) => {
                    let number = pairs[pair].taker.number();
                    model.arrived[home(pair)].retain(|(_, owner, _)| *owner != number);
                    let gone = pairs.remove(pair);
                    drop(gone);
                    // Its entries stay in the ring until they are polled.
                    for expected in model.arrived[home(pair)].drain(..) {
                        check(&bed, &poll(&queues[home(pair)]), expected);
                    }
                    prop_assert_eq!(queues[home(pair)].poll().unwrap(), None);
                    pairs.insert(pair, bed.pair(&queues[home(pair)]));
                }
            }
            prop_assert_eq!(bed.receives.posted() as usize, model.outstanding());
        }
        let event = bed.device.next_event(Duration::ZERO).unwrap();
        prop_assert!(event.as_ref().is_none_or(|event| event.kind == AsyncEventKind::LastReceive), "{event:?}");
    }
}
