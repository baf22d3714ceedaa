//! CPU mappings of a real GPU's memory. Skipped without a GPU, or if no backend works.

use gdsync::advanced::mapped::{self, LoadKernel, MappedMemory, MappingBackend, MappingError, StoreKernel};
use gdsync::cuda::GpuMemory;
use gdsync::memop::{Condition, GpuWord32};
use gdsync::{Access, Batch, CudaStream, Stream, WorkRequest};
use gdsync_test_support::gpu::{Rig, synchronize};
use gdsync_test_support::pair::LONG;
use gdsync_test_support::process::alone;
use gdsync_test_support::skipped;
use std::time::Instant;

/// A GPU, and each backend that works on it. `None` without a GPU.
fn rig(test: &str) -> Option<(Rig, Vec<MappingBackend>)> {
    let rig = Rig::new(test)?;
    let found = mapped::available(&rig.context).unwrap();
    let works: Vec<_> =
        found.iter().filter(|found| found.refusal.is_none()).map(|found| found.backend).collect();
    if works.is_empty() {
        skipped(test, &format!("{found:?}"));
        return None;
    }
    Some((rig, works))
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed).wrapping_mul(0x9e37_79b1) >> 11) as u8).collect()
}

#[test]
fn fresh_memory_is_zero_and_seen_from_both_sides() {
    let Some((rig, backends)) = rig("fresh_memory_is_zero_and_seen_from_both_sides") else { return };
    for backend in backends {
        for len in [1, 7, 4096, (3 << 20) + 5] {
            let memory = MappedMemory::allocate_by(backend, &rig.context, len).unwrap();
            let info = memory.info();
            assert_eq!((info.backend, memory.len(), memory.gpu().len()), (backend, len, len));
            assert!(info.mapped_size >= len && info.offset + len <= info.mapped_size, "{info:?}");
            let mut seen = vec![1; len];
            memory.copy_from(0, &mut seen).unwrap();
            assert!(seen.iter().all(|byte| *byte == 0));
            for (seed, kernel) in StoreKernel::available().enumerate() {
                memory.copy_to_by(kernel, 0, &bytes(len, seed)).unwrap();
                memory.gpu().read(0, &mut seen).unwrap();
                assert!(seen == bytes(len, seed), "{kernel}");
            }
            for (seed, kernel) in LoadKernel::available().enumerate() {
                memory.gpu().write(0, &bytes(len, 9 + seed)).unwrap();
                memory.copy_from_by(kernel, 0, &mut seen).unwrap();
                assert!(seen == bytes(len, 9 + seed), "{kernel}");
            }
        }
        let error = MappedMemory::allocate_by(backend, &rig.context, 1 << 50).unwrap_err().to_string();
        assert!(error.contains("OUT_OF_MEMORY"), "{error}");
    }
}

#[test]
fn memory_that_was_there_before_is_mapped_or_refused_with_the_reason() {
    let Some((rig, backends)) = rig("memory_that_was_there_before_is_mapped_or_refused_with_the_reason")
    else {
        return;
    };
    let ordinary = GpuMemory::allocate(&rig.context, 100_000).unwrap();
    for backend in backends {
        match MappedMemory::pin_by(backend, &ordinary) {
            Ok(memory) => {
                assert_ne!(backend, MappingBackend::ResourceManager);
                memory.copy_to(5, b"there").unwrap();
                let mut seen = [0; 5];
                ordinary.read(5, &mut seen).unwrap();
                assert_eq!(&seen, b"there");
            }
            Err(MappingError::Refused { refusal, .. }) => {
                assert_eq!(backend, MappingBackend::ResourceManager);
                assert!(refusal.remedy.contains("MappedMemory::allocate"), "{refusal}");
            }
            Err(error) => panic!("{error}"),
        }
        // A part of an exportable allocation, by its address alone.
        let memory = MappedMemory::allocate_by(backend, &rig.context, 1 << 20).unwrap();
        // SAFETY: `memory` outlives it.
        let part = unsafe { GpuMemory::from_raw(&rig.context, memory.address() + 12_345, 1000, ()) }.unwrap();
        let second = MappedMemory::pin_by(backend, &part).unwrap();
        second.copy_to(0, &bytes(1000, 4)).unwrap();
        let mut seen = vec![0; 1002];
        memory.copy_from(12_344, &mut seen).unwrap();
        assert!(seen[0] == 0 && seen[1..1001] == bytes(1000, 4) && seen[1001] == 0);
    }
}

#[test]
fn dropping_while_a_stream_waits_does_not_wait() {
    let Some((rig, backends)) = rig("dropping_while_a_stream_waits_does_not_wait") else { return };
    for backend in backends {
        let stream = rig.stream();
        let keep = MappedMemory::allocate_by(backend, &rig.context, 4096).unwrap();
        let (gate, answer) =
            (GpuWord32::new(keep.gpu(), 0).unwrap(), GpuWord32::new(keep.gpu(), 64).unwrap());
        let others: Vec<_> = (0..4)
            .map(|round| {
                let other = MappedMemory::allocate_by(backend, &rig.context, 4096).unwrap();
                other.copy_to(0, &bytes(4096, round)).unwrap();
                (MappedMemory::pin_by(backend, other.gpu()).unwrap(), other)
            })
            .collect();
        stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1).write_value32(&answer, 2)).unwrap();
        // A call that waits for the stream would wait forever.
        drop(others);
        assert_eq!(load(&keep, 64), 0);
        keep.copy_to(0, &1u32.to_ne_bytes()).unwrap();
        wait_for(&keep, 64, 2);
        synchronize(&stream);
    }
}

#[test]
fn memory_is_mapped_while_a_stream_waits() {
    let Some((rig, backends)) = rig("memory_is_mapped_while_a_stream_waits") else { return };
    for backend in backends {
        let stream = rig.stream();
        let keep = MappedMemory::allocate_by(backend, &rig.context, 4096).unwrap();
        stream
            .post(Batch::new().wait_value32(&GpuWord32::new(keep.gpu(), 0).unwrap(), Condition::Eq, 1))
            .unwrap();
        // Another thread ends the wait, should mapping wait for it.
        let (done, is_done) = std::sync::mpsc::channel();
        let other = keep.clone();
        let helper = std::thread::spawn(move || {
            let in_time = is_done.recv_timeout(LONG).is_ok();
            other.copy_to(0, &1u32.to_ne_bytes()).unwrap();
            in_time
        });
        let memory = MappedMemory::allocate_by(backend, &rig.context, 4096).unwrap();
        let second = MappedMemory::pin_by(backend, memory.gpu()).unwrap();
        second.copy_to(0, &[5]).unwrap();
        done.send(()).unwrap();
        assert!(helper.join().unwrap(), "{backend} waits for streams");
        synchronize(&stream);
    }
}

fn load(memory: &MappedMemory, offset: usize) -> u32 {
    let mut word = [0; 4];
    memory.copy_from(offset, &mut word).unwrap();
    u32::from_ne_bytes(word)
}

fn wait_for(memory: &MappedMemory, offset: usize, value: u32) {
    let start = Instant::now();
    while load(memory, offset) != value {
        assert!(start.elapsed() < LONG, "the word never came");
    }
}

#[test]
fn kernels_and_streams_and_the_cpu_share_words() {
    let Some((rig, backends)) = rig("kernels_and_streams_and_the_cpu_share_words") else { return };
    for backend in backends {
        let memory = MappedMemory::allocate_by(backend, &rig.context, 4096).unwrap();
        let stream: Stream<CudaStream> = rig.stream();
        let gate = GpuWord32::new(memory.gpu(), 1024).unwrap();
        for round in 1..=200u32 {
            memory.copy_to(0, &[0; 64]).unwrap();
            stream.post(Batch::new().wait_value32(&gate, Condition::Eq, round)).unwrap();
            // The kernel adds to the value that the CPU stores before the flag.
            rig.launch(&stream, &rig.add, memory.gpu(), 7);
            let words: Vec<u8> = (0..16u32).flat_map(|i| (round * 100 + i).to_ne_bytes()).collect();
            memory.copy_to(0, &words).unwrap();
            memory.copy_to(1024, &round.to_ne_bytes()).unwrap();
            for word in [15, 0] {
                wait_for(&memory, word * 4, round * 100 + word as u32 + 7);
            }
        }
        synchronize(&stream);
    }
}

#[test]
fn a_message_may_be_written_and_read_by_the_cpu() {
    let Some((rig, backends)) = rig("a_message_may_be_written_and_read_by_the_cpu") else { return };
    for backend in backends {
        let memory = || MappedMemory::allocate_by(backend, &rig.context, 10_000).unwrap();
        let (source, target) = (memory(), memory());
        let region = |memory: &MappedMemory| {
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            gdsync::verbs::GpuMemoryRegion::register(&rig.pair.pd, memory.gpu().clone(), access).unwrap()
        };
        let (from, to) = (region(&source), region(&target));
        source.copy_to(0, &bytes(10_000, 2)).unwrap();
        rig.pair.right.post_recv(&[to.slice(..).unwrap()], 0).unwrap();
        let send = rig.pair.left.prepare(WorkRequest::send(&[from.slice(..).unwrap()])).unwrap();
        let arrival = rig.pair.right.recv_cq().prepare_wait().unwrap();
        let stream = rig.stream();
        stream.post(Batch::new().send(send).wait(arrival)).unwrap();
        synchronize(&stream);
        let mut seen = vec![0; 10_000];
        target.copy_from(0, &mut seen).unwrap();
        assert!(seen == bytes(10_000, 2));
    }
}

/// Several threads store long messages: two that overlap, bytes in the middle of both, and a read behind all of them. The messages
/// take more packets than one step of the card.
#[test]
fn long_messages_take_effect_in_order() {
    const LEN: usize = (17 << 20) + 12_288;
    const SHIFT: usize = (64 << 10) + 4;
    let Some((rig, backends)) = rig("long_messages_take_effect_in_order") else { return };
    let memory = |len| MappedMemory::allocate_by(backends[0], &rig.context, len).unwrap();
    let [source, target, back] = [2 * LEN, LEN + SHIFT, LEN + SHIFT].map(memory);
    let region = |memory: &MappedMemory| {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        gdsync::verbs::GpuMemoryRegion::register(&rig.pair.pd, memory.gpu().clone(), access).unwrap()
    };
    let [from, to, into] = [&source, &target, &back].map(region);
    let queue_pair = &rig.pair.left;
    for round in 0..5 {
        let content = bytes(2 * LEN, round);
        source.copy_to(0, &content).unwrap();
        let write = |first: usize, at: usize| {
            let slices = [from.slice(first..first + LEN).unwrap()];
            let remote = to.remote().slice(at..at + LEN).unwrap();
            queue_pair.post_send(WorkRequest::write(&slices, remote)).unwrap();
        };
        write(0, 0);
        write(LEN, SHIFT);
        let middle = to.remote().slice(LEN / 2..LEN / 2 + 8).unwrap();
        queue_pair.post_send(WorkRequest::write_inline(b"between!", middle)).unwrap();
        queue_pair.post_send(WorkRequest::read(&[into.slice(..).unwrap()], to.remote())).unwrap();
        for _ in 0..4 {
            queue_pair.send_cq().wait(LONG).unwrap().unwrap().status.unwrap();
        }
        let mut expected = [&content[..SHIFT], &content[LEN..]].concat();
        expected[LEN / 2..LEN / 2 + 8].copy_from_slice(b"between!");
        for memory in [&target, &back] {
            let mut seen = vec![0; LEN + SHIFT];
            memory.copy_from(0, &mut seen).unwrap();
            assert!(seen == expected, "round {round}");
        }
    }
}

#[test]
fn nothing_is_left_open() {
    if !alone(module_path!(), "nothing_is_left_open", &[]) {
        return;
    }
    let Some((rig, backends)) = rig("nothing_is_left_open") else { return };
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    for backend in backends {
        drop(MappedMemory::allocate_by(backend, &rig.context, 4096).unwrap());
        let before = files();
        for _ in 0..20 {
            let memory = MappedMemory::allocate_by(backend, &rig.context, 4096).unwrap();
            let _second = MappedMemory::pin_by(backend, memory.gpu()).unwrap();
            assert!(files() > before || backend != MappingBackend::ResourceManager);
        }
        assert_eq!(files(), before, "{backend}");
    }
}
