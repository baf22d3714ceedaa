//! A GPU: its memory as the card's, its streams as those that ring and wait.

use super::super::probe::{Probe, REGION, SENT, UNTOUCHED, cannot_run, everything};
use super::Step;
use super::streams::exchange;
use crate::bench::device::once;
use gdsync::advanced::mapped;
use gdsync::batch::BatchShape;
use gdsync::cuda::{self, GpuMemory, Placement, QueuePlacement};
use gdsync::cudarc::driver::CudaContext;
use gdsync::device::{DeviceQpOptions, nvrtc};
use gdsync::graph::CudaGraph;
use gdsync::stream::{DoorbellPath, StreamOptions};
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{Batch, CudaStream, Stream, Trigger, WorkRequest};
use gdsync_cli::failure::Failure;
use std::sync::Arc;
use std::time::Duration;

const REGISTRATION: &str = "load nvidia-peermem, or use the open kernel module of NVIDIA's driver with a kernel that has dma-bufs for RDMA";
const REGISTER: &str = "the GPU cannot map the card's doorbell register: load NVIDIA's driver with PeerMappingOverride=1, or let the proxy ring";
const MEMOPS: &str = "run `gdsync doctor`: stream memory operations need driver 12.2 or newer, and are off in some virtual machines";
const MAPPING: &str =
    "load gdrdrv of GDRCopy, or see `gdsync doctor` for the other ways of mapping GPU memory";
const KERNEL: &str =
    "install NVRTC (`pip install nvidia-cuda-nvrtc-cu12`), which compiles kernels at run time";
const LONG: Duration = Duration::from_secs(10);

pub(super) const STEPS: &[Step] = &[
    Step::new("gpu.capabilities", "what the GPU's streams can do", MEMOPS, capabilities).on_gpu(),
    Step::new("gpu.register", "registration of GPU memory with the card", REGISTRATION, register).on_gpu(),
    Step::new("gpu.write", "an RDMA write from GPU memory to GPU memory", REGISTRATION, write).on_gpu(),
    Step::new("gpu.read", "an RDMA read from GPU memory", REGISTRATION, read).on_gpu(),
    Step::new("gpu.atomic", "a fetch-and-add on GPU memory", REGISTRATION, atomic).on_gpu(),
    Step::new("gpu.mapped", "GPU memory that the CPU maps", MAPPING, cpu_mapping).on_gpu(),
    Step::new("gpu.proxy", "an exchange by a CUDA stream, whose doorbells a thread forwards", MEMOPS, proxy)
        .on_gpu(),
    Step::new("gpu.direct", "an exchange by a CUDA stream that rings the card itself", REGISTER, direct)
        .on_gpu(),
    Step::new("gpu.graph", "two launches of a graph with an exchange", MEMOPS, graph).on_gpu(),
    Step::new(
        "gpu.kernel-proxy",
        "a put by a kernel, whose doorbell a thread forwards",
        KERNEL,
        kernel_by_proxy,
    )
    .on_gpu(),
    Step::new("gpu.kernel", "a put by a kernel that rings the card itself", REGISTER, kernel).on_gpu(),
    Step::new("gpu.queues", "an exchange by queues in GPU memory", REGISTRATION, queues).on_gpu(),
    Step::new("gpu.trigger", "a trigger in GPU memory", MEMOPS, trigger).on_gpu(),
];

fn context(probe: &Probe) -> Result<Arc<CudaContext>, Failure> {
    Ok(cuda::context(probe.gpu()?)?)
}

fn stream(probe: &Probe, path: DoorbellPath) -> Result<Stream<CudaStream>, Failure> {
    let backend = CudaStream::new(context(probe)?.new_stream()?)?;
    Ok(Stream::with_options(backend, StreamOptions::default().doorbells(path))?)
}

fn capabilities(probe: &Probe) -> Result<(), Failure> {
    let found = stream(probe, DoorbellPath::Auto)?.capabilities();
    probe.note("capabilities", format!("{found:?}"))
}

fn region(probe: &Probe, byte: u8) -> Result<GpuMemoryRegion, Failure> {
    let memory = GpuMemory::allocate(&context(probe)?, REGION)?;
    memory.write(0, &[byte; REGION])?;
    Ok(GpuMemoryRegion::register(&probe.pd, memory, everything())?)
}

fn register(probe: &Probe) -> Result<(), Failure> {
    let made = region(probe, UNTOUCHED)?;
    probe.note("path", format!("{:?}", made.path()))?;
    probe.note("has_keys", made.lkey() != 0 && made.rkey() != 0)
}

/// Checks that the first bytes of a region are those of the source, and the rest is untouched.
fn check(region: &GpuMemoryRegion, len: usize) -> Result<(), Failure> {
    let mut bytes = vec![0; REGION];
    region.memory().read(0, &mut bytes)?;
    let wrong =
        bytes.iter().enumerate().find(|(at, byte)| **byte != if *at < len { SENT } else { UNTOUCHED });
    match wrong {
        None => Ok(()),
        Some((at, byte)) => Err(format!("byte {at} of the GPU's memory is {byte:#04x}").into()),
    }
}

fn write(probe: &Probe) -> Result<(), Failure> {
    let (pair, source, target) =
        (probe.pair(probe.config())?, region(probe, SENT)?, region(probe, UNTOUCHED)?);
    let to = target.remote().slice(..5000)?;
    pair.post(WorkRequest::write(&[source.slice(..5000)?], to).wr_id(1))?;
    pair.succeeds(probe, "write")?;
    check(&target, 5000)
}

fn read(probe: &Probe) -> Result<(), Failure> {
    let (pair, source) = (probe.pair(probe.config())?, region(probe, SENT)?);
    let from = source.remote().slice(..5000)?;
    pair.post(WorkRequest::read(&[pair.target.slice(..5000)?], from).wr_id(1))?;
    pair.succeeds(probe, "read")?;
    pair.check_target(5000)
}

fn atomic(probe: &Probe) -> Result<(), Failure> {
    let (pair, target) = (probe.pair(probe.config())?, region(probe, UNTOUCHED)?);
    target.memory().write(0, &40u64.to_le_bytes())?;
    let (result, word) = (pair.source.slice(..8)?, target.remote().slice(..8)?);
    pair.post(WorkRequest::fetch_add(&result, word, 2).wr_id(1))?;
    pair.succeeds(probe, "fetch_add")?;
    let mut bytes = [0; 8];
    target.memory().read(0, &mut bytes)?;
    probe.note("word", u64::from_le_bytes(bytes))
}

fn cpu_mapping(probe: &Probe) -> Result<(), Failure> {
    for way in mapped::available(&context(probe)?)? {
        probe.note("way", format!("{way:?}"))?;
    }
    Ok(())
}

fn proxy(probe: &Probe) -> Result<(), Failure> {
    exchange(probe, &stream(probe, DoorbellPath::Proxy)?)
}

fn direct(probe: &Probe) -> Result<(), Failure> {
    exchange(probe, &stream(probe, DoorbellPath::Direct)?)
}

fn graph(probe: &Probe) -> Result<(), Failure> {
    let stream = stream(probe, DoorbellPath::Auto)?;
    let shape = BatchShape::new().send().wait();
    let mut graph: CudaGraph = stream.capture(|capture| Ok(capture.batch(&shape)?))?;
    let pair = probe.pair(probe.config())?;
    for number in 0..2 {
        pair.receive(number)?;
        let slices = [pair.source.slice(..100)?];
        let send = pair.left.prepare(WorkRequest::send(&slices).wr_id(number))?;
        let batch = Batch::new().send(send).wait(pair.right.recv_cq().prepare_wait()?);
        stream.launch(&mut graph, [batch]).map_err(|error| error.to_string())?;
        if !stream.synchronize_timeout(LONG)? {
            return Err(format!("launch {number} has not ended within 10 s").into());
        }
        pair.succeeds(probe, "send")?;
        probe.success("receive", &pair.right.recv_cq())?;
    }
    pair.check_target(100)
}

fn kernel_by_proxy(probe: &Probe) -> Result<(), Failure> {
    put(probe, DoorbellPath::Proxy)
}

fn kernel(probe: &Probe) -> Result<(), Failure> {
    put(probe, DoorbellPath::Direct)
}

fn put(probe: &Probe, path: DoorbellPath) -> Result<(), Failure> {
    let (context, stream) = (context(probe)?, stream(probe, path)?);
    if let Err(error) = nvrtc::version() {
        return Err(cannot_run(error.to_string(), KERNEL));
    }
    let pair = probe.pair(probe.config())?;
    let attached = pair.left.attach_device(&*stream, &DeviceQpOptions::default().doorbells(path))?;
    once::put(&context, &stream, &attached, [&pair.source, &pair.target])?;
    pair.check_target(8)
}

fn queues(probe: &Probe) -> Result<(), Failure> {
    let place = Placement::Gpu(probe.gpu()?);
    let placement = QueuePlacement::HOST.work(place).completions(place).records(place);
    let pair = probe.pair(probe.config().placement(placement))?;
    pair.receive(7)?;
    pair.post(WorkRequest::send(&[pair.source.slice(..100)?]).wr_id(1))?;
    pair.arrives(probe, "send", 100)
}

fn trigger(probe: &Probe) -> Result<(), Failure> {
    let words = region(probe, 0)?;
    let trigger = Trigger::in_gpu_region(&words, 0)?;
    let stream = stream(probe, DoorbellPath::Auto)?;
    let pair = probe.pair(probe.config().trigger(&trigger))?;
    pair.receive(7)?;
    let send = pair.left.prepare(WorkRequest::send(&[pair.source.slice(..100)?]).wr_id(1))?;
    stream.post(Batch::new().send(send)).map_err(|error| error.to_string())?;
    if !stream.synchronize_timeout(LONG)? {
        return Err("the stream has not ended within 10 s".into());
    }
    probe.success("receive", &pair.right.recv_cq())?;
    pair.check_target(100)
}
