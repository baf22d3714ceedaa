use super::*;
use crate::memop::{Condition, Word32};
use crate::memory::PinnedMemory;
use crate::util::contain::tests::Bomb;
use std::sync::atomic::{AtomicBool, Ordering};

const SOON: Duration = Duration::from_secs(20);

fn idle(stream: &SoftStream) {
    assert!(stream.wait_idle(SOON).unwrap(), "the stream is stuck: {stream:?}");
}

fn wait_for(stream: &SoftStream, event: &Event) {
    let event = event.clone();
    stream.launch(move || event.synchronize()).unwrap();
}

#[test]
fn operations_and_kernels_run_in_order() {
    let memory = PinnedMemory::allocate(16).unwrap();
    let word = Word32::new(&memory, 0).unwrap();
    let stream = SoftStream::new().unwrap();
    let addr = stream.translate(word.addr(), 4).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    for value in 1..=100 {
        // SAFETY: the memory outlives the stream's work: `idle` below.
        unsafe { stream.submit(&[MemOp::Write32 { addr, value }]) }.unwrap();
        let (seen, word) = (seen.clone(), word.clone());
        stream.launch(move || seen.lock().push(word.load())).unwrap();
    }
    idle(&stream);
    assert_eq!(*seen.lock(), (1..=100).collect::<Vec<u32>>());
    assert!(stream.query().unwrap());
}

#[test]
fn a_wait_holds_what_comes_after_it() {
    let memory = PinnedMemory::allocate(16).unwrap();
    let word = Word32::new(&memory, 4).unwrap();
    let stream = SoftStream::new().unwrap();
    let addr = stream.translate(word.addr(), 4).unwrap();
    // SAFETY: the memory outlives the stream's work.
    unsafe { stream.submit(&[MemOp::Wait32 { addr, condition: Condition::Geq, value: 3 }]) }.unwrap();
    let event = stream.record().unwrap();
    assert!(!stream.wait_idle(Duration::from_millis(30)).unwrap());
    assert!(event.completed_at().is_none() && !stream.query().unwrap());
    word.store(3);
    event.synchronize();
    idle(&stream);
}

#[test]
fn a_panicking_kernel_fails_the_stream_and_frees_what_was_queued() {
    let stream = SoftStream::new().unwrap();
    let gate = Event::default();
    wait_for(&stream, &gate);
    stream.launch(|| panic!("out of cheese")).unwrap();
    let kept = Arc::new(());
    let captured = kept.clone();
    stream.launch(move || drop(captured)).unwrap();
    let after = stream.record().unwrap();
    gate.complete();
    after.synchronize();
    let error = stream.wait_idle(SOON).unwrap_err();
    assert!(error.to_string().contains("out of cheese"), "{error}");
    assert!(stream.launch(|| ()).is_err() && stream.record().is_err());
    // The worker drops the closures, and may not have finished.
    let deadline = Instant::now() + SOON;
    while Arc::strong_count(&kept) > 1 {
        assert!(Instant::now() < deadline, "the abandoned kernel still holds its captures");
        std::thread::yield_now();
    }
}

/// Fails a stream by running `kernel`: its events complete, other streams go on, and every call names the panic.
fn fails(kernel: impl FnOnce() + Send + 'static, message: &str) {
    let (stream, other) = (SoftStream::new().unwrap(), SoftStream::new().unwrap());
    let gate = Event::default();
    wait_for(&stream, &gate);
    stream.launch(kernel).unwrap();
    let (bomb, second) = (Bomb, Bomb);
    stream.launch(move || drop(bomb)).unwrap();
    stream.launch(move || drop(second)).unwrap();
    let after = stream.record().unwrap();
    wait_for(&other, &after);
    gate.complete();
    idle(&other);
    let error = stream.wait_idle(SOON).unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
    assert_eq!(stream.launch(|| ()), Err(error));
    assert!(after.completed_at().is_some());
}

#[test]
fn a_panic_in_the_drop_of_a_payload_fails_the_stream() {
    fails(|| std::panic::panic_any(Bomb), "a kernel panicked: no message");
}

#[test]
fn a_panic_in_the_drop_of_what_a_kernel_captured_fails_the_stream() {
    let bomb = Bomb;
    fails(
        move || {
            let _held = &bomb;
        },
        "a kernel panicked: no message",
    );
}

#[test]
fn panics_in_the_drops_of_kernels_that_were_not_performed_end_there() {
    fails(|| panic!("out of cheese"), "a kernel panicked: out of cheese");
}

#[test]
fn dropping_the_stream_finishes_its_work() {
    let stream = SoftStream::new().unwrap();
    let gate = Event::default();
    wait_for(&stream, &gate);
    let (sender, receiver) = std::sync::mpsc::channel();
    stream.launch(move || sender.send(5).unwrap()).unwrap();
    drop(stream);
    gate.complete();
    assert_eq!(receiver.recv_timeout(SOON), Ok(5));
    assert!(receiver.recv_timeout(SOON).is_err(), "the worker has ended and dropped the closure");
}

#[test]
fn steps_perform_one_operation_each_and_fail_the_stream_at_their_end() {
    let memory = PinnedMemory::allocate(16).unwrap();
    let words = [0, 4].map(|offset| Word32::new(&memory, offset).unwrap());
    let (stream, mut steps) = SoftStream::stepped();
    let [addr, go] = [0, 1].map(|word| stream.translate(words[word].addr(), 4).unwrap());
    let wait = MemOp::Wait32 { addr: go, condition: Condition::Eq, value: 1 };
    let write = |value| MemOp::Write32 { addr, value };
    // SAFETY: the memory outlives the steps.
    unsafe { stream.submit(&[write(1), wait, write(2)]) }.unwrap();
    let event = stream.record().unwrap();
    assert!(steps.step() && words[0].load() == 1);
    assert!(!steps.step() && !stream.query().unwrap());
    words[1].store(1);
    assert!(steps.step() && words[0].load() == 1);
    assert!(steps.step() && words[0].load() == 2 && event.completed_at().is_none());
    assert!(steps.step() && event.completed_at().is_some() && stream.query().unwrap());
    assert!(!steps.step(), "nothing is left");
    stream.launch(|| panic!("out of cheese")).unwrap();
    assert!(!steps.step());
    assert!(stream.launch(|| ()).unwrap_err().to_string().contains("out of cheese"));
    let (stream, steps) = SoftStream::stepped();
    // SAFETY: as above.
    unsafe { stream.submit(&[wait, write(3)]) }.unwrap();
    drop(steps);
    assert!(stream.wait_idle(SOON).unwrap_err().to_string().contains("its steps have ended"));
    assert_eq!(words[0].load(), 2);
}

#[test]
fn a_stopped_stream_leaves_its_wait_performs_nothing_further_and_tells_when_it_has_ended() {
    let memory = PinnedMemory::allocate(8).unwrap();
    let wait = Word32::new(&memory, 0).unwrap();
    let has_run = Arc::new(AtomicBool::new(false));
    let stop = |stream: &SoftStream| {
        let (ended, has_ended) = std::sync::mpsc::channel();
        // SAFETY: the memory is kept until the stream has ended.
        assert!(unsafe { stream.stop("it is given up", Box::new(move || ended.send(()).unwrap())) });
        has_ended
    };
    let stream = SoftStream::new().unwrap();
    let op = MemOp::Wait32 { addr: StreamAddr::new(wait.addr().get()), condition: Condition::Eq, value: 1 };
    let done = MemOp::Write32 { addr: StreamAddr::new(wait.addr().get() + 4), value: 7 };
    // SAFETY: the memory is alive until the stream has ended.
    unsafe { stream.submit(&[op, done]) }.unwrap();
    let kernel = has_run.clone();
    stream.launch(move || kernel.store(true, Ordering::Relaxed)).unwrap();
    let event = stream.record().unwrap();
    stop(&stream).recv_timeout(SOON).unwrap();
    event.synchronize();
    assert!(!has_run.load(Ordering::Relaxed));
    assert_eq!(memory.words32()[1].load(Ordering::Relaxed), 0);
    let failed = StreamError::Failed { reason: "it is given up".to_owned() };
    assert_eq!((stream.launch(|| ()), stream.query()), (Err(failed.clone()), Err(failed.clone())));
    // It has ended before.
    stop(&stream).try_recv().unwrap();

    let (stream, mut steps) = SoftStream::stepped();
    // SAFETY: as above.
    unsafe { stream.submit(&[op, done]) }.unwrap();
    assert!(!steps.step());
    let ended = stop(&stream);
    wait.store(1);
    assert!(!steps.step() && stream.query() == Err(failed));
    assert!(ended.try_recv().is_err(), "the steps may still be taken");
    drop(steps);
    ended.try_recv().unwrap();
    assert_eq!(memory.words32()[1].load(Ordering::Relaxed), 0);
}
