//! Random operations through two connected queue pairs, compared with a plain model of memory.

use gdsync::stream::Cpu;
use gdsync::{
    Access, Batch, ConnectOptions, MemoryRegion, PreparedSend, QueuePairConfig, Slice, SoftStream, Stream,
    WorkRequest,
};
use gdsync_test_support::pair::{self, Pair, content, cpu, poll};
use proptest::prelude::*;
use std::cell::RefCell;

/// Bytes of each side's memory.
const SIZE: usize = 512;

#[derive(Clone, Debug)]
enum Operation {
    /// Cut into that many slices.
    Send {
        from: usize,
        to: usize,
        len: usize,
        cuts: usize,
        immediate: bool,
    },
    SendInline {
        to: usize,
        bytes: Vec<u8>,
    },
    Write {
        from: usize,
        to: usize,
        len: usize,
        cuts: usize,
        immediate: bool,
    },
    WriteInline {
        to: usize,
        bytes: Vec<u8>,
    },
    Read {
        from: usize,
        to: usize,
        len: usize,
        cuts: usize,
    },
    /// The remote number is at a multiple of 8.
    FetchAdd {
        word: usize,
        to: usize,
        add: u64,
    },
    CompareSwap {
        word: usize,
        to: usize,
        /// True to compare with the current value, false for another value.
        equal: bool,
        swap: u64,
    },
    /// Prepared and dropped: has no effect.
    Drop {
        len: usize,
    },
}

#[derive(Clone, Debug)]
struct Step {
    /// The side that acts: right or left.
    right: bool,
    operation: Operation,
    /// Posted together with the next operation of the same side.
    batched: bool,
    /// Performed by a software stream, not by the CPU.
    streamed: bool,
}

fn range() -> impl Strategy<Value = (usize, usize, usize)> {
    (0..SIZE, 0..SIZE, 0..=SIZE).prop_map(|(from, to, len)| (from, to, len.min(SIZE - from).min(SIZE - to)))
}

fn operation() -> impl Strategy<Value = Operation> {
    let inline = || (0..SIZE - 64, proptest::collection::vec(any::<u8>(), 0..=60));
    prop_oneof![
        (range(), 1usize..4, any::<bool>()).prop_map(|((from, to, len), cuts, immediate)| Operation::Send {
            from,
            to,
            len,
            cuts,
            immediate
        }),
        inline().prop_map(|(to, bytes)| Operation::SendInline { to, bytes }),
        (range(), 1usize..4, any::<bool>()).prop_map(|((from, to, len), cuts, immediate)| Operation::Write {
            from,
            to,
            len,
            cuts,
            immediate
        }),
        inline().prop_map(|(to, bytes)| Operation::WriteInline { to, bytes }),
        (range(), 1usize..4).prop_map(|((from, to, len), cuts)| Operation::Read { from, to, len, cuts }),
        (0..SIZE / 8, 0..SIZE - 8, any::<u64>()).prop_map(|(word, to, add)| Operation::FetchAdd {
            word,
            to,
            add
        }),
        (0..SIZE / 8, 0..SIZE - 8, any::<bool>(), any::<u64>())
            .prop_map(|(word, to, equal, swap)| Operation::CompareSwap { word, to, equal, swap }),
        (0usize..60).prop_map(|len| Operation::Drop { len }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (any::<bool>(), operation(), any::<bool>(), any::<bool>())
        .prop_map(|(right, operation, batched, streamed)| Step { right, operation, batched, streamed });
    proptest::collection::vec(step, 1..12)
}

/// Queue pairs and memory are made once for all cases: their indices continue, over ring ends and laps.
struct World {
    pair: Pair,
    memory: [MemoryRegion; 2],
    cpu: Stream<Cpu>,
    soft: Stream<SoftStream>,
}

impl World {
    fn new() -> Self {
        let config = QueuePairConfig::default().send_depth(8).recv_depth(8).send_segments(4).inline(60);
        let config = config.access(Access::all());
        let pair = Pair::with(config, ConnectOptions::default());
        let memory = [pair.open_region(SIZE), pair.open_region(SIZE)];
        World { pair, memory, cpu: cpu(), soft: pair::soft() }
    }

    fn slices(&self, side: usize, from: usize, len: usize, cuts: usize) -> Vec<Slice> {
        let piece = len.div_ceil(cuts).max(1);
        let starts = (0..len).step_by(piece);
        starts.map(|at| self.memory[side].slice(from + at..from + (at + piece).min(len)).unwrap()).collect()
    }

    /// Prepares a step of side `me`, applies it to the model, and returns whether the other side will see a completion.
    fn prepare(
        &self,
        me: usize,
        operation: &Operation,
        model: &mut [Vec<u8>; 2],
    ) -> (Option<PreparedSend>, bool) {
        let (queue_pair, other_pair) =
            if me == 0 { (&self.pair.left, &self.pair.right) } else { (&self.pair.right, &self.pair.left) };
        let other = 1 - me;
        let remote = |at: usize, len: usize| self.memory[other].remote().slice(at..at + len).unwrap();
        let receive = |at: usize, len: usize| {
            other_pair.post_recv(&[self.memory[other].slice(at..at + len).unwrap()], at as u64).unwrap();
        };
        match operation {
            Operation::Send { from, to, len, cuts, immediate } => {
                receive(*to, *len);
                let slices = self.slices(me, *from, *len, *cuts);
                let request = WorkRequest::send(&slices);
                let request = if *immediate { request.immediate(*len as u32) } else { request };
                let send = queue_pair.prepare(request).unwrap();
                transfer(model, (me, *from), (other, *to), *len);
                (Some(send), true)
            }
            Operation::SendInline { to, bytes } => {
                receive(*to, bytes.len());
                let send = queue_pair.prepare(WorkRequest::send_inline(bytes)).unwrap();
                model[other][*to..to + bytes.len()].copy_from_slice(bytes);
                (Some(send), true)
            }
            Operation::Write { from, to, len, cuts, immediate } => {
                let slices = self.slices(me, *from, *len, *cuts);
                let request = WorkRequest::write(&slices, remote(*to, *len));
                let request = if *immediate {
                    other_pair.post_recv(&[], 0).unwrap();
                    request.immediate(1)
                } else {
                    request
                };
                let send = queue_pair.prepare(request).unwrap();
                transfer(model, (me, *from), (other, *to), *len);
                (Some(send), *immediate)
            }
            Operation::WriteInline { to, bytes } => {
                let send =
                    queue_pair.prepare(WorkRequest::write_inline(bytes, remote(*to, bytes.len()))).unwrap();
                model[other][*to..to + bytes.len()].copy_from_slice(bytes);
                (Some(send), false)
            }
            Operation::Read { from, to, len, cuts } => {
                let slices = self.slices(me, *to, *len, *cuts);
                // A read takes effect when its answer comes: later work must wait for it.
                let send = queue_pair.prepare(WorkRequest::read(&slices, remote(*from, *len))).unwrap();
                transfer(model, (other, *from), (me, *to), *len);
                (Some(send), false)
            }
            Operation::FetchAdd { word, to, add } => {
                let result = self.memory[me].slice(*to..to + 8).unwrap();
                let request = WorkRequest::fetch_add(&result, remote(word * 8, 8), *add);
                let send = queue_pair.prepare(request).unwrap();
                atomic(model, (other, word * 8), (me, *to), |was| was.wrapping_add(*add));
                (Some(send), false)
            }
            Operation::CompareSwap { word, to, equal, swap } => {
                let result = self.memory[me].slice(*to..to + 8).unwrap();
                let was = number(&model[other], word * 8);
                let compare = if *equal { was } else { was ^ 1 };
                let request = WorkRequest::compare_swap(&result, remote(word * 8, 8), compare, *swap);
                let send = queue_pair.prepare(request).unwrap();
                atomic(model, (other, word * 8), (me, *to), |was| if *equal { *swap } else { was });
                (Some(send), false)
            }
            Operation::Drop { len } => {
                let slices = self.slices(me, 0, *len, 1);
                drop(queue_pair.prepare(WorkRequest::write(&slices, remote(0, *len))).unwrap());
                (None, false)
            }
        }
    }

    fn run(&self, steps: &[Step]) -> Result<(), TestCaseError> {
        let mut model = [vec![0; SIZE], vec![0; SIZE]];
        for (side, memory) in self.memory.iter().enumerate() {
            model[side].iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 3 + side * 101) as u8);
            memory.write(0, &model[side]);
        }
        let mut steps = steps.iter().peekable();
        while let Some(first) = steps.next() {
            let me = usize::from(first.right);
            let (mut sends, mut receives) = (Vec::new(), 0);
            let mut step = first;
            loop {
                let (send, seen) = self.prepare(me, &step.operation, &mut model);
                sends.extend(send);
                receives += usize::from(seen);
                // Operations that are posted together run together: the effect of a read or an atomic comes late, so
                // it ends its batch.
                let late = matches!(
                    step.operation,
                    Operation::Read { .. } | Operation::FetchAdd { .. } | Operation::CompareSwap { .. }
                );
                let ends = !step.batched || sends.len() == 4 || late;
                match steps.next_if(|next| !ends && next.right == first.right) {
                    Some(next) => step = next,
                    None => break,
                }
            }
            self.perform(me, sends, receives, first.streamed)?;
        }
        for (side, memory) in self.memory.iter().enumerate() {
            prop_assert!(content(memory) == model[side], "memory of side {} differs", side);
        }
        Ok(())
    }

    fn perform(
        &self,
        me: usize,
        sends: Vec<PreparedSend>,
        receives: usize,
        streamed: bool,
    ) -> Result<(), TestCaseError> {
        let (mine, other) =
            if me == 0 { (&self.pair.left, &self.pair.right) } else { (&self.pair.right, &self.pair.left) };
        let count = sends.len();
        let mut batch = sends.into_iter().fold(Batch::new(), Batch::send);
        for _ in 0..count {
            batch = batch.wait(mine.send_cq().prepare_wait().unwrap());
        }
        for _ in 0..receives {
            batch = batch.wait(other.recv_cq().prepare_wait().unwrap());
        }
        if streamed {
            self.soft.post(batch).unwrap();
            pair::synchronize(&self.soft);
        } else {
            self.cpu.post(batch).unwrap();
        }
        for _ in 0..count {
            prop_assert_eq!(poll(&mine.send_cq()).status, Ok(()));
        }
        for _ in 0..receives {
            prop_assert_eq!(poll(&other.recv_cq()).status, Ok(()));
        }
        Ok(())
    }
}

fn number(memory: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&memory[at..at + 8]);
    u64::from_ne_bytes(bytes)
}

/// Applies an atomic operation to the model.
fn atomic(model: &mut [Vec<u8>; 2], at: (usize, usize), to: (usize, usize), change: impl Fn(u64) -> u64) {
    let was = number(&model[at.0], at.1);
    model[at.0][at.1..at.1 + 8].copy_from_slice(&change(was).to_ne_bytes());
    model[to.0][to.1..to.1 + 8].copy_from_slice(&was.to_ne_bytes());
}

/// Applies a message to the model; `from` and `to` are side and offset.
fn transfer(model: &mut [Vec<u8>; 2], from: (usize, usize), to: (usize, usize), len: usize) {
    let bytes = model[from.0][from.1..from.1 + len].to_vec();
    model[to.0][to.1..to.1 + len].copy_from_slice(&bytes);
}

#[test]
fn random_operations_do_what_a_plain_memory_would() {
    if crate::lacks_order("random_operations_do_what_a_plain_memory_would") {
        return;
    }
    let world = RefCell::new(World::new());
    let config = ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() };
    let result =
        proptest::test_runner::TestRunner::new(config).run(&steps(), |steps| world.borrow().run(&steps));
    if let Err(error) = result {
        panic!("{error}");
    }
}
