//! Failures on a GPU. No stream and no call may hang because an operation failed or an object was dropped early.

use gdsync::cuda::{CudaError, DriverError, GpuMemory};
use gdsync::cudarc::driver::{LaunchConfig, sys};
use gdsync::memop::{Condition, MemOp, MemOpStream, StreamError, Word32};
use gdsync::memory::HostAddr;
use gdsync::queue::FailureCause;
use gdsync::stream::PostFailure;
use gdsync::{Batch, CudaStream, PinnedMemory, Stream, WorkRequest};
use gdsync_test_support::gpu::{Rig, synchronize};
use gdsync_test_support::pair::{self, LONG, poll};
use gdsync_test_support::process::alone;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A stream that is blocked until the word is set.
fn hold(stream: &Stream<CudaStream>) -> Word32 {
    let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1)).unwrap();
    word
}

#[test]
fn an_unknown_address_is_refused() {
    let Some(rig) = Rig::new("an_unknown_address_is_refused") else { return };
    let stream = rig.stream();
    let memory = PinnedMemory::allocate(64).unwrap();
    let known: HostAddr = memory.addr();
    assert!(stream.translate(known, 4).is_ok());
    drop(memory);
    assert!(matches!(stream.translate(known, 4), Err(StreamError::Unregistered { .. })));
}

#[test]
fn operations_that_the_driver_refuses_are_not_lost() {
    let Some(rig) = Rig::new("operations_that_the_driver_refuses_are_not_lost") else { return };
    let stream = rig.stream();
    let memory = PinnedMemory::allocate(64).unwrap();
    let addr = stream.translate(memory.addr(), 4).unwrap();
    let odd = gdsync::memory::StreamAddr::new(addr.get() + 2);
    // SAFETY: the address is misaligned, which the driver refuses before it does anything.
    let error = unsafe { stream.submit(&[MemOp::Write32 { addr: odd, value: 1 }]) }.unwrap_err();
    assert!(
        matches!(
            error,
            StreamError::Cuda(CudaError::OnGpu {
                gpu: 0,
                error: DriverError::Call { call: "cuStreamBatchMemOp", .. }
            })
        ),
        "{error}"
    );
    // SAFETY: a valid, aligned address; too many operations are refused as a whole.
    let error = unsafe { stream.submit(&vec![MemOp::Write32 { addr, value: 1 }; 256]) }.unwrap_err();
    assert!(error.to_string().contains("INVALID_VALUE"), "{error}");
    assert_eq!(Word32::new(&memory, 0).unwrap().load(), 0);
    let word = hold(&stream);
    word.store(1);
    synchronize(&stream);
}

#[test]
fn a_queue_pair_that_fails_wakes_the_stream_that_waits_for_it() {
    let Some(rig) = Rig::new("a_queue_pair_that_fails_wakes_the_stream_that_waits_for_it") else { return };
    for stream in [rig.stream(), rig.proxied()] {
        let pair = pair::Pair::new();
        pair.left.post_recv(&[], 5).unwrap();
        let arrival = pair.left.recv_cq().prepare_wait().unwrap();
        let send = pair.left.prepare(WorkRequest::send(&[])).unwrap();
        stream.post(Batch::new().wait(arrival).send(send)).unwrap();
        assert!(!stream.synchronize_timeout(Duration::from_millis(30)).unwrap());
        let named = stream.oldest_wait().unwrap();
        assert!(named.contains(&format!("{:#x}", pair.left.number())), "{named}");
        pair.left.abort().unwrap();
        synchronize(&stream);
        assert!(poll(&pair.left.recv_cq()).status.unwrap_err().is_flush());
        assert!(poll(&pair.left.send_cq()).status.unwrap_err().is_flush());
        assert!(matches!(pair.left.failure(), Some(FailureCause::Aborted)));
    }
}

#[test]
fn everything_may_be_dropped_while_the_stream_waits() {
    let Some(rig) = Rig::new("everything_may_be_dropped_while_the_stream_waits") else { return };
    let (stream, other) = (rig.stream(), rig.stream());
    let (source, target) = (rig.region(64), rig.region(64));
    let pair = pair::Pair::new();
    let slices = [source.slice(..).unwrap()];
    let word = hold(&stream);
    let send = rig.pair.left.prepare(WorkRequest::write(&slices, target.remote())).unwrap();
    let lost = pair.left.prepare(WorkRequest::send(&[])).unwrap();
    stream.post(Batch::new().send(send).send(lost)).unwrap();
    // Each of these would have to wait for the stream, if the driver were called at once.
    let start = Instant::now();
    let remote = target.clone();
    drop((source, slices, target, pair));
    let spare = PinnedMemory::allocate(4096).unwrap();
    other.post(Batch::new().write_value32(&Word32::new(&spare, 0).unwrap(), 3)).unwrap();
    synchronize(&other);
    assert_eq!(Word32::new(&spare, 0).unwrap().load(), 3);
    drop((spare, rig.memory(1 << 20), other));
    drop(stream);
    assert!(start.elapsed() < Duration::from_secs(5), "something waited for the stream");
    word.store(1);
    assert_eq!(poll(&rig.pair.left.send_cq()).status, Ok(()));
    drop(remote);
}

#[test]
fn memory_of_the_program_is_kept_until_the_gpu_has_forgotten_it() {
    let Some(rig) = Rig::new("memory_of_the_program_is_kept_until_the_gpu_has_forgotten_it") else { return };
    let (stream, waiting) = (rig.stream(), rig.stream());
    let words: Arc<[AtomicU32]> = (0..4096).map(|_| AtomicU32::new(0)).collect();
    let base = NonNull::new(words.as_ptr().cast_mut().cast()).unwrap();
    // SAFETY: the owner keeps the words, which are atomic.
    let memory = unsafe { PinnedMemory::from_raw(base, 4 * words.len(), words.clone()) };
    // The same memory a second time, as another part of a program may do. SAFETY: as above.
    let again = unsafe { PinnedMemory::from_raw(base, 64, words.clone()) };
    let held = hold(&waiting);
    for (i, memory) in [&memory, &again].into_iter().enumerate() {
        let word = Word32::new(memory, 4 * i).unwrap();
        stream.post(Batch::new().write_value32(&word, 7)).unwrap();
    }
    drop(memory);
    synchronize(&stream);
    assert_eq!((words[0].load(Ordering::Acquire), words[1].load(Ordering::Acquire)), (7, 7));
    assert_eq!(Arc::strong_count(&words), 3, "another stream waits: to forget it would have to wait, too");
    drop(again);
    held.store(1);
    synchronize(&waiting);
    synchronize(&stream);
    assert_eq!(Arc::strong_count(&words), 1);
}

#[test]
fn owners_are_dropped_after_the_last_handle_of_what_they_keep() {
    let Some(rig) = Rig::new("owners_are_dropped_after_the_last_handle_of_what_they_keep") else { return };
    let (stream, waiting) = (rig.stream(), rig.stream());
    let token = Arc::new(());
    let whole = rig.memory(64);
    let owner = (whole.clone(), token.clone());
    // SAFETY: a part of the owner's memory.
    let part = unsafe { GpuMemory::from_raw(&rig.context, whole.address() + 8, 8, owner) }.unwrap();
    drop(whole);
    let clone = part.clone();
    drop(part);
    clone.write(0, &[1; 8]).unwrap();
    let held = hold(&waiting);
    drop(clone);
    synchronize(&stream);
    assert_eq!(Arc::strong_count(&token), 2, "another stream waits: to free memory would have to wait, too");
    held.store(1);
    synchronize(&waiting);
    // Allocating frees first.
    drop(rig.memory(64));
    assert_eq!(Arc::strong_count(&token), 1);

    let raw = rig.raw_stream();
    let owner = (raw.clone(), token.clone());
    // SAFETY: the owner keeps the stream.
    let wrapped = unsafe { CudaStream::from_raw(raw.cu_stream(), owner) }.unwrap();
    assert!(wrapped.cudarc().is_none());
    drop(raw);
    let wrapped = Stream::new(wrapped).unwrap();
    let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    wrapped.post(Batch::new().write_value32(&word, 5)).unwrap();
    synchronize(&wrapped);
    assert_eq!(word.load(), 5);
    assert_eq!(Arc::strong_count(&token), 2);
    drop(wrapped);
    assert_eq!(Arc::strong_count(&token), 1);
}

#[test]
fn a_capture_is_not_posted_to() {
    let Some(rig) = Rig::new("a_capture_is_not_posted_to") else { return };
    let stream = rig.stream();
    let raw = stream.cudarc().unwrap().clone();
    raw.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    let send = rig.pair.left.prepare(WorkRequest::send(&[])).unwrap();
    let error = stream.post(Batch::new().send(send)).unwrap_err();
    assert!(matches!(error.source, PostFailure::Stream(StreamError::Cuda(CudaError::Capturing))), "{error}");
    assert!(stream.synchronize_timeout(Duration::ZERO).is_err());
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    drop(raw.end_capture(flags));
    rig.pair.right.post_recv(&[], 0).unwrap();
    stream.post(error.batch).unwrap();
    synchronize(&stream);
    assert_eq!(poll(&rig.pair.left.send_cq()).status, Ok(()));
}

/// In a separate process: a lost context does not come back.
#[test]
fn a_lost_context_fails_the_stream_and_its_queue_pairs() {
    let test = "a_lost_context_fails_the_stream_and_its_queue_pairs";
    if !alone(module_path!(), test, &[]) {
        return;
    }
    let Some(rig) = Rig::new(test) else { return };
    let (stream, other) = (rig.stream(), rig.stream());
    rig.pair.left.post_recv(&[], 0).unwrap();
    let arrival = rig.pair.left.recv_cq().prepare_wait().unwrap();
    stream.post(Batch::new().wait(arrival)).unwrap();
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel takes no arguments.
    unsafe { other.cudarc().unwrap().launch_builder(&rig.crash).launch(config) }.unwrap();
    let error = other.synchronize_timeout(LONG).unwrap_err();
    assert!(matches!(error, StreamError::Failed { .. }), "{error}");
    let send = rig.pair.right.prepare(WorkRequest::send(&[])).unwrap();
    let error = other.post_send(send).unwrap_err();
    assert!(matches!(error.source, PostFailure::Stream(StreamError::Failed { .. })), "{error}");
    assert!(rig.pair.right.failure().is_some(), "what was rung is not known");
    assert!(stream.synchronize_timeout(LONG).is_err());
    assert!(rig.pair.left.failure().is_some());
    assert!(poll(&rig.pair.left.recv_cq()).status.unwrap_err().is_flush());
    let start = Instant::now();
    drop((stream, other, error, rig));
    assert!(start.elapsed() < LONG);
}
