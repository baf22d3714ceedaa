//! Sequences of word writes, waits and byte writes have the effect of a simple model on memory, on every backend of
//! the CPU.

use gdsync::batch::MemoryWrite;
use gdsync::memop::{Condition, MemOpStream, StreamError, Word32, Word64};
use gdsync::stream::{Cpu, PostFailure};
use gdsync::{Batch, PinnedMemory, SoftStream, Stream};
use gdsync_test_support::pair::{self, cpu, soft, synchronize};
use proptest::prelude::*;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Bytes of the memory: several pages.
const SIZE: usize = 3 * 4096;

#[derive(Clone, Debug)]
enum Operation {
    Write32(usize, u32),
    Write64(usize, u64),
    Bytes(usize, Vec<u8>),
    /// Waits for the value that the word has by then.
    Wait32(usize, Condition),
    Wait64(usize, Condition),
    Barrier,
    Flush,
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![Just(Condition::Geq), Just(Condition::Eq), Just(Condition::And), Just(Condition::Nor)]
}

fn bytes() -> impl Strategy<Value = Operation> {
    let len = prop_oneof![0usize..40, 0usize..=MemoryWrite::MAX];
    // Near the ends of pages as often as elsewhere.
    let start = prop_oneof![0..SIZE, (0usize..3, 0usize..40).prop_map(|(page, at)| page * 4096 + 4076 + at)];
    (start, len, any::<u8>(), any::<bool>()).prop_map(|(start, len, seed, aligned)| {
        let (start, len) = if aligned { (start & !3, len & !3) } else { (start, len) };
        let start = start.min(SIZE);
        let len = len.min(SIZE - start);
        Operation::Bytes(start, (0..len).map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed)).collect())
    })
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        (0..SIZE / 4, any::<u32>()).prop_map(|(index, value)| Operation::Write32(index * 4, value)),
        (0..SIZE / 8, any::<u64>()).prop_map(|(index, value)| Operation::Write64(index * 8, value)),
        bytes(),
        bytes(),
        (0..SIZE / 4, condition()).prop_map(|(index, condition)| Operation::Wait32(index * 4, condition)),
        (0..SIZE / 8, condition()).prop_map(|(index, condition)| Operation::Wait64(index * 8, condition)),
        Just(Operation::Barrier),
        Just(Operation::Flush),
    ];
    proptest::collection::vec(operation, 1..60)
}

/// A value with which a word meets the condition; `None` if there is none.
fn met(condition: Condition, word: u64, bits: u32) -> Option<u64> {
    let ones = if bits == 32 { u64::from(u32::MAX) } else { u64::MAX };
    match condition {
        Condition::Geq | Condition::Eq => Some(word),
        Condition::And => (word != 0).then_some(word),
        // Some bit that is 0 in both.
        Condition::Nor => (word != ones).then_some(word),
    }
}

/// A batch of the operations, which also updates the model.
fn build(memory: &PinnedMemory, model: &mut [u8], operations: &[Operation]) -> Batch {
    let mut batch = Batch::new();
    for operation in operations {
        batch = match operation {
            Operation::Write32(at, value) => {
                model[*at..at + 4].copy_from_slice(&value.to_ne_bytes());
                batch.write_value32(&Word32::new(memory, *at).unwrap(), *value)
            }
            Operation::Write64(at, value) => {
                model[*at..at + 8].copy_from_slice(&value.to_ne_bytes());
                batch.write_value64(&Word64::new(memory, *at).unwrap(), *value)
            }
            Operation::Bytes(at, bytes) => {
                model[*at..at + bytes.len()].copy_from_slice(bytes);
                batch.write_memory(MemoryWrite::new(memory, *at, bytes).unwrap())
            }
            Operation::Wait32(at, condition) => {
                let word = u32::from_ne_bytes(model[*at..at + 4].try_into().unwrap());
                match met(*condition, word.into(), 32) {
                    Some(value) => {
                        batch.wait_value32(&Word32::new(memory, *at).unwrap(), *condition, value as u32)
                    }
                    None => batch,
                }
            }
            Operation::Wait64(at, condition) => {
                let word = u64::from_ne_bytes(model[*at..at + 8].try_into().unwrap());
                match met(*condition, word, 64) {
                    Some(value) => batch.wait_value64(&Word64::new(memory, *at).unwrap(), *condition, value),
                    None => batch,
                }
            }
            Operation::Barrier => batch.barrier(),
            Operation::Flush => batch.flush(),
        };
    }
    batch
}

fn check<B: MemOpStream>(
    stream: &Stream<B>,
    operations: &[Operation],
    finish: impl FnOnce(&Stream<B>),
) -> Result<(), TestCaseError> {
    let memory = PinnedMemory::allocate(SIZE).unwrap();
    let mut model = vec![0; SIZE];
    let batch = build(&memory, &mut model, operations);
    let count = batch.len();
    let posted = stream.post(batch).unwrap();
    prop_assert!(posted.submissions <= count);
    finish(stream);
    let mut found = vec![0; SIZE];
    memory.read(0, &mut found);
    prop_assert!(found == model, "memory differs from the model");
    Ok(())
}

#[test]
fn any_sequence_does_what_a_model_of_memory_says() {
    let (on_cpu, on_soft): (Stream<Cpu>, Stream<SoftStream>) = (cpu(), soft());
    let config = ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() };
    let result = proptest::test_runner::TestRunner::new(config).run(&operations(), |operations| {
        check(&on_cpu, &operations, |_| ())?;
        check(&on_soft, &operations, synchronize)
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn a_write_of_bytes_waits_its_turn_and_holds_up_what_follows() {
    let stream = soft();
    let memory = PinnedMemory::allocate(8192).unwrap();
    let gate = Word32::new(&memory, 0).unwrap();
    let (seen, content) = (Arc::new(AtomicU32::new(0)), memory.clone());
    let source: Vec<u8> = (0..3001).map(|i| (i % 251) as u8 + 1).collect();
    let write = MemoryWrite::new(&memory, 2001, &source).unwrap();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1).write_memory(write)).unwrap();
    let (copy, expected) = (seen.clone(), source.clone());
    stream
        .launch(move || {
            let mut out = vec![0; 3001];
            content.read(2001, &mut out);
            copy.store(if out == expected { 1 } else { 2 }, Ordering::Release);
        })
        .unwrap();
    assert!(!stream.synchronize_timeout(Duration::from_millis(20)).unwrap());
    assert!(memory.bytes()[2001..5002].iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
    gate.store(1);
    synchronize(&stream);
    assert_eq!(seen.load(Ordering::Acquire), 1);
}

#[test]
fn memory_stays_until_the_bytes_are_written() {
    let stream = soft();
    let gates = PinnedMemory::allocate(4).unwrap();
    let gate = Word32::new(&gates, 0).unwrap();
    let target = PinnedMemory::allocate(4096).unwrap();
    let write = MemoryWrite::new(&target, 5, &[9; 3000]).unwrap();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1).write_memory(write)).unwrap();
    // The stream holds the last handle now.
    drop(target);
    gate.store(1);
    synchronize(&stream);
    assert_eq!(stream.outstanding(), 0);
}

#[test]
fn copies_leave_the_last_place_to_what_says_that_they_are_done() {
    let stream = soft();
    let memory = PinnedMemory::allocate(8192).unwrap();
    let gate = Word32::new(&memory, 0).unwrap();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
    let write = MemoryWrite::new(&memory, 4096, &[1; 100]).unwrap();
    let error = loop {
        match stream.post(Batch::new().write_memory(write.clone())) {
            Ok(_) => assert!(stream.outstanding() <= 1021),
            Err(error) => break error,
        }
    };
    assert!(matches!(error.source, PostFailure::WouldBlock { limit: 1021, .. }), "{error}");
    assert_eq!((error.posted, error.batch.len()), (0, 1));
    gate.store(1);
    // No synchronization: the stream itself has written its progress.
    stream.post_timeout(error.batch, pair::LONG).unwrap();
    synchronize(&stream);
}

#[test]
fn a_long_write_shares_no_submission_and_words_do() {
    let stream = soft();
    let memory = PinnedMemory::allocate(8192).unwrap();
    let word = Word32::new(&memory, 0).unwrap();
    let write = |offset, len| MemoryWrite::new(&memory, offset, &vec![3; len]).unwrap();
    let around = |write| Batch::new().write_value32(&word, 1).write_memory(write).write_value32(&word, 2);
    assert_eq!(stream.post(around(write(64, 64))).unwrap().submissions, 1);
    assert_eq!(stream.post(around(write(64, 72))).unwrap().submissions, 3);
    assert_eq!(stream.post(around(write(65, 2))).unwrap().submissions, 3);
    // Across a page: two pieces, and two copies.
    assert_eq!(stream.post(around(write(4000, 200))).unwrap().submissions, 4);
    let many = (0..100).fold(Batch::new(), |batch, _| batch.write_memory(write(4, 60)));
    assert_eq!(many.len(), 100);
    assert_eq!(stream.post(many).unwrap().submissions, 4);
    synchronize(&stream);
}

#[test]
fn a_failed_backend_writes_no_bytes() {
    let stream = Stream::new(Cpu::with_timeout(Duration::from_millis(1))).unwrap();
    let memory = PinnedMemory::allocate(64).unwrap();
    let word = Word32::new(&memory, 0).unwrap();
    let write = || MemoryWrite::new(&memory, 9, &[1; 5]).unwrap();
    let batch = Batch::new().wait_value32(&word, Condition::Eq, 1).write_memory(write());
    let error = stream.post(batch).unwrap_err();
    assert!(matches!(error.source, PostFailure::Stream(StreamError::Failed { .. })), "{error}");
    let error = stream.post(Batch::new().write_memory(write())).unwrap_err();
    assert!(matches!(error.source, PostFailure::Stream(StreamError::Failed { .. })), "{error}");
    assert!(memory.bytes().iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
}

#[test]
fn memory_of_the_program_is_kept_until_the_stream_has_passed_it() {
    let words: Arc<[AtomicU32]> = (0..4).map(|_| AtomicU32::new(0)).collect();
    let base = NonNull::new(words.as_ptr().cast_mut().cast()).unwrap();
    // SAFETY: the owner keeps the words, which are atomic.
    let memory = unsafe { PinnedMemory::from_raw(base, 16, words.clone()) };
    let gate = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let stream = soft();
    let word = Word32::new(&memory, 8).unwrap();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1).write_value32(&word, 7)).unwrap();
    drop((memory, word));
    assert_eq!(Arc::strong_count(&words), 2, "the stream is still to write the word");
    gate.store(1);
    synchronize(&stream);
    assert_eq!((words[2].load(Ordering::Acquire), Arc::strong_count(&words)), (7, 1));
}
