//! The basic operations on a real GPU. Reported as skipped without one.

use gdsync::cuda::{self, Consistency, CudaError, DriverError, GpuMemory};
use gdsync::cudarc::driver::{DevicePtr, sys};
use gdsync::memop::{Condition, StreamError, Word32, Word64};
use gdsync::queue::RequestError;
use gdsync::stream::{Doorbells, PostFailure};
use gdsync::verbs::{GpuMemoryRegion, RegistrationError};
use gdsync::{Access, Batch, CudaStream, Error, PinnedMemory, QueueError, Stream, WorkRequest};
use gdsync_test_support::gpu::{Rig, synchronize, words};
use gdsync_test_support::pair::{LONG, poll};
use std::time::{Duration, Instant};

#[test]
fn a_machine_without_cuda_says_so() {
    match cuda::device_count() {
        Ok(count) => {
            let error = cuda::context(count).unwrap_err().to_string();
            assert!(error.contains(&format!("no GPU {count}")), "{error}");
        }
        Err(error) => {
            assert_eq!(error, CudaError::Driver(DriverError::NoDriver));
            assert_eq!(cuda::context(0).unwrap_err(), error);
        }
    }
}

#[test]
fn what_the_gpu_can_do_is_read_from_it() {
    let Some(rig) = Rig::new("what_the_gpu_can_do_is_read_from_it") else { return };
    let found = cuda::capabilities(&rig.context).unwrap();
    assert_eq!(found, rig.stream().capabilities());
    assert!(found.ops_64_bit && found.wait_nor, "{found:?}");
    assert_ne!(found.consistency(), Consistency::Impossible);
}

#[test]
fn a_message_goes_from_kernel_to_kernel() {
    let Some(rig) = Rig::new("a_message_goes_from_kernel_to_kernel") else { return };
    for stream in [rig.stream(), rig.proxied()] {
        let (source, target) = (rig.region(64), rig.region(64));
        assert_eq!(
            stream.doorbells(&rig.pair.left).unwrap() == Doorbells::Direct,
            stream.doorbells(&rig.pair.right).unwrap() == Doorbells::Direct
        );
        // Three laps of both completion queues.
        for i in 0..2000u32 {
            rig.pair.right.post_recv(&[target.slice(..).unwrap()], 0).unwrap();
            let slices = [source.slice(..).unwrap()];
            let send = rig.pair.left.prepare(WorkRequest::send(&slices)).unwrap();
            let (sent, arrival) = (
                rig.pair.left.send_cq().prepare_wait().unwrap(),
                rig.pair.right.recv_cq().prepare_wait().unwrap(),
            );
            rig.launch(&stream, &rig.fill, source.memory(), 1000 * i);
            stream.post(Batch::new().send(send).wait(sent).wait(arrival)).unwrap();
            rig.launch(&stream, &rig.add, target.memory(), 7);
            if i % 16 == 15 {
                synchronize(&stream);
                let expected: Vec<u32> = (0..16).map(|k| 1000 * i + 7 + k).collect();
                assert_eq!(words(target.memory()), expected);
                for _ in 0..16 {
                    assert_eq!(poll(&rig.pair.left.send_cq()).status, Ok(()));
                    assert_eq!(poll(&rig.pair.right.recv_cq()).status, Ok(()));
                }
            }
        }
    }
}

#[test]
fn gpu_memory_is_payload_of_every_operation() {
    let Some(rig) = Rig::new("gpu_memory_is_payload_of_every_operation") else { return };
    let len = (3 << 20) + 12_344;
    let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + i / 253) as u8).collect();
    let (one, two) = (rig.region(len), rig.region(len));
    one.memory().write(0, &bytes).unwrap();
    let stream = rig.stream();
    let post = |request: WorkRequest<'_>| {
        let send = rig.pair.left.prepare(request).unwrap();
        stream.post(Batch::new().send(send)).unwrap();
        assert_eq!(poll(&rig.pair.left.send_cq()).status, Ok(()));
    };
    let content = |region: &GpuMemoryRegion| {
        let mut out = vec![0; len];
        region.memory().read(0, &mut out).unwrap();
        out
    };
    post(WorkRequest::write(&[one.slice(..).unwrap()], two.remote()));
    assert_eq!(content(&two), bytes);
    one.memory().write(0, &vec![0; len]).unwrap();
    post(WorkRequest::read(&[one.slice(..).unwrap()], two.remote()));
    assert_eq!(content(&one), bytes);
    // From the GPU to the CPU, in pieces.
    let host = rig.pair.region(len);
    let pieces = [one.slice(1000..).unwrap(), one.slice(..1000).unwrap()];
    post(WorkRequest::write(&pieces, host.remote()));
    let mut out = vec![0; len];
    host.read(0, &mut out);
    assert_eq!([&out[len - 1000..], &out[..len - 1000]].concat(), bytes);
}

#[test]
fn buffers_of_cudarc_and_of_others_are_taken() {
    let Some(rig) = Rig::new("buffers_of_cudarc_and_of_others_are_taken") else { return };
    let stream = rig.raw_stream();
    let slice = stream.clone_htod(&[1u32, 2, 3, 4]).unwrap();
    stream.synchronize().unwrap();
    let address = slice.device_ptr(&stream).0;
    // SAFETY: the buffer is its owner.
    let memory = unsafe { GpuMemory::from_raw(&rig.context, address, 16, slice) }.unwrap();
    assert_eq!(words(&memory), [1, 2, 3, 4]);
    // SAFETY: the memory outlives the second handle.
    let alias = unsafe { GpuMemory::from_raw(&rig.context, memory.address() + 4, 8, ()) }.unwrap();
    assert_eq!(words(&alias), [2, 3]);
    let error = alias.write(4, &[0; 8]).unwrap_err().to_string();
    assert!(error.contains("4..12") && error.contains("8 bytes"), "{error}");
    assert!(alias.read(usize::MAX, &mut [0; 2]).is_err());
    drop(alias);
    assert!(rig.memory(0).is_empty());
    let too_much = GpuMemory::allocate(&rig.context, 1 << 50).unwrap_err().to_string();
    assert!(too_much.contains("OUT_OF_MEMORY"), "{too_much}");
}

#[test]
fn rights_and_bounds_of_gpu_regions_are_the_cards() {
    let Some(rig) = Rig::new("rights_and_bounds_of_gpu_regions_are_the_cards") else { return };
    let read_only = GpuMemoryRegion::register(&rig.pair.pd, rig.memory(64), Access::empty()).unwrap();
    let error = rig.pair.left.post_recv(&[read_only.slice(..).unwrap()], 0).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::NotWritable { .. })), "{error}");
    assert!(read_only.slice(..65).is_err());
    let source = rig.region(64);
    let slices = [source.slice(..).unwrap()];
    let send = rig.pair.left.prepare(WorkRequest::write(&slices, read_only.remote())).unwrap();
    let done = rig.pair.left.send_cq().prepare_wait().unwrap();
    let stream = rig.stream();
    stream.post(Batch::new().send(send).wait(done)).unwrap();
    synchronize(&stream);
    assert!(poll(&rig.pair.left.send_cq()).status.is_err());
    // The region of freed memory is invalid, and nothing hangs because of it.
    let refused = GpuMemoryRegion::register(&rig.pair.pd, rig.memory(64), Access::REMOTE_WRITE).unwrap_err();
    assert!(matches!(refused, Error::Registration(RegistrationError::Refused { .. })), "{refused}");
}

#[test]
fn default_streams_work_where_they_can() {
    let Some(rig) = Rig::new("default_streams_work_where_they_can") else { return };
    rig.context.bind_to_thread().unwrap();
    let word = Word64::new(&PinnedMemory::allocate(8).unwrap(), 0).unwrap();
    for (i, raw) in [0usize, 1, 2].into_iter().enumerate() {
        // SAFETY: default streams live as long as their context, which is current.
        let stream = unsafe { CudaStream::from_raw(raw as sys::CUstream, ()) }.unwrap();
        let stream = Stream::new(stream).unwrap();
        stream.post(Batch::new().write_value64(&word, i as u64 + 5)).unwrap();
        synchronize(&stream);
        assert_eq!(word.load(), i as u64 + 5);
        let elsewhere = std::thread::scope(|scope| {
            scope.spawn(|| stream.post(Batch::new().write_value64(&word, 99)).map(drop)).join().unwrap()
        });
        match elsewhere {
            Ok(()) => assert_ne!(raw, 2),
            Err(error) => {
                assert_eq!(raw, 2, "{error}");
                let cause = PostFailure::Stream(StreamError::Cuda(CudaError::OtherThread)).to_string();
                assert_eq!(error.source.to_string(), cause);
            }
        }
        if raw != 2 {
            synchronize(&stream);
        }
    }
}

#[test]
fn words_of_all_kinds_are_waited_for_and_a_wait_can_be_cancelled() {
    let Some(rig) = Rig::new("words_of_all_kinds_are_waited_for_and_a_wait_can_be_cancelled") else { return };
    let stream = rig.stream();
    let memory = PinnedMemory::allocate(64).unwrap();
    let (short, long) = (Word32::new(&memory, 0).unwrap(), Word64::new(&memory, 8).unwrap());
    let end = Word32::new(&memory, 16).unwrap();
    for condition in [Condition::Geq, Condition::Eq, Condition::And, Condition::Nor] {
        for wide in [false, true] {
            short.store(if condition == Condition::Nor { u32::MAX } else { 0 });
            long.store(if condition == Condition::Nor { u64::MAX } else { 0 });
            end.store(0);
            let value32 = if condition == Condition::Nor { 0xfeff_ffff } else { 1 << 24 };
            let value64 = if condition == Condition::Nor { !(1 << 40) } else { 1 << 40 };
            let wait = if wide {
                Batch::new().wait_value64(&long, condition, value64)
            } else {
                Batch::new().wait_value32(&short, condition, value32)
            };
            stream.post(wait.write_value32(&end, 1)).unwrap();
            assert!(!stream.synchronize_timeout(Duration::from_millis(20)).unwrap());
            assert!(stream.oldest_wait().unwrap().contains(&condition.to_string()));
            short.store(condition.satisfier32(value32).unwrap());
            long.store(condition.satisfier64(value64).unwrap());
            synchronize(&stream);
            assert_eq!(end.load(), 1);
        }
    }
}

#[test]
fn a_long_batch_is_split_and_kept_in_order() {
    let Some(rig) = Rig::new("a_long_batch_is_split_and_kept_in_order") else { return };
    let stream = rig.stream();
    let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let mut batch = Batch::new();
    for i in 1..=5000 {
        batch = batch.write_value32(&word, i).wait_value32(&word, Condition::Eq, i);
    }
    let posted = stream.post(batch).unwrap();
    assert!(posted.submissions >= 40 && posted.operations >= 10_000, "{posted:?}");
    synchronize(&stream);
    assert_eq!(word.load(), 5000);
}

#[test]
fn a_full_stream_says_so_instead_of_blocking() {
    let Some(rig) = Rig::new("a_full_stream_says_so_instead_of_blocking") else { return };
    let stream = rig.stream();
    let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let blocked = |i: u32| Batch::new().wait_value32(&word, Condition::Geq, i);
    let start = Instant::now();
    for i in 1..=1021 {
        stream.post(blocked(i)).unwrap();
    }
    let error = stream.post(blocked(1022)).unwrap_err();
    assert!(
        matches!(error.source, PostFailure::WouldBlock { outstanding: 1021, limit: 1021, .. }),
        "{error}"
    );
    let error = stream.post_timeout(error.batch, Duration::from_millis(30)).unwrap_err();
    assert!(matches!(error.source, PostFailure::WouldBlock { .. }) && error.batch.len() == 1);
    assert!(start.elapsed() < LONG);
    word.store(1 << 20);
    stream.post_timeout(error.batch, LONG).unwrap();
    synchronize(&stream);
    assert_eq!(stream.outstanding(), 0);
}
