//! The failure model on a real GPU: status words in kernels, persistent requests, the watchdog, recovery, graphs.
//! Reported as skipped without one.

use gdsync::batch::BatchShape;
use gdsync::cuda::{CudaError, GpuMemory};
use gdsync::cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use gdsync::cudarc::nvrtc::Ptx;
use gdsync::memop::{Condition, MemOpStream, StreamError, Word32};
use gdsync::memory::StreamAddr;
use gdsync::persistent::{PersistentError, PersistentRecv, PersistentSend};
use gdsync::qp::CheckedWait;
use gdsync::queue::{FailureCause, Status, Syndrome, WorkError};
use gdsync::stream::PostFailure;
use gdsync::{
    Batch, ConnectOptions, CudaStream, PinnedMemory, QueuePair, QueuePairConfig, RemoteMemory, Stream,
    WorkRequest,
};
use gdsync_test_support::gpu::{Rig, words};
use gdsync_test_support::pair::{Pair, drain_and_reconnect, poll};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A limit that no wait here exceeds.
const LONG: Duration = Duration::from_secs(10);
const BAD: RemoteMemory = RemoteMemory { addr: 0, len: 8, rkey: 1 };

/// `copy(from, to)`: one 32-bit word, read from memory and not from a cache.
const PTX: &str = r"
.version 7.0
.target sm_70
.address_size 64
.visible .entry copy(.param .u64 from, .param .u64 to) {
    .reg .b32 %r<2>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [from]; ld.param.u64 %rd2, [to];
    ld.volatile.global.u32 %r1, [%rd1]; st.global.u32 [%rd2], %r1;
    ret;
}
";

struct Reader {
    copy: CudaFunction,
    seen: GpuMemory,
}

impl Reader {
    fn new(rig: &Rig) -> Reader {
        let module = rig.context.load_module(Ptx::from_src(PTX)).unwrap();
        let reader = Reader { copy: module.load_function("copy").unwrap(), seen: rig.memory(64) };
        // A kernel is loaded at its first launch, which must not have to wait for a blocked stream.
        let (stream, word) = (rig.stream(), pinned_word());
        let address = stream.translate(word.addr(), 4).unwrap();
        reader.launch(&stream, address, 0);
        synchronize(&stream);
        reader
    }

    /// Makes the stream copy a reachable word to the `index`-th word of `seen`.
    fn launch(&self, stream: &CudaStream, from: StreamAddr, index: usize) {
        let (from, to) = (from.get(), self.seen.address() + 4 * index as u64);
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        let mut launch = stream.cudarc().unwrap().launch_builder(&self.copy);
        launch.arg(&from).arg(&to);
        // SAFETY: the arguments are the kernel's. Both words live until the stream was synchronized: every test keeps
        // the status and the reader until then.
        unsafe { launch.launch(config) }.unwrap();
    }
}

fn pinned_word() -> Word32 {
    Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap()
}

fn synchronize(stream: &Stream<CudaStream>) {
    let done = stream.synchronize_timeout(LONG).unwrap();
    assert!(done, "the stream is stuck: {stream:?}, {:?}", stream.oldest_wait());
}

/// Makes a kernel after a checked wait read the status, lets `happen` end the wait, and compares.
fn check(
    stream: &Stream<CudaStream>,
    reader: &Reader,
    batch: Batch,
    wait: CheckedWait,
    happen: impl FnOnce(),
) -> Option<Syndrome> {
    let status = wait.status();
    let address = status.address_on(stream).unwrap();
    stream.post(batch.wait_checked(wait)).unwrap();
    reader.launch(stream, address, 1);
    happen();
    synchronize(stream);
    let seen = words(&reader.seen)[1];
    assert_eq!(seen, status.word().load(), "the kernel sees what the CPU sees");
    let told = status.get().expect("the stream went on no earlier");
    assert_eq!(seen == Status::OK, told.is_ok());
    assert_eq!(seen & Status::FAILED != 0, told.is_err());
    told.err().and_then(WorkError::kind)
}

fn send_wait(queue_pair: &QueuePair, request: WorkRequest<'_>) -> (Batch, CheckedWait) {
    let send = queue_pair.prepare(request).unwrap();
    (Batch::new().send(send), queue_pair.send_cq().prepare_wait().unwrap().checked().unwrap())
}

#[test]
fn a_kernel_reads_how_the_work_that_its_stream_waited_for_ended() {
    let Some(rig) = Rig::new("a_kernel_reads_how_the_work_that_its_stream_waited_for_ended") else { return };
    let reader = Reader::new(&rig);
    for stream in [rig.stream(), rig.proxied()] {
        let pair = Pair::new();
        let target = pair.region(8);
        let (batch, wait) = send_wait(&pair.left, WorkRequest::write_inline(&[1], target.remote()));
        assert_eq!(check(&stream, &reader, batch, wait, || ()), None);
        assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));

        let (batch, wait) = send_wait(&pair.left, WorkRequest::write_inline(&[1], BAD));
        assert_eq!(check(&stream, &reader, batch, wait, || ()), Some(Syndrome::RemoteAccess));
        let error = poll(&pair.left.send_cq()).status.unwrap_err();
        assert_eq!(pair.left.failure(), Some(FailureCause::Work(error)));

        // No queue pair is connected to this one, so that it gets no answer.
        let [lonely, deaf] = [(); 2].map(|()| QueuePair::new(&pair.pd, QueuePairConfig::default()).unwrap());
        let options = ConnectOptions::default().timeout(8).retry_count(2);
        lonely.connect(&deaf.endpoint().unwrap(), options).unwrap();
        let (batch, wait) = send_wait(&lonely, WorkRequest::send(&[]));
        assert_eq!(check(&stream, &reader, batch, wait, || ()), Some(Syndrome::RetryExceeded));

        let pair = Pair::new();
        pair.right.post_recv(&[], 1).unwrap();
        let wait = pair.right.recv_cq().prepare_wait().unwrap().checked().unwrap();
        let status = wait.status();
        let ended = check(&stream, &reader, Batch::new(), wait, || {
            assert!(!stream.synchronize_timeout(Duration::from_millis(30)).unwrap(), "nothing has come");
            assert_eq!(status.get(), None);
            pair.right.abort().unwrap();
        });
        assert_eq!(ended, Some(Syndrome::WrFlush));
        assert!(poll(&pair.right.recv_cq()).status.unwrap_err().is_flush());
    }
}

#[test]
fn persistent_requests_are_started_again_and_again_without_the_cpu() {
    let Some(rig) = Rig::new("persistent_requests_are_started_again_and_again_without_the_cpu") else {
        return;
    };
    let reader = Reader::new(&rig);
    const ROUNDS: u32 = 12;
    for (lap, proxied) in [(0, false), (1, true)] {
        let new = || if proxied { rig.proxied() } else { rig.stream() };
        let (sender, receiver) = (new(), new());
        let (source, target) = (rig.region(64), rig.region(64));
        let mut send = PersistentSend::send(&rig.pair.left, &[source.slice(..).unwrap()]).unwrap();
        let mut recv = PersistentRecv::new(&rig.pair.right, &[target.slice(..).unwrap()]).unwrap();
        let gate = pinned_word();
        for stream in [&sender, &receiver] {
            stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
        }
        for round in 0..ROUNDS {
            rig.launch(&sender, &rig.fill, source.memory(), 100 * round + lap);
            send.start(&sender).unwrap();
            send.wait_on(&sender).unwrap();
            recv.start(&receiver).unwrap();
            recv.wait_on(&receiver).unwrap();
            // The buffer is read before the next message may overwrite it: its receive is posted after this kernel.
            reader.launch(&receiver, StreamAddr::new(target.memory().address()), round as usize);
        }
        assert_eq!(send.status().unwrap().get(), None);
        gate.store(1);
        synchronize(&sender);
        synchronize(&receiver);
        let expected: Vec<u32> = (0..ROUNDS).map(|round| 100 * round + lap).collect();
        assert_eq!(words(&reader.seen)[..ROUNDS as usize], expected);
        assert_eq!(send.complete(LONG).unwrap().unwrap().status, Ok(()));
        assert_eq!(recv.complete(LONG).unwrap().unwrap().status, Ok(()));
        assert!(!send.is_active() && !recv.is_active());
    }
}

#[test]
fn a_persistent_send_that_fails_wakes_its_stream_and_tells() {
    let Some(rig) = Rig::new("a_persistent_send_that_fails_wakes_its_stream_and_tells") else { return };
    let (stream, source) = (rig.stream(), rig.region(64));
    let slices = [source.slice(..).unwrap()];
    let remote = RemoteMemory { addr: 0, len: 64, rkey: 1 };
    let mut write = PersistentSend::write(&rig.pair.left, &slices, remote).unwrap();
    write.start(&stream).unwrap();
    write.wait_on(&stream).unwrap();
    let status = write.status().unwrap();
    synchronize(&stream);
    let error = status.get().unwrap().unwrap_err();
    assert_eq!(error.kind(), Some(Syndrome::RemoteAccess));
    assert_eq!(write.complete(LONG).unwrap().unwrap().status, Err(error));
    assert_eq!(rig.pair.left.failure(), Some(FailureCause::Work(error)));
}

#[test]
fn the_watchdog_names_the_wait_of_a_gpu_stream() {
    let Some(rig) = Rig::new("the_watchdog_names_the_wait_of_a_gpu_stream") else { return };
    let stream = Arc::new(rig.stream());
    let (told, heard) = mpsc::channel();
    let watchdog = stream
        .watchdog(Duration::from_millis(20), move |wait, stood| {
            // The test may have ended.
            told.send((wait.clone(), stood)).unwrap_or_default();
        })
        .unwrap();
    let left = &rig.pair.left;
    left.post_recv(&[], 0).unwrap();
    stream.post(Batch::new().wait(left.recv_cq().prepare_wait().unwrap())).unwrap();
    let (wait, stood) = heard.recv_timeout(LONG).unwrap();
    assert!(stood >= Duration::from_millis(20));
    assert_eq!((wait.index, wait.queue_pairs.as_slice()), (Some(0), &[left.number()][..]), "{wait}");
    assert!(wait.completion_queue.is_some());
    left.abort().unwrap();
    synchronize(&stream);
    drop(watchdog);
    assert!(matches!(heard.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected)), "said once");
}

#[test]
fn queue_pairs_of_a_gpu_stream_start_anew_after_a_failure() {
    let Some(rig) = Rig::new("queue_pairs_of_a_gpu_stream_start_anew_after_a_failure") else { return };
    for stream in [rig.stream(), rig.proxied()] {
        let (source, target) = (rig.region(64), rig.region(64));
        let slices = [source.slice(..).unwrap()];
        for round in 0..5 {
            let Pair { left, right, .. } = &rig.pair;
            let (batch, wait) = send_wait(left, WorkRequest::write_inline(&[1], BAD));
            let status = wait.status();
            stream.post(batch.wait_checked(wait)).unwrap();
            synchronize(&stream);
            assert!(status.get().unwrap().is_err() && left.failure().is_some());
            drain_and_reconnect(&rig.pair);

            right.post_recv(&[target.slice(..).unwrap()], 0).unwrap();
            rig.launch(&stream, &rig.fill, source.memory(), 1000 * round);
            let (batch, wait) = send_wait(left, WorkRequest::send(&slices));
            let status = wait.status();
            let arrival = right.recv_cq().prepare_wait().unwrap();
            stream.post(batch.wait_checked(wait).wait(arrival)).unwrap();
            rig.launch(&stream, &rig.add, target.memory(), 7);
            synchronize(&stream);
            assert_eq!(status.get(), Some(Ok(())));
            let expected: Vec<u32> = (0..16).map(|i| 1000 * round + i + 7).collect();
            assert_eq!(words(target.memory()), expected, "round {round}");
            assert_eq!((poll(&left.send_cq()).status, poll(&right.recv_cq()).status), (Ok(()), Ok(())));
        }
    }
}

#[test]
fn a_checked_wait_fills_the_place_of_a_wait_in_a_graph() {
    let Some(rig) = Rig::new("a_checked_wait_fills_the_place_of_a_wait_in_a_graph") else { return };
    let stream = rig.stream();
    let target = rig.pair.region(8);
    let shape = BatchShape::new().send().wait();
    let mut graph = stream.capture(|capture| Ok(capture.batch(&shape)?)).unwrap();
    for (remote, expected) in [
        (target.remote(), None),
        (target.remote(), None),
        (target.remote(), None),
        (BAD, Some(Syndrome::RemoteAccess)),
    ] {
        let (batch, wait) = send_wait(&rig.pair.left, WorkRequest::write_inline(&[1], remote));
        let status = wait.status();
        stream.launch(&mut graph, [batch.wait_checked(wait)]).unwrap();
        synchronize(&stream);
        assert_eq!(status.get().unwrap().err().and_then(WorkError::kind), expected);
        assert_eq!(poll(&rig.pair.left.send_cq()).status, status.get().unwrap());
    }
    assert!(rig.pair.left.failure().is_some());
}

#[test]
fn a_persistent_request_is_not_captured() {
    let Some(rig) = Rig::new("a_persistent_request_is_not_captured") else { return };
    let (stream, other) = (rig.stream(), rig.stream());
    let (source, target) = (rig.region(64), rig.region(64));
    let mut send = PersistentSend::send(&rig.pair.left, &[source.slice(..).unwrap()]).unwrap();
    let mut recv = PersistentRecv::new(&rig.pair.right, &[target.slice(..).unwrap()]).unwrap();
    let mut sent = PersistentSend::send(&rig.pair.left, &[source.slice(..).unwrap()]).unwrap();
    let refused = |result: Result<(), PersistentError>| {
        let error = result.unwrap_err();
        let PersistentError::Post(PostFailure::Stream(StreamError::Cuda(cause))) = &error else {
            panic!("{error}")
        };
        assert_eq!(*cause, CudaError::Capturing);
    };
    sent.start(&other).unwrap();
    // One queue pair's sends move from one stream to another when the first is idle.
    synchronize(&other);
    let graph = stream.capture(|_| {
        refused(send.start(&stream));
        refused(recv.start(&stream));
        refused(sent.wait_on(&stream));
        Ok(())
    });
    assert_eq!(graph.unwrap().batches(), 0);
    assert!(!send.is_active() && !recv.is_active() && sent.is_active());
    // Nothing was started, and nothing prevents a start.
    recv.start(&stream).unwrap();
    recv.wait_on(&stream).unwrap();
    synchronize(&stream);
    assert_eq!(sent.complete(LONG).unwrap().unwrap().status, Ok(()));
    assert_eq!(recv.complete(LONG).unwrap().unwrap().status, Ok(()));
    send.start(&stream).unwrap();
    recv.start(&stream).unwrap();
    assert_eq!(send.complete(LONG).unwrap().unwrap().status, Ok(()));
    assert_eq!(recv.complete(LONG).unwrap().unwrap().status, Ok(()));
}
