//! Streams that the program destroys at any time, on a real GPU. Reported as skipped without one.

use gdsync::batch::MemoryWrite;
use gdsync::cudarc::driver::sys;
use gdsync::memop::{Condition, MemOpStream, Word32};
use gdsync::persistent::{PersistentRecv, start_all};
use gdsync::queue::OrderError;
use gdsync::stream::PostFailure;
use gdsync::{Batch, CudaStream, PinnedMemory, PreparedSend, QueueError, Stream, WorkRequest};
use gdsync_test_support::gpu::{Rig, synchronize, words};
use gdsync_test_support::pair::{LONG, poll};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

fn word() -> Word32 {
    Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap()
}

fn new_stream(rig: &Rig) -> sys::CUstream {
    rig.context.bind_to_thread().unwrap();
    let mut raw = null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: a valid place; a context is current.
    assert_eq!(unsafe { sys::cuStreamCreate(&mut raw, flags) }, sys::CUresult::CUDA_SUCCESS);
    raw
}

fn borrowed(raw: sys::CUstream) -> Stream<CudaStream> {
    // SAFETY: each test posts to its stream only while that is alive.
    Stream::new(unsafe { CudaStream::borrow_raw(raw) }.unwrap()).unwrap()
}

fn destroy(raw: sys::CUstream) {
    // SAFETY: each test destroys its stream once.
    assert_eq!(unsafe { sys::cuStreamDestroy_v2(raw) }, sys::CUresult::CUDA_SUCCESS);
}

fn prepare(rig: &Rig) -> PreparedSend {
    rig.pair.right.post_recv(&[], 0).unwrap();
    rig.pair.left.prepare(WorkRequest::send(&[])).unwrap()
}

/// Posts sends of a queue pair once that has no sends on another stream any more.
fn insist(stream: &Stream<CudaStream>, mut batch: Batch) {
    let start = Instant::now();
    while let Err(error) = stream.post(batch) {
        assert!(is_in_order(&error.source) && start.elapsed() < LONG, "{error}");
        batch = error.batch;
    }
}

fn is_in_order(failure: &PostFailure) -> bool {
    matches!(failure, PostFailure::Queue(QueueError::Order(OrderError::OtherStream { .. })))
}

#[test]
fn a_borrowed_stream_may_be_destroyed_at_any_time() {
    let Some(rig) = Rig::new("a_borrowed_stream_may_be_destroyed_at_any_time") else { return };
    // Dropped before the stream has passed its work, and after.
    for is_dropped in [true, false] {
        let (raw, go, kept) = (new_stream(&rig), word(), rig.stream());
        let stream = borrowed(raw);
        stream.post(Batch::new().wait_value32(&go, Condition::Eq, 1)).unwrap();
        assert_eq!(stream.post_send(prepare(&rig)).unwrap().operations, 2);
        // Memory that the GPU must not forget before the stream has ended.
        let owner: Arc<[AtomicU32]> = (0..1024).map(|_| AtomicU32::new(0)).collect();
        let base = NonNull::new(owner.as_ptr().cast_mut().cast()).unwrap();
        // SAFETY: the owner keeps the words, which are atomic.
        let memory = unsafe { PinnedMemory::from_raw(base, 4 * owner.len(), owner.clone()) };
        kept.post(Batch::new().write_value32(&Word32::new(&memory, 0).unwrap(), 7)).unwrap();
        drop(memory);
        destroy(raw);
        assert_eq!(stream.outstanding(), 2);
        let mut stream = Some(stream);
        if is_dropped {
            stream = None;
        }
        synchronize(&kept);
        assert_eq!(Arc::strong_count(&owner), 2, "the destroyed stream waits");
        let second = prepare(&rig);
        let error = kept.post_send(second).unwrap_err();
        assert!(is_in_order(&error.source), "{error}");
        go.store(1);
        if let Some(stream) = &stream {
            assert!(stream.synchronize_timeout(LONG).unwrap());
            assert_eq!(stream.outstanding(), 0);
        }
        insist(&kept, error.batch);
        synchronize(&kept);
        assert_eq!(Arc::strong_count(&owner), 1);
        for _ in 0..2 {
            assert_eq!(poll(&rig.pair.left.send_cq()).status, Ok(()));
            assert_eq!(poll(&rig.pair.right.recv_cq()).status, Ok(()));
        }
    }
}

#[test]
fn of_a_borrowed_stream_the_librarys_work_is_waited_for() {
    let Some(rig) = Rig::new("of_a_borrowed_stream_the_librarys_work_is_waited_for") else { return };
    let (raw, go, programs) = (new_stream(&rig), word(), word());
    let stream = borrowed(raw);
    stream.post(Batch::new().write_value32(&programs, 1)).unwrap();
    // The program's own wait, which the library does not know.
    let at = stream.translate(go.addr(), 4).unwrap().get();
    // SAFETY: the stream is alive, and the word until the stream has passed it.
    assert_eq!(unsafe { sys::cuStreamWaitValue32_v2(raw, at, 1, 0) }, sys::CUresult::CUDA_SUCCESS);
    synchronize(&stream);
    assert!(!stream.query().unwrap());
    go.store(1);
    while !stream.query().unwrap() {}
    destroy(raw);
}

#[test]
fn copies_to_a_borrowed_stream_are_waited_for() {
    let Some(rig) = Rig::new("copies_to_a_borrowed_stream_are_waited_for") else { return };
    let (raw, memory) = (new_stream(&rig), rig.memory(4096));
    let stream = borrowed(raw);
    let content: Vec<u32> = (0..1024).collect();
    let bytes: Vec<u8> = content.iter().flat_map(|word| word.to_le_bytes()).collect();
    stream.post(Batch::new().write_memory(MemoryWrite::new(&memory, 0, &bytes).unwrap())).unwrap();
    destroy(raw);
    assert!(stream.synchronize_timeout(LONG).unwrap());
    assert_eq!(stream.outstanding(), 0);
    assert_eq!(words(&memory), content);
}

#[test]
fn receives_that_start_on_a_borrowed_stream_follow_the_programs_work() {
    let Some(rig) = Rig::new("receives_that_start_on_a_borrowed_stream_follow_the_programs_work") else {
        return;
    };
    let (raw, go) = (new_stream(&rig), word());
    let stream = borrowed(raw);
    let at = stream.translate(go.addr(), 4).unwrap().get();
    // SAFETY: the stream is alive, and the word until the stream has passed it.
    assert_eq!(unsafe { sys::cuStreamWaitValue32_v2(raw, at, 1, 0) }, sys::CUresult::CUDA_SUCCESS);
    let target = rig.pair.region(8);
    let mut receive = PersistentRecv::new(&rig.pair.right, &[target.slice(..).unwrap()]).unwrap();
    let started = start_all(&mut [&mut receive], &stream, LONG).unwrap();
    assert_eq!(started.submissions, 1, "the stream posts it once it has passed the wait");
    go.store(1);
    synchronize(&stream);
    rig.pair.left.post_send(WorkRequest::send(&[])).unwrap();
    assert!(receive.complete(LONG).unwrap().unwrap().status.is_ok());
    destroy(raw);
}

#[test]
fn a_capture_of_another_stream_goes_on_while_a_borrowed_stream_is_asked() {
    let Some(rig) = Rig::new("a_capture_of_another_stream_goes_on_while_a_borrowed_stream_is_asked") else {
        return;
    };
    let (raw, captured, go) = (new_stream(&rig), new_stream(&rig), word());
    let stream = borrowed(raw);
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the stream is alive.
    assert_eq!(unsafe { sys::cuStreamBeginCapture_v2(captured, mode) }, sys::CUresult::CUDA_SUCCESS);
    stream.post(Batch::new().wait_value32(&go, Condition::Eq, 1)).unwrap();
    assert_eq!(stream.outstanding(), 1);
    go.store(1);
    assert!(stream.synchronize_timeout(LONG).unwrap());
    drop(stream);
    let mut graph = null_mut();
    // SAFETY: the stream is alive and captured, `graph` a valid place; the empty graph is destroyed once.
    unsafe {
        assert_eq!(sys::cuStreamEndCapture(captured, &mut graph), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuGraphDestroy(graph), sys::CUresult::CUDA_SUCCESS);
    }
    [raw, captured].into_iter().for_each(destroy);
}
