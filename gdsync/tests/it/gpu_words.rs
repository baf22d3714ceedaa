//! Words and bytes in GPU memory, and bytes in host memory, written by a real GPU. Reported as skipped without one.

use gdsync::batch::{BatchShape, MemoryWrite};
use gdsync::cuda::GpuMemory;
use gdsync::memop::{Condition, GpuWord32, GpuWord64, StreamError, Word32, WordError};
use gdsync::stream::PostFailure;
use gdsync::{Batch, PinnedMemory};
use gdsync_test_support::gpu::{Rig, synchronize};
use gdsync_test_support::pair;
use std::time::Duration;

#[test]
fn words_of_gpu_memory_are_written_and_waited_for() {
    let Some(rig) = Rig::new("words_of_gpu_memory_are_written_and_waited_for") else { return };
    let stream = rig.stream();
    let memory = rig.memory(64);
    let (short, long) = (GpuWord32::new(&memory, 0).unwrap(), GpuWord64::new(&memory, 8).unwrap());
    let end = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    for condition in [Condition::Geq, Condition::Eq, Condition::And, Condition::Nor] {
        // A value that the first word does not meet, and the second does.
        let (first, value, second) = match condition {
            Condition::Geq | Condition::Eq => (5, 6, 6),
            Condition::And => (0xf0, 0x0f, 0x08),
            Condition::Nor => (0xff, !0xff, 0),
        };
        let wide = |word: i64| word as u64;
        short.store(first as u32).unwrap();
        long.store(wide(first)).unwrap();
        end.store(0);
        let batch = Batch::new()
            .wait_value32(&short, condition, value as u32)
            .wait_value64(&long, condition, wide(value))
            .write_value32(&end, 1);
        stream.post(batch).unwrap();
        assert!(!stream.synchronize_timeout(Duration::from_millis(20)).unwrap());
        let waiting = stream.oldest_wait().unwrap();
        assert!(waiting.contains("gpu:") && waiting.contains(&condition.to_string()), "{waiting}");
        short.store(second as u32).unwrap();
        assert!(!stream.synchronize_timeout(Duration::from_millis(20)).unwrap());
        long.store(wide(second)).unwrap();
        synchronize(&stream);
        assert_eq!(end.load(), 1);
    }
    stream.post(Batch::new().write_value32(&short, 77).barrier().write_value64(&long, 1 << 40)).unwrap();
    synchronize(&stream);
    assert_eq!((short.load().unwrap(), long.load().unwrap()), (77, 1 << 40));
}

#[test]
fn gpu_words_are_bounds_and_alignment_checked() {
    let Some(rig) = Rig::new("gpu_words_are_bounds_and_alignment_checked") else { return };
    let memory = rig.memory(16);
    assert!(GpuWord32::new(&memory, 12).is_ok() && GpuWord64::new(&memory, 8).is_ok());
    for offset in [2, 16, usize::MAX] {
        let error = GpuWord32::new(&memory, offset).unwrap_err();
        assert!(matches!(error, WordError::Outside { size: 4, len: 16, .. }), "{error}");
    }
    assert!(GpuWord64::new(&memory, 12).is_err());
    // A stream of the CPU does not reach it.
    let word = GpuWord32::new(&memory, 0).unwrap();
    let error = pair::cpu().post(Batch::new().write_value32(&word, 1)).unwrap_err();
    assert!(matches!(error.source, PostFailure::Stream(StreamError::Unsupported { .. })), "{error}");
    let write = MemoryWrite::new(&memory, 0, &[1; 16]).unwrap();
    assert!(pair::soft().post(Batch::new().write_memory(write)).is_err());
}

#[test]
fn a_flush_is_performed_or_refused() {
    let Some(rig) = Rig::new("a_flush_is_performed_or_refused") else { return };
    let stream = rig.stream();
    let result = stream.post(Batch::new().flush());
    if stream.capabilities().flush_remote_writes {
        result.unwrap();
        synchronize(&stream);
    } else {
        let error = result.unwrap_err();
        assert!(matches!(error.source, PostFailure::Stream(StreamError::Unsupported { .. })), "{error}");
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 13 + i / 251 + seed) as u8).collect()
}

/// Starts and lengths: whole words and none, within a page and across two.
const RANGES: [(usize, usize); 10] =
    [(0, 8), (4, 16), (8, 64), (8, 4), (1, 1), (3, 30), (4090, 13), (4092, 8), (0, 4096), (777, 4096)];

#[test]
fn bytes_are_written_behind_a_blocked_wait_without_blocking_the_caller() {
    let Some(rig) = Rig::new("bytes_are_written_behind_a_blocked_wait_without_blocking_the_caller") else {
        return;
    };
    let stream = rig.stream();
    let gate = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let (host, gpu) = (PinnedMemory::allocate(8192).unwrap(), rig.memory(8192));
    let (mut of_host, mut of_gpu) = (vec![0u8; 8192], vec![0u8; 8192]);
    for (round, (start, len)) in RANGES.into_iter().enumerate() {
        let bytes = pattern(len, round);
        let batch = Batch::new()
            .wait_value32(&gate, Condition::Eq, round as u32 + 1)
            .write_memory(MemoryWrite::new(&host, start, &bytes).unwrap())
            .write_memory(MemoryWrite::new(&gpu, start, &bytes).unwrap());
        // Only this thread opens the gate, afterwards.
        stream.post(batch).unwrap();
        assert!(!stream.synchronize_timeout(Duration::from_millis(5)).unwrap());
        let found = contents(&host, &gpu);
        assert!(found == (of_host.clone(), of_gpu.clone()), "{start}+{len} was written too early");
        of_host[start..start + len].copy_from_slice(&bytes);
        of_gpu[start..start + len].copy_from_slice(&bytes);
        gate.store(round as u32 + 1);
        synchronize(&stream);
        let found = contents(&host, &gpu);
        assert!(found == (of_host.clone(), of_gpu.clone()), "{start}+{len} is not what was written");
    }
}

fn contents(host: &PinnedMemory, gpu: &GpuMemory) -> (Vec<u8>, Vec<u8>) {
    let (mut of_host, mut of_gpu) = (vec![0; host.len()], vec![0; gpu.len()]);
    host.read(0, &mut of_host);
    gpu.read(0, &mut of_gpu).unwrap();
    (of_host, of_gpu)
}

#[test]
fn writes_of_bytes_keep_their_order_with_words() {
    let Some(rig) = Rig::new("writes_of_bytes_keep_their_order_with_words") else { return };
    let stream = rig.stream();
    let memory = PinnedMemory::allocate(4096).unwrap();
    let gpu = rig.memory(4096);
    let (word, gpu_word) = (Word32::new(&memory, 100).unwrap(), GpuWord32::new(&gpu, 100).unwrap());
    for round in 0..200u32 {
        let bytes = pattern(2000, round as usize);
        let write = |offset| {
            Batch::new()
                .write_memory(MemoryWrite::new(&memory, offset, &bytes).unwrap())
                .write_memory(MemoryWrite::new(&gpu, offset, &bytes).unwrap())
        };
        // Words before and after; the later one stays.
        let before = Batch::new().write_value32(&word, 1).write_value32(&gpu_word, 1);
        stream.post(before).unwrap();
        stream.post(write(1)).unwrap();
        stream.post(Batch::new().write_value32(&word, round).write_value32(&gpu_word, round)).unwrap();
        if round % 50 == 49 {
            synchronize(&stream);
            assert_eq!((word.load(), gpu_word.load().unwrap()), (round, round));
            let (of_host, of_gpu) = contents(&memory, &gpu);
            let mut expected = vec![0; 4096];
            expected[1..2001].copy_from_slice(&bytes);
            expected[100..104].copy_from_slice(&round.to_ne_bytes());
            assert!(of_host == expected && of_gpu == expected);
        }
    }
}

#[test]
fn graphs_hold_barriers_and_no_copies() {
    let Some(rig) = Rig::new("graphs_hold_barriers_and_no_copies") else { return };
    let stream = rig.stream();
    let memory = rig.memory(64);
    let word = GpuWord32::new(&memory, 4).unwrap();
    let shape = BatchShape::new().write_value32().barrier().write_value32();
    let mut graph = stream.capture(|capture| Ok(capture.batch(&shape)?)).unwrap();
    for round in 1..10 {
        let batch = Batch::new().write_value32(&word, 0).barrier().write_value32(&word, round);
        stream.launch(&mut graph, [batch]).unwrap();
        synchronize(&stream);
        assert_eq!(word.load().unwrap(), round);
    }
    let write = Batch::new().write_memory(MemoryWrite::new(&memory, 0, &[1; 8]).unwrap());
    let error = stream.capture(|capture| Ok(capture.batch(&BatchShape::of(&write))?)).unwrap_err();
    assert!(error.to_string().contains("memory-copy node"), "{error}");
}
