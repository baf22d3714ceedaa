//! Collectives on software streams, between ranks as threads and as processes.

use crate::ranks::{LONG, config, domain, on_threads, places_out_of_order};
use gdsync::{SoftStream, Stream};
use gdsync_notify::collective::{
    Collective, CollectiveError, Collectives, Element, Operation, Plan, combine,
};
use gdsync_notify::{NotifyError, Segment, Team};
use gdsync_test_support::pattern;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A rank's bytes for another in a round; they differ by source, destination, round and index.
fn bytes(from: u32, to: u32, round: u64, len: usize) -> Vec<u8> {
    pattern::bytes((u64::from(from) * 131 + u64::from(to) * 61 + round * 29) as u8, len)
}

/// As [`bytes`], as numbers.
pub(crate) fn numbers(from: u32, to: u32, round: u64, len: usize, element: Element) -> Vec<u8> {
    /// The bytes of the number for each byte.
    fn table<const N: usize>(number: impl Fn(i32) -> [u8; N]) -> Vec<u8> {
        (-100..156).map(number).collect::<Vec<[u8; N]>>().into_flattened()
    }
    let table = match element {
        Element::F32 => table(|value| (value as f32 / 7.0).to_ne_bytes()),
        Element::F64 => table(|value| (f64::from(value) / 7.0).to_ne_bytes()),
        Element::I8 => table(|value| (value as i8).to_ne_bytes()),
        Element::U8 => table(|value| (value as u8).to_ne_bytes()),
        Element::I16 => table(|value| (value as i16 * 91).to_ne_bytes()),
        Element::U16 => table(|value| (value as u16).to_ne_bytes()),
        Element::I32 => table(|value| (value << 22).to_ne_bytes()),
        Element::U32 => table(|value| (value as u32).to_ne_bytes()),
        Element::I64 => table(|value| (i64::from(value) << 55).to_ne_bytes()),
        Element::U64 => table(|value| (value as u64).to_ne_bytes()),
        other => panic!("{other}"),
    };
    pattern::spread(&bytes(from, to, round, len / element.bytes()), &table)
}

/// Reduces lists of numbers of equal length in their order. (Unit tests compare `combine` with arithmetic.)
fn reduced(all: Vec<Vec<u8>>, element: Element, operation: Operation) -> Vec<u8> {
    let fold = |mut one: Vec<u8>, other: Vec<u8>| {
        combine(element, operation, &mut one, &other);
        one
    };
    all.into_iter().reduce(fold).unwrap()
}

fn concat(ranks: impl Iterator<Item = u32>, block: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    ranks.map(block).collect::<Vec<_>>().concat()
}

/// A rank's input and expected output of a round.
pub(crate) fn contents(plan: &Plan, rank: u32, round: u64) -> (Vec<u8>, Vec<u8>) {
    let all = plan.members().iter().copied();
    match plan.collective() {
        Collective::Barrier => (Vec::new(), Vec::new()),
        Collective::AllGather { block } => {
            (bytes(rank, 0, round, block), concat(all, |from| bytes(from, 0, round, block)))
        }
        Collective::AllToAll { block } => (
            concat(all.clone(), |to| bytes(rank, to, round, block)),
            concat(all, |from| bytes(from, rank, round, block)),
        ),
        Collective::ReduceScatter { block, element, operation } => (
            concat(all.clone(), |to| numbers(rank, to, round, block, element)),
            reduced(all.map(|from| numbers(from, rank, round, block, element)).collect(), element, operation),
        ),
        Collective::AllReduce { len, element, operation } => {
            let of = |from| numbers(from, 0, round, len, element);
            (of(rank), reduced(all.map(of).collect(), element, operation))
        }
        Collective::Broadcast { root, len } => {
            let input = if rank == root { bytes(root, 0, round, len) } else { Vec::new() };
            (input, bytes(root, 0, round, len))
        }
        other => panic!("{other}"),
    }
}

/// Plans on a segment of exactly their size.
pub(crate) fn plans(team: &Team, queue: u32, all: &[Collective]) -> Vec<Plan> {
    let size = team.members().len() as u32;
    let segment = team.allocate(total(all, size), notifications(all, size)).unwrap();
    let collectives = Collectives::new(&team.queue(queue).unwrap(), &segment).unwrap();
    all.iter().map(|what| collectives.plan(*what).unwrap()).collect()
}

pub(crate) fn total(all: &[Collective], size: u32) -> usize {
    all.iter().map(|what| what.bytes(size).next_multiple_of(64)).sum()
}

pub(crate) fn notifications(all: &[Collective], size: u32) -> u32 {
    all.iter().map(|what| what.notifications(size)).sum()
}

/// Counts wrong rounds and offsets.
#[derive(Clone, Default)]
pub(crate) struct Wrong(Arc<AtomicU32>);

impl Wrong {
    fn check(&self, is_right: bool) {
        self.0.fetch_add(u32::from(!is_right), Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Posts a round: the stream fills the input and checks the output, with `delay` before and after the plan.
pub(crate) fn round(
    stream: &Stream<SoftStream>,
    plan: &Plan,
    rank: u32,
    wrong: &Wrong,
    delay: Option<Duration>,
) {
    let round = plan.round();
    let (input, expected) = contents(plan, rank, round);
    let (segment, at) = (plan.segment().clone(), plan.input(round));
    assert_eq!(at.len(), input.len());
    let pause = move || delay.into_iter().for_each(std::thread::sleep);
    let fill = move || {
        pause();
        segment.write(at.start, &input).unwrap();
    };
    stream.launch(fill).unwrap();
    plan.post(stream).unwrap();
    let (segment, at, wrong) = (plan.segment().clone(), plan.output(round), wrong.clone());
    let check = move || {
        pause();
        let mut found = vec![0; at.len()];
        segment.read(at.start, &mut found).unwrap();
        wrong.check(found == expected);
    };
    stream.launch(check).unwrap();
}

pub(crate) fn soft() -> Stream<SoftStream> {
    Stream::new(SoftStream::new().unwrap()).unwrap()
}

pub(crate) fn synchronize(stream: &Stream<SoftStream>) {
    assert!(stream.synchronize_timeout(LONG).unwrap(), "the stream is stuck: {:?}", stream.oldest_wait());
}

/// Waits until the others have finished their writes to this rank, before its plans are dropped.
fn leave(team: &Team, queues: u32) {
    (0..queues).for_each(|queue| team.queue(queue).unwrap().flush(LONG).unwrap());
    team.barrier().unwrap();
}

/// Reductions with each operation and type, with these lengths in turn.
pub(crate) fn reductions(blocks: &[usize]) -> Vec<Collective> {
    let pairs = Element::ALL
        .into_iter()
        .zip(Operation::ALL)
        .chain(Element::ALL.into_iter().rev().zip(Operation::ALL));
    let kinds = pairs.filter(|(element, operation)| operation.is_defined_for(*element));
    let of = |((element, operation), block): (_, &usize)| Collective::ReduceScatter {
        block: *block,
        element,
        operation,
    };
    kinds.zip(blocks.iter().cycle()).map(of).collect()
}

/// All-reduces whose result does not depend on the order of operands, by doubling and round a ring.
fn all_reductions(lengths: &[usize]) -> Vec<Collective> {
    let of = |(reduction, len): (Collective, &usize)| match reduction {
        Collective::ReduceScatter { element, operation, .. } => {
            let operation =
                if matches!(element, Element::F32 | Element::F64) { Operation::Max } else { operation };
            Collective::AllReduce { len: *len, element, operation }
        }
        other => other,
    };
    reductions(&[0]).into_iter().zip(lengths.iter().cycle()).map(of).collect()
}

/// Short and long blocks, some of odd lengths.
fn all_kinds(size: u32) -> Vec<Collective> {
    let blocks = [0, 1, 24, 1024, 5000];
    let of_block = |block| [Collective::AllGather { block }, Collective::AllToAll { block }];
    let of_root = |root| Collective::Broadcast { root, len: 777 * root as usize };
    let roots = [0, size / 2, size - 1].map(of_root);
    // Among many ranks a block too long for Bruck's algorithms takes the same path as 40,000 bytes among fewer.
    let long = if size < 16 { 40_000 } else { 5000 };
    let reductions = reductions(&[1000, long, 64]);
    let first =
        [Collective::Barrier].into_iter().chain(reductions).chain(all_reductions(&[0, 64, long, 1000]));
    first.chain(blocks.into_iter().flat_map(of_block)).chain(roots).collect()
}

/// Several plans in turn on one stream.
fn in_turn(size: u32, rounds: u64) {
    on_threads(size, &config(), |team| {
        let (plans, stream, wrong) = (plans(team, 0, &all_kinds(size)), soft(), Wrong::default());
        for _ in 0..rounds {
            plans.iter().for_each(|plan| round(&stream, plan, team.rank(), &wrong, None));
        }
        synchronize(&stream);
        plans.iter().for_each(|plan| plan.check().unwrap());
        assert_eq!(wrong.count(), 0, "wrong outputs of rank {}", team.rank());
        leave(team, 1);
    });
}

#[test]
fn every_byte_is_right_among_few_ranks() {
    (1..=5).for_each(|size| in_turn(size, 20));
}

#[test]
fn every_byte_is_right_among_more_ranks() {
    [8, 9].into_iter().for_each(|size| in_turn(size, 6));
}

#[test]
fn every_byte_is_right_by_steps() {
    [16, 17].into_iter().for_each(|size| in_turn(size, 5));
}

#[test]
fn all_ranks_get_the_same_bits_of_a_sum() {
    for len in [8 * 100, 8 * 5000] {
        let results = Mutex::new(Vec::new());
        on_threads(5, &config(), |team| {
            let what = Collective::AllReduce { len, element: Element::F64, operation: Operation::Sum };
            let (plan, stream) = (plans(team, 0, &[what]).remove(0), soft());
            let numbers = (0..len / 8).map(|at| 1.0 / (1 + at + 7 * team.rank() as usize) as f64);
            let own: Vec<u8> = numbers.flat_map(f64::to_ne_bytes).collect();
            plan.segment().write(plan.input(0).start, &own).unwrap();
            plan.post(&stream).unwrap();
            synchronize(&stream);
            let mut found = vec![0; len];
            plan.segment().read(plan.output(0).start, &mut found).unwrap();
            leave(team, 1);
            results.lock().unwrap().push(found);
        });
        let results = results.into_inner().unwrap();
        assert!(results.iter().all(|found| *found == results[0]), "{len} bytes");
        let first = f64::from_ne_bytes(results[0][..8].try_into().unwrap());
        let expected: f64 = (0..5).map(|rank| 1.0 / f64::from(1 + 7 * rank)).sum();
        assert!((first - expected).abs() < 1e-12, "{first} {expected}");
    }
}

#[test]
fn ranks_that_are_late_at_random_get_every_round() {
    let kinds = [
        Collective::AllToAll { block: 96 },
        Collective::Broadcast { root: 1, len: 3000 },
        Collective::Barrier,
        Collective::AllGather { block: 100 },
        Collective::ReduceScatter { block: 80, element: Element::F64, operation: Operation::Sum },
        Collective::AllReduce { len: 800, element: Element::I64, operation: Operation::Sum },
        Collective::AllReduce { len: 33_000, element: Element::I16, operation: Operation::Sum },
    ];
    on_threads(4, &config(), |team| {
        let (plans, stream, wrong) = (plans(team, 0, &kinds), soft(), Wrong::default());
        let mut random = 0x9e37_79b9 + u64::from(team.rank());
        for at in 0..1000usize {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let delay = (random >> 60 == 0).then_some(Duration::from_micros(random >> 40 & 0x1ff));
            round(&stream, &plans[at % plans.len()], team.rank(), &wrong, delay);
        }
        synchronize(&stream);
        assert_eq!(wrong.count(), 0, "wrong outputs of rank {}", team.rank());
        leave(team, 1);
    });
}

#[test]
fn two_streams_have_collectives_of_their_own() {
    on_threads(3, &config().queues(2), |team| {
        let kinds = [Collective::AllToAll { block: 64 }, Collective::Barrier];
        let pairs = [0, 1].map(|queue| (plans(team, queue, &kinds), soft()));
        let wrong = Wrong::default();
        for at in 0..200usize {
            // The ranks post in different orders.
            let (plans, stream) = &pairs[(at + team.rank() as usize) % 2];
            plans.iter().for_each(|plan| round(stream, plan, team.rank(), &wrong, None));
        }
        pairs.iter().for_each(|(_, stream)| synchronize(stream));
        assert_eq!(wrong.count(), 0, "wrong outputs of rank {}", team.rank());
        leave(team, 2);
    });
}

#[test]
fn operations_are_as_few_as_promised() {
    for size in [2, 3, 16] {
        on_threads(size, &config(), |team| {
            // A notification is two sends there.
            if places_out_of_order(&team.queue(0).unwrap(), 0) {
                return;
            }
            let steps = size.next_power_of_two().trailing_zeros() as usize;
            let of = |block| {
                let is_small = size >= 16 && block <= 1024;
                let direct = size as usize - 1;
                let messages = if is_small { steps } else { direct };
                [
                    (Collective::AllGather { block }, 3 * messages),
                    (Collective::AllToAll { block }, 3 * messages + 3),
                    (
                        Collective::ReduceScatter { block, element: Element::I32, operation: Operation::Max },
                        3 * messages,
                    ),
                ]
            };
            let mut expected = vec![(Collective::Barrier, 3 * steps)];
            expected.extend([of(64), of(4096)].concat());
            let all_reduce =
                |len| Collective::AllReduce { len, element: Element::I32, operation: Operation::Sum };
            expected.push((all_reduce(4096), 5 * steps));
            expected.push((all_reduce(40_000), 6 * (size as usize - 1)));
            let kinds: Vec<_> = expected.iter().map(|(what, _)| *what).collect();
            let (plans, stream) = (plans(team, 0, &kinds), soft());
            for (plan, (what, most)) in plans.iter().zip(&expected) {
                let operations: Vec<_> = (0..4).map(|_| plan.post(&stream).unwrap()).collect();
                // With DC, messages share a queue pair. A batch sometimes reports the stream's progress.
                assert!(
                    operations.iter().sum::<usize>() <= 4 * most + 1,
                    "{what}: {operations:?}, not {most}"
                );
            }
            synchronize(&stream);
            leave(team, 1);
        });
    }
}

fn refused(team: &Team, segment: &Segment, what: Collective) -> CollectiveError {
    Collectives::new(&team.queue(0).unwrap(), segment).unwrap().plan(what).unwrap_err()
}

fn is_elsewhere(error: &CollectiveError) -> bool {
    matches!(error, CollectiveError::Notify(NotifyError::FailedOnRank { rank: 1, .. }))
}

#[test]
fn what_cannot_be_is_refused_on_all_ranks() {
    on_threads(3, &config(), |team| {
        let gather = Collective::AllGather { block: 100 };
        // One rank has too few bytes, then too few notifications.
        let (len, count) = (gather.bytes(3), gather.notifications(3));
        let is_short = team.rank() == 1;
        let error = refused(team, &team.allocate(len - usize::from(is_short), count).unwrap(), gather);
        match error {
            CollectiveError::Bytes { needed, from: 0, size } if is_short => {
                assert_eq!((needed, size), (len, len - 1))
            }
            error => assert!(!is_short && is_elsewhere(&error), "{error}"),
        }
        let error = refused(team, &team.allocate(len, count - u32::from(is_short)).unwrap(), gather);
        match error {
            CollectiveError::Notifications { needed, from: 0, count: found } if is_short => {
                assert_eq!((needed, found), (count, count - 1));
            }
            error => assert!(!is_short && is_elsewhere(&error), "{error}"),
        }
        let segment = team.allocate(len, count).unwrap();
        // One rank creates another plan.
        let what = if is_short { Collective::AllGather { block: 99 } } else { gather };
        let error = refused(team, &segment, what).to_string();
        let expected = if is_short {
            "rank 0 has all-gather of 100 bytes as the next collective, this one all-gather of 99 bytes: give all ranks the same"
        } else {
            "rank 1 has all-gather of 99 bytes as the next collective, this one all-gather of 100 bytes: give all ranks the same"
        };
        assert_eq!(error, expected);
        let error = refused(team, &segment, Collective::AllToAll { block: (1 << 30) + 1 });
        assert!(matches!(error, CollectiveError::TooLong { limit, .. } if limit == 1 << 30), "{error}");
        // No address space holds its output.
        let longest = Collective::AllGather { block: usize::MAX };
        let error = refused(team, &segment, longest).to_string();
        let expected =
            "a block of 18446744073709551615 bytes is longer than the 1073741824 that one message carries";
        assert!(longest.bytes(3) == usize::MAX && error.starts_with(expected), "{error}");
        let error = refused(team, &segment, Collective::Broadcast { root: 3, len: 1 });
        assert!(matches!(error, CollectiveError::Root { root: 3, ranks: 3 }), "{error}");
        let element = Element::F64;
        let error = refused(
            team,
            &segment,
            Collective::ReduceScatter { block: 12, element, operation: Operation::Sum },
        );
        assert!(matches!(error, CollectiveError::Element { bytes: 12, element: Element::F64 }), "{error}");
        let error =
            refused(team, &segment, Collective::AllReduce { len: 12, element, operation: Operation::Sum });
        assert!(matches!(error, CollectiveError::Element { bytes: 12, .. }), "{error}");
        let error = refused(
            team,
            &segment,
            Collective::AllReduce { len: 1 << 31, element, operation: Operation::Sum },
        );
        assert!(matches!(error, CollectiveError::TooLong { .. }), "{error}");
        let bits = Collective::ReduceScatter { block: 16, element, operation: Operation::BitOr };
        let error = refused(team, &segment, bits);
        assert!(error.to_string().starts_with("there is no bit_or of f64: take integers"), "{error}");
        // Refused plans have taken nothing; another `Collectives` on the same segment takes owned notifications.
        let collectives = Collectives::new(&team.queue(0).unwrap(), &segment).unwrap();
        let plan = collectives.plan(gather).unwrap();
        let error = refused(team, &segment, gather);
        assert!(matches!(error, CollectiveError::Taken { id: 0 }), "{error}");
        let error = collectives.plan(gather).unwrap_err();
        assert!(matches!(error, CollectiveError::Bytes { from, .. } if from == len), "{error}");
        let (stream, wrong) = (soft(), Wrong::default());
        (0..3).for_each(|_| round(&stream, &plan, team.rank(), &wrong, None));
        synchronize(&stream);
        assert_eq!((wrong.count(), plan.round()), (0, 3));
        leave(team, 1);
    });
}

#[test]
fn a_segment_of_another_team_is_refused() {
    let [one, other] = [0, 1].map(|_| {
        let bootstrap = gdsync_notify::bootstrap::Bootstrap::threads(1, LONG).unwrap().remove(0);
        Team::new(&domain(), bootstrap, config()).unwrap()
    });
    let error = Collectives::new(&one.queue(0).unwrap(), &other.allocate(64, 2).unwrap()).unwrap_err();
    assert!(matches!(error, CollectiveError::OtherTeam), "{error}");
}
