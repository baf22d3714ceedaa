//! Collectors whose word is in the memory of a real GPU. Reported as skipped without a GPU.

use crate::fan::{Fan, connect};
use crate::gpu_trigger::grid;
use gdsync::advanced::Collector;
use gdsync::advanced::CollectorConfig;
use gdsync::cuda::{CudaError, GpuMemory, Placement};
use gdsync::cudarc::driver::sys;
use gdsync::memop::{Condition, StreamError};
use gdsync::stream::StreamOptions;
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{
    Access, Batch, CudaStream, Error, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, Stream,
    Trigger, WorkRequest,
};
use gdsync_test_support::gpu::{Rig, synchronize};
use gdsync_test_support::pair::{self, LONG, drain, poll};
use gdsync_test_support::process::alone;

fn collecting(rig: &Rig) -> Stream<CudaStream> {
    let options = StreamOptions::default().collect_from(Some(2)).collect_in(Placement::Gpu(0));
    Stream::with_options(CudaStream::new(rig.raw_stream()).unwrap(), options).unwrap()
}

#[test]
fn one_word_of_the_gpus_memory_tells_of_all_completions() {
    let Some(rig) = Rig::new("one_word_of_the_gpus_memory_tells_of_all_completions") else { return };
    for fan in Fan::both(16) {
        let stream = collecting(&rig);
        for number in 1..=500 {
            assert_eq!(stream.post(fan.step(number)).unwrap().operations, 3);
            synchronize(&stream);
            for peer in 0..16 {
                fan.completes(peer, number);
                assert_eq!(fan.value(peer), number);
            }
        }
    }
}

#[test]
fn failures_count_in_a_word_of_the_gpus_memory() {
    let Some(rig) = Rig::new("failures_count_in_a_word_of_the_gpus_memory") else { return };
    let fan = Fan::new(5, None);
    let stream = collecting(&rig);
    for number in 1..=20u64 {
        let failing = number as usize % 5;
        let (left, right) = &fan.pairs[failing];
        // A receive that only the failure ends.
        right.post_recv(&[], 0).unwrap();
        let receive = right.recv_cq().prepare_wait().unwrap();
        stream.post(fan.step(number).wait(receive)).unwrap();
        right.abort().unwrap();
        synchronize(&stream);
        for peer in (0..5).filter(|peer| *peer != failing) {
            assert_eq!(poll(&fan.left(peer).send_cq()).status, Ok(()));
        }
        left.abort().unwrap();
        drain(left);
        drain(right);
        connect(left, right);
    }
}

#[test]
fn the_cpu_and_a_stream_look_at_a_word_of_the_gpus_memory() {
    let Some(rig) = Rig::new("the_cpu_and_a_stream_look_at_a_word_of_the_gpus_memory") else { return };
    let fan = Fan::new(1, None);
    let config = CollectorConfig::default().word(Placement::Gpu(0));
    let collector = Collector::with_config(&fan.device, config).unwrap();
    let (mut kind, asked) = (0u32, sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    // SAFETY: the driver writes 4 bytes; it looks the address up and reads nothing there.
    let result =
        unsafe { sys::cuPointerGetAttribute((&raw mut kind).cast(), asked, collector.word().address()) };
    result.result().unwrap();
    assert_eq!(kind, sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32);
    let stream = rig.stream();
    for number in 1..=50 {
        fan.trigger.release(fan.send(0, number).into_ticket().unwrap()).unwrap();
        let wait = fan.left(0).send_cq().prepare_wait().unwrap();
        assert_eq!(collector.collect([wait]).unwrap(), number);
        stream.post(Batch::new().wait_value64(collector.word(), Condition::Geq, number)).unwrap();
        synchronize(&stream);
        assert_eq!(collector.word().load().unwrap(), number);
        fan.completes(0, number);
    }
}

/// In a separate process: a lost context does not come back.
#[test]
fn a_trigger_that_the_driver_cannot_write_says_so() {
    let test = "a_trigger_that_the_driver_cannot_write_says_so";
    if !alone(module_path!(), test, &[]) {
        return;
    }
    let Some(rig) = Rig::new(test) else { return };
    let pd = ProtectionDomain::new(&pair::device()).unwrap();
    let memory = GpuMemory::allocate(&rig.context, 8).unwrap();
    let region = GpuMemoryRegion::register(&pd, memory, Access::empty()).unwrap();
    let trigger = Trigger::in_gpu_region(&region, 0).unwrap();
    let target = MemoryRegion::allocate(&pd, 8, Access::all()).unwrap();
    let config = QueuePairConfig::default();
    let left = QueuePair::new(&pd, config.trigger(&trigger)).unwrap();
    let right = QueuePair::new(&pd, config).unwrap();
    connect(&left, &right);
    let request = WorkRequest::write_inline(b"never...", target.remote());
    let ticket = left.prepare(request).unwrap().into_ticket().unwrap();
    let stream = rig.stream();
    // SAFETY: the kernel takes no arguments.
    unsafe { stream.cudarc().unwrap().launch_builder(&rig.crash).launch(grid(1, 1)) }.unwrap();
    assert!(matches!(stream.synchronize_timeout(LONG), Err(StreamError::Failed { .. })));
    let error = trigger.release(ticket).unwrap_err();
    assert!(matches!(error, Error::Cuda(CudaError::OnGpu { gpu: 0, .. })), "{error}");
}
