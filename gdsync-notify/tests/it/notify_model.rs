//! Random notified writes between ranks, by the CPU and by streams, against a model of their memory.

use crate::ranks::{LONG, Prepare, SendAll, config, domain, each_on_a_thread, places_out_of_order};
use gdsync::{Batch, QueuePairConfig, SoftStream, Stream};
use gdsync_notify::{Operation, Segment, Team};
use proptest::prelude::*;
use std::time::Duration;

const SIZE: u32 = 3;
const LEN: usize = 300;
/// Random notifications, followed by one for each sender that marks the end of its run of operations.
const IDS: u32 = 5;

#[derive(Clone, Debug)]
enum Op {
    Write { start: usize, len: usize, offset: usize },
    Notify { id: u32, value: u32 },
    WriteNotify { start: usize, len: usize, offset: usize, id: u32, value: u32 },
}

#[derive(Clone, Debug)]
enum Step {
    /// An operation of a rank on another, or itself, in a run.
    Run {
        from: u32,
        to: u32,
        stream: bool,
        ops: Vec<Op>,
    },
    Fill {
        rank: u32,
        at: usize,
        byte: u8,
    },
    Reset {
        rank: u32,
        id: u32,
    },
    Wait {
        rank: u32,
        first: u32,
        last: u32,
    },
}

fn range() -> impl Strategy<Value = (usize, usize, usize)> {
    (0..=LEN).prop_flat_map(|len| (0..=LEN - len, Just(len), 0..=LEN - len))
}

fn op() -> impl Strategy<Value = Op> {
    let value = prop_oneof![1u32..10, Just(1 << 31), Just(u32::MAX), 1u32..];
    prop_oneof![
        range().prop_map(|(start, len, offset)| Op::Write { start, len, offset }),
        (0..IDS, value.clone()).prop_map(|(id, value)| Op::Notify { id, value }),
        (range(), 0..IDS, value).prop_map(|((start, len, offset), id, value)| Op::WriteNotify {
            start,
            len,
            offset,
            id,
            value
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let rank = 0..SIZE;
    prop_oneof![
        4 => (rank.clone(), rank.clone(), any::<bool>(), prop::collection::vec(op(), 0..12))
            .prop_map(|(from, to, stream, ops)| Step::Run { from, to, stream, ops }),
        1 => (rank.clone(), 0..LEN, any::<u8>()).prop_map(|(rank, at, byte)| Step::Fill { rank, at, byte }),
        1 => (rank.clone(), 0..IDS).prop_map(|(rank, id)| Step::Reset { rank, id }),
        1 => (rank, 0..=IDS, 0..=IDS).prop_map(|(rank, one, other)| Step::Wait {
            rank, first: one.min(other), last: one.max(other)
        }),
    ]
}

#[derive(Clone, Debug)]
struct Model {
    bytes: Vec<u8>,
    words: Vec<u32>,
}

struct Rank {
    team: Team,
    segment: Segment,
    stream: Stream<SoftStream>,
}

impl Rank {
    /// Performs a run, and sets the word that marks its end.
    fn run(&self, to: u32, by_stream: bool, ops: &[Op]) {
        let segment = &self.segment;
        let slice = |start: usize, len: usize| segment.slice(start..start + len).unwrap();
        let (queue, end) = (self.team.queue(u32::from(by_stream)).unwrap(), IDS + self.team.rank());
        if !by_stream {
            for op in ops {
                match *op {
                    Op::Write { start, len, offset } => {
                        queue.write(&slice(start, len), to, segment, offset as u64)
                    }
                    Op::Notify { id, value } => queue.notify(to, segment, id, value),
                    Op::WriteNotify { start, len, offset, id, value } => {
                        queue.write_notify(&slice(start, len), to, segment, offset as u64, id, value)
                    }
                }
                .unwrap();
            }
            return queue.notify(to, segment, end, 1).unwrap();
        }
        let mut batch = Batch::new();
        for op in ops {
            batch = match *op {
                Op::Write { start, len, offset } => batch.send_all(
                    queue
                        .sends(Operation::Write {
                            from: &slice(start, len),
                            rank: to,
                            to: segment,
                            offset: offset as u64,
                        })
                        .unwrap(),
                ),
                Op::Notify { id, value } => batch
                    .send_all(queue.sends(Operation::Notify { rank: to, to: segment, id, value }).unwrap()),
                Op::WriteNotify { start, len, offset, id, value } => queue
                    .sends(Operation::WriteNotify {
                        from: &slice(start, len),
                        rank: to,
                        to: segment,
                        offset: offset as u64,
                        id,
                        value,
                    })
                    .unwrap()
                    .into_iter()
                    .fold(batch, Batch::send),
            };
        }
        self.stream
            .post(batch.send_all(
                queue.sends(Operation::Notify { rank: to, to: segment, id: end, value: 1 }).unwrap(),
            ))
            .unwrap();
    }
}

fn ranks() -> Vec<Rank> {
    let pd = domain();
    let config = config().queues(2).queue_pair(QueuePairConfig::default().send_depth(64));
    each_on_a_thread(SIZE, |bootstrap| {
        let team = Team::new(&pd, bootstrap, config.clone()).unwrap();
        let segment = team.allocate(LEN, IDS + SIZE).unwrap();
        Rank { team, segment, stream: Stream::new(SoftStream::new().unwrap()).unwrap() }
    })
}

fn apply(models: &mut [Model], from: usize, to: usize, op: &Op) {
    let write = |models: &mut [Model], start: usize, len: usize, offset: usize| {
        let bytes = models[from].bytes[start..start + len].to_vec();
        models[to].bytes[offset..offset + len].copy_from_slice(&bytes);
    };
    match *op {
        Op::Write { start, len, offset } => write(models, start, len, offset),
        Op::Notify { id, value } => models[to].words[id as usize] = value,
        Op::WriteNotify { start, len, offset, id, value } => {
            write(models, start, len, offset);
            models[to].words[id as usize] = value;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// When the word that ends a run is there, all of the run is there.
    #[test]
    fn ranks_do_what_a_model_of_their_memory_does(steps in prop::collection::vec(step(), 1..25)) {
        let ranks = ranks();
        let empty = Model { bytes: vec![0; LEN], words: vec![0; IDS as usize] };
        let mut models = vec![empty; SIZE as usize];
        for (i, rank) in ranks.iter().enumerate() {
            let bytes: Vec<u8> = (0..LEN).map(|at| (at * (i + 3)) as u8).collect();
            rank.segment.write(0, &bytes).unwrap();
            models[i].bytes = bytes;
        }
        for step in &steps {
            match step {
                Step::Run { from, to, stream, ops } => {
                    let (from, mut to) = (*from as usize, *to as usize);
                    // A write's source may be the target of an earlier one, which only order puts there in time.
                    if from == to && places_out_of_order(&ranks[from].team.queue(0).unwrap(), to as u32) {
                        to = (to + 1) % SIZE as usize;
                    }
                    ranks[from].run(to as u32, *stream, ops);
                    ops.iter().for_each(|op| apply(&mut models, from, to, op));
                    let end = IDS + from as u32;
                    let found = ranks[to].segment.notify_waitsome(end..end + 1, LONG).unwrap();
                    prop_assert_eq!(found, Some(end));
                    prop_assert_eq!(ranks[to].segment.notify_reset(end).unwrap(), 1);
                }
                Step::Fill { rank, at, byte } => {
                    ranks[*rank as usize].segment.write(*at, &[*byte]).unwrap();
                    models[*rank as usize].bytes[*at] = *byte;
                }
                Step::Reset { rank, id } => {
                    let expected = std::mem::take(&mut models[*rank as usize].words[*id as usize]);
                    prop_assert_eq!(ranks[*rank as usize].segment.notify_reset(*id).unwrap(), expected);
                }
                Step::Wait { rank, first, last } => {
                    let words = &models[*rank as usize].words;
                    let expected = (*first..*last).find(|id| words[*id as usize] != 0);
                    let segment = &ranks[*rank as usize].segment;
                    prop_assert_eq!(segment.notify_waitsome(*first..*last, Duration::ZERO).unwrap(), expected);
                }
            }
            for (rank, model) in ranks.iter().zip(&models) {
                let mut bytes = vec![0; LEN];
                rank.segment.read(0, &mut bytes).unwrap();
                prop_assert!(bytes == model.bytes, "rank {} after {:?}", rank.team.rank(), step);
            }
        }
        for (rank, model) in ranks.iter().zip(&models) {
            for (id, expected) in (0..).zip(&model.words) {
                prop_assert_eq!(rank.segment.notify_reset(id).unwrap(), *expected);
            }
        }
        for rank in &ranks {
            rank.team.queue(0).unwrap().flush(LONG).unwrap();
            rank.team.queue(1).unwrap().flush(LONG).unwrap();
        }
    }
}
