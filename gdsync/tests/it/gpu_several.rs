//! Streams, memory and queues of two GPUs in one process. With one GPU, the applicable tests run on two streams of
//! it. Reported as skipped without a GPU.

use gdsync::advanced::mapped::MappedMemory;
use gdsync::batch::MemoryWrite;
use gdsync::cuda::{self, CudaError, GpuMemory, Placement, QueuePlacement};
use gdsync::cudarc::driver::{CudaFunction, LaunchConfig, sys};
use gdsync::memop::{Condition, GpuWord32, GpuWord64, StreamError, StreamWord, Word32};
use gdsync::stream::PostFailure;
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{
    Access, Batch, ConnectOptions, CudaStream, MemoryRegion, PinnedMemory, ProtectionDomain, QueuePair,
    QueuePairConfig, Stream, Trigger, WorkRequest,
};
use gdsync_test_support::gpu::{Rig, synchronize, words};
use gdsync_test_support::pair::{self, LONG, Pair, content, fill, layouts, poll};
use gdsync_test_support::process::alone;
use gdsync_test_support::skipped;
use std::time::Duration;

/// Messages to and fro: one stream sends the request and waits for the answer, the other waits for the request and
/// answers. Both may be the same stream.
fn rounds(pair: &Pair, streams: [&Stream<CudaStream>; 2], count: usize) {
    let (source, target) = (pair.region(64), pair.region(64));
    for round in 0..count {
        let sent = fill(&source, round);
        pair.right.post_recv(&[target.slice(..).unwrap()], round as u64).unwrap();
        pair.left.post_recv(&[], round as u64).unwrap();
        let slices = [source.slice(..).unwrap()];
        let request = WorkRequest::send(&slices).wr_id(round as u64);
        streams[0].post(Batch::new().send(pair.left.prepare(request).unwrap())).unwrap();
        let answer = pair.right.prepare(WorkRequest::send(&[])).unwrap();
        let arrived = pair.right.recv_cq().prepare_wait().unwrap();
        streams[1].post(Batch::new().wait(arrived).send(answer)).unwrap();
        streams[0].post(Batch::new().wait(pair.left.recv_cq().prepare_wait().unwrap())).unwrap();
        streams.into_iter().for_each(synchronize);
        assert_eq!(content(&target), sent, "round {round}");
        for queue in [pair.left.send_cq(), pair.left.recv_cq(), pair.right.send_cq(), pair.right.recv_cq()] {
            assert_eq!(poll(&queue).status, Ok(()));
        }
    }
}

/// The pages of a queue and of a word are registered once, and known to both contexts.
#[test]
fn streams_of_two_gpus_use_the_same_queues_and_words() {
    let Some(rigs) = Rig::two("streams_of_two_gpus_use_the_same_queues_and_words") else { return };
    let streams = rigs.each_ref().map(Rig::stream);
    let both = [&streams[0], &streams[1]];
    let config = QueuePairConfig::default().send_depth(16).recv_depth(16);
    let pair = Pair::with(config, ConnectOptions::default());
    rounds(&pair, both, 40);
    // The other way round: the queue pairs' sides swap their GPUs.
    rounds(&pair, [both[1], both[0]], 40);
    // Words, too.
    let memory = PinnedMemory::allocate(8).unwrap();
    let [ping, pong] = [0, 4].map(|offset| Word32::new(&memory, offset).unwrap());
    for round in 1..=100 {
        let there = Batch::new().write_value32(&ping, round).wait_value32(&pong, Condition::Eq, round);
        let back = Batch::new().wait_value32(&ping, Condition::Eq, round).write_value32(&pong, round);
        both[0].post(there).unwrap();
        both[1].post(back).unwrap();
    }
    both.into_iter().for_each(synchronize);
    assert_eq!((ping.load(), pong.load()), (100, 100));
    // One GPU forgets the pages while the other still uses them.
    let [first, second] = streams;
    drop(first);
    rounds(&pair, [&second, &second], 10);
    drop(memory);
    drop(pair);
    synchronize(&second);
    let again = Pair::with(config, ConnectOptions::default());
    let first = rigs[0].stream();
    rounds(&again, [&first, &second], 10);
}

#[test]
fn kernels_of_two_gpus_pass_data_to_and_fro() {
    let Some(rigs) = Rig::two("kernels_of_two_gpus_pass_data_to_and_fro") else { return };
    const ROUNDS: u32 = 200;
    let pair = &rigs[0].pair;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    // Large enough that a software card copies it as several packets.
    let regions =
        rigs.each_ref().map(|rig| GpuMemoryRegion::register(&pair.pd, rig.memory(300_000), access).unwrap());
    let streams = rigs.each_ref().map(Rig::stream);
    let ends = [&pair.left, &pair.right];
    rigs[0].launch(&streams[0], &rigs[0].fill, regions[0].memory(), 0);
    for round in 0..ROUNDS {
        for (from, to) in [(0, 1), (1, 0)] {
            // The sender's GPU computed the sent data, and the receiver's computes on the received data.
            rigs[from].launch(&streams[from], &rigs[from].add, regions[from].memory(), 1 + from as u32);
            let whole = [regions[to].slice(..).unwrap()];
            ends[to].post_recv(&whole, 0).unwrap();
            let whole = [regions[from].slice(..).unwrap()];
            let send = ends[from].prepare(WorkRequest::send(&whole)).unwrap();
            streams[from].post(Batch::new().send(send)).unwrap();
            let arrived = ends[to].recv_cq().prepare_wait().unwrap();
            streams[to].post(Batch::new().wait(arrived)).unwrap();
        }
        if round % 8 == 7 {
            streams.iter().for_each(synchronize);
            for queue in ends.iter().flat_map(|end| [end.send_cq(), end.recv_cq()]) {
                (0..8).for_each(|_| assert_eq!(poll(&queue).status, Ok(())));
            }
        }
    }
    let found = words(regions[0].memory());
    let expected: Vec<u32> = (0..16).map(|i| i + 3 * ROUNDS).collect();
    assert_eq!(found[..16], expected);
}

#[test]
fn a_thread_posts_to_both_gpus_whatever_context_is_current() {
    let test = "a_thread_posts_to_both_gpus_whatever_context_is_current";
    let Some(rigs) = Rig::two(test) else { return };
    let streams = rigs.each_ref().map(Rig::stream);
    let other = OtherContext::new(rigs[0].number());
    let memory = PinnedMemory::allocate(4).unwrap();
    let word = Word32::new(&memory, 0).unwrap();
    let mut value = 0;
    for current in [Some(0), Some(1), None] {
        for stream in &streams {
            match current {
                Some(rig) => rigs[rig].context.bind_to_thread().unwrap(),
                None => other.bind(),
            }
            value += 1;
            stream.post(Batch::new().write_value32(&word, value)).unwrap();
            let write = MemoryWrite::new(&memory, 0, &(value + 1).to_ne_bytes()).unwrap();
            stream.post(Batch::new().wait_value32(&word, Condition::Eq, value).write_memory(write)).unwrap();
            synchronize(stream);
            value += 1;
            assert_eq!(word.load(), value);
        }
    }
}

/// Everything that a program does with one GPU's memory while a stream of the other waits.
#[test]
fn memory_is_registered_beside_a_stream_that_waits_on_the_other_gpu() {
    let test = "memory_is_registered_beside_a_stream_that_waits_on_the_other_gpu";
    let Some(rigs) = Rig::two(test) else { return };
    let waiting = rigs[0].stream();
    let gate = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let (rig, pair) = (&rigs[1], &rigs[0].pair);
    let stream = rig.stream();
    waiting.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    for round in 0..20u8 {
        let region = |memory| GpuMemoryRegion::register(&pair.pd, memory, access).unwrap();
        let (source, target) = (region(rig.memory(5000)), region(rig.memory(5000)));
        source.memory().write(0, &[round; 5000]).unwrap();
        let slices = [source.slice(..).unwrap()];
        let write = pair.left.prepare(WorkRequest::write(&slices, target.remote())).unwrap();
        let written = pair.left.send_cq().prepare_wait().unwrap();
        stream.post(Batch::new().send(write).wait(written)).unwrap();
        synchronize(&stream);
        assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
        let mut found = [0; 5000];
        target.memory().read(0, &mut found).unwrap();
        assert_eq!(found, [round; 5000]);
    }
    assert!(!waiting.synchronize_timeout(Duration::from_millis(5)).unwrap());
    gate.store(1);
    synchronize(&waiting);
}

fn refused(stream: &Stream<CudaStream>, word: &impl StreamWord<u32>) -> StreamError {
    match stream.post(Batch::new().write_value32(word, 1)).unwrap_err().source {
        PostFailure::Stream(error) => error,
        other => panic!("{other}"),
    }
}

/// In a separate process: access stays.
#[test]
fn a_peers_memory_is_refused_until_access_is_enabled() {
    let test = "a_peers_memory_is_refused_until_access_is_enabled";
    if !alone(module_path!(), test, &[]) {
        return;
    }
    let Some([one, peer]) = Rig::two_gpus(test) else { return };
    let stream = one.stream();
    let memory = peer.memory(64);
    let word = GpuWord32::new(&memory, 0).unwrap();
    let error = refused(&stream, &word);
    assert_eq!(error, StreamError::OtherGpu { stream: 0, memory: 1 });
    let said = error.to_string();
    assert!(said.contains("GPU 0 (") && said.contains("GPU 1 (") && said.contains("enable_peer"), "{said}");
    let before = MappedMemory::allocate(&peer.context, 64);
    let enabled = cuda::enable_peer_access(&one.context, &peer.context);
    if !cuda::peer_capabilities(0, 1).unwrap().access {
        let error = enabled.unwrap_err();
        assert!(matches!(error, CudaError::NoPeerAccess { gpu: 0, peer: 1, .. }), "{error}");
        return skipped(test, "the GPUs have no access to each other's memory");
    }
    enabled.unwrap();
    cuda::enable_peer_access(&one.context, &peer.context).unwrap();

    waits_and_writes(&stream, &memory);
    // Memory of the kind that is mapped for the CPU, made before and after.
    match (before, MappedMemory::allocate(&peer.context, 64)) {
        (Ok(before), Ok(after)) => {
            [before, after].iter().for_each(|memory| waits_and_writes(&stream, memory.gpu()));
            queues_in_its_memory(&[&stream, &stream], 1);
            queues_in_its_memory(&[&stream, &peer.stream()], 1);
        }
        (Err(error), _) | (_, Err(error)) => skipped(test, &format!("queues in GPU memory: {error}")),
    }
    // The program's memory: the driver knows it. SAFETY: `memory` is dropped later.
    let part = unsafe { GpuMemory::from_raw(&peer.context, memory.address(), 64, ()) }.unwrap();
    waits_and_writes(&stream, &part);
    tickets(&stream, &peer);
    // The other direction needs another call.
    let own = GpuWord32::new(&one.memory(64), 0).unwrap();
    assert!(matches!(refused(&peer.stream(), &own), StreamError::OtherGpu { stream: 1, memory: 0 }));
}

/// Waits for words of GPU memory, writes of words and of bytes.
fn waits_and_writes(stream: &Stream<CudaStream>, memory: &GpuMemory) {
    let (short, long) = (GpuWord32::new(memory, 0).unwrap(), GpuWord64::new(memory, 8).unwrap());
    for round in 1..20u32 {
        let bytes = [round as u8; 32];
        let batch = Batch::new()
            .wait_value32(&short, Condition::Eq, 2 * round)
            .write_value64(&long, u64::from(round) << 33)
            .write_value32(&short, 2 * round + 1)
            .write_memory(MemoryWrite::new(memory, 16, &bytes).unwrap());
        stream.post(batch).unwrap();
        assert!(!stream.synchronize_timeout(Duration::from_millis(1)).unwrap(), "round {round}");
        short.store(2 * round).unwrap();
        synchronize(stream);
        assert_eq!((short.load().unwrap(), long.load().unwrap()), (2 * round + 1, u64::from(round) << 33));
        let mut found = [0; 32];
        memory.read(16, &mut found).unwrap();
        assert_eq!(found, bytes);
    }
}

/// Messages through queues in that GPU's memory, in every layout.
fn queues_in_its_memory(streams: &[&Stream<CudaStream>; 2], gpu: u32) {
    for placement in layouts(Placement::Gpu(gpu)).filter(|layout| *layout != QueuePlacement::HOST) {
        let config = QueuePairConfig::default().send_depth(16).recv_depth(16).placement(placement);
        rounds(&Pair::with(config, ConnectOptions::default()), *streams, 40);
    }
}

/// Sends that a stream releases by a trigger whose word is in a peer's memory.
fn tickets(stream: &Stream<CudaStream>, peer: &Rig) {
    let pd = ProtectionDomain::new(&pair::device()).unwrap();
    let word = GpuMemoryRegion::register(&pd, peer.memory(8), Access::empty()).unwrap();
    let Ok(trigger) = Trigger::in_gpu_region(&word, 0) else {
        return skipped("tickets", "the card does not wait");
    };
    let target = MemoryRegion::allocate(&pd, 8, Access::all()).unwrap();
    let config = QueuePairConfig::default();
    let left = QueuePair::new(&pd, config.trigger(&trigger)).unwrap();
    let right = QueuePair::new(&pd, config).unwrap();
    left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    for round in 0..20u64 {
        let send = left.prepare(WorkRequest::write_inline(&round.to_ne_bytes(), target.remote())).unwrap();
        let done = left.send_cq().prepare_wait().unwrap();
        stream.post(Batch::new().send(send).wait(done)).unwrap();
        synchronize(stream);
        assert_eq!(poll(&left.send_cq()).status, Ok(()));
        assert_eq!(target.words64()[0].load(std::sync::atomic::Ordering::Acquire), round);
    }
}

/// A context of the program on a GPU whose primary context gdsync uses. It stays, as gdsync keeps contexts that it
/// has seen.
struct OtherContext(sys::CUcontext);

impl OtherContext {
    fn new(gpu: u32) -> Self {
        let (mut context, mut popped) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: valid places; the device exists, as the rig has it.
        let made = unsafe { sys::cuCtxCreate_v2(&mut context, 0, gpu as i32) };
        assert_eq!(made, sys::CUresult::CUDA_SUCCESS);
        // SAFETY: a valid place; the new context is current.
        assert_eq!(unsafe { sys::cuCtxPopCurrent_v2(&mut popped) }, sys::CUresult::CUDA_SUCCESS);
        OtherContext(context)
    }

    fn bind(&self) {
        // SAFETY: the context stays.
        assert_eq!(unsafe { sys::cuCtxSetCurrent(self.0) }, sys::CUresult::CUDA_SUCCESS);
    }
}

/// Two contexts on one GPU do not share memory, unless the driver says otherwise. In a separate process: if the
/// driver is wrong, the context is lost.
#[test]
fn memory_of_another_context_on_the_gpu_is_refused_or_reached() {
    let test = "memory_of_another_context_on_the_gpu_is_refused_or_reached";
    if !alone(module_path!(), test, &[]) {
        return;
    }
    let Some(rig) = Rig::new(test) else { return };
    let other = OtherContext::new(0);
    other.bind();
    let mut raw = std::ptr::null_mut();
    // SAFETY: a valid place; a context is current.
    assert_eq!(unsafe { sys::cuStreamCreate(&mut raw, 1) }, sys::CUresult::CUDA_SUCCESS);
    // SAFETY: the stream stays.
    let stream = Stream::new(unsafe { CudaStream::from_raw(raw, ()) }.unwrap()).unwrap();
    rig.context.bind_to_thread().unwrap();
    let memory = rig.memory(64);
    let error = refused(&stream, &GpuWord32::new(&memory, 0).unwrap());
    assert_eq!(error, StreamError::OtherGpu { stream: 0, memory: 0 });
    // Host memory is every context's.
    let streams = [&stream, &rig.stream()];
    rounds(&Pair::new(), streams, 20);
    // The same context needs no access.
    cuda::enable_peer_access(&rig.context, &rig.context).unwrap();
}

/// In a separate process: a lost context does not come back.
#[test]
fn a_lost_context_leaves_the_other_gpu_working_or_says_that_it_does_not() {
    let test = "a_lost_context_leaves_the_other_gpu_working_or_says_that_it_does_not";
    if !alone(module_path!(), test, &[]) {
        return;
    }
    let Some([one, lost]) = Rig::two_gpus(test) else { return };
    let streams = [one.stream(), lost.stream()];
    let pair = Pair::new();
    rounds(&pair, [&streams[0], &streams[1]], 10);
    crash(&streams[1], &lost.crash);
    let error = streams[1].synchronize_timeout(LONG).unwrap_err();
    assert!(matches!(&error, StreamError::Failed { reason } if reason.contains("GPU 1 (")), "{error}");
    let fresh = || Pair::with(QueuePairConfig::default(), ConnectOptions::default());
    match streams[0].synchronize_timeout(LONG) {
        // Pages that both knew are unmapped, and other memory gets their addresses.
        Ok(idle) => {
            assert!(idle);
            drop(pair);
            for _ in 0..10 {
                rounds(&fresh(), [&streams[0], &streams[0]], 5);
                drop(one.memory(64));
            }
        }
        // Driver 580 abandons all contexts of the process: posted work is returned, with the reason.
        Err(error) => {
            let names_gpu = |error: &dyn std::fmt::Display| error.to_string().contains("GPU 0 (");
            assert!(matches!(&error, StreamError::Failed { .. }) && names_gpu(&error), "{error}");
            for pair in [pair, fresh()] {
                let send =
                    pair.left.prepare(WorkRequest::write_inline(&[1], pair.region(1).remote())).unwrap();
                let error = streams[0].post(Batch::new().send(send)).unwrap_err();
                assert!(error.batch.len() == 1 && names_gpu(&error.source), "{}", error.source);
            }
        }
    }
}

fn crash(stream: &Stream<CudaStream>, kernel: &CudaFunction) {
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel takes no arguments.
    unsafe { stream.cudarc().unwrap().launch_builder(kernel).launch(config) }.unwrap();
}
