//! The kernels of `kernels/bench.cu`, and their launches.

use super::super::gpu::Gpu;
use gdsync::PinnedMemory;
use gdsync::cudarc::driver::{CudaFunction, DeviceRepr, LaunchConfig, PushKernelArg};
use gdsync::device::{DeviceQpData, nvrtc};
use gdsync_cli::failure::Failure;

const SOURCE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/bench.cu"));

/// Where a kernel's requests go: `struct places` of `kernels/bench.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) local: u64,
    pub(super) remote: u64,
    pub(super) results: u64,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

// SAFETY: plain integers, laid out as the kernels have them.
unsafe impl DeviceRepr for Places {}

/// How threads share queue pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Queue pairs of a block.
    pub(super) of_block: u32,
    /// Threads of each of them.
    pub(super) sharers: u32,
    pub(super) blocks: u32,
}

pub(super) struct Kernels {
    cycles: CudaFunction,
    steps: CudaFunction,
    rate: CudaFunction,
}

impl Kernels {
    pub(super) fn load(gpu: &Gpu) -> Result<Self, Failure> {
        // SAFETY: kernels get raw addresses here, so cudarc has nothing to track.
        unsafe { gpu.context.disable_event_tracking() };
        let module = nvrtc::load(&gpu.context, "bench.cu", SOURCE)?;
        let function = |name| module.load_function(name);
        Ok(Kernels { cycles: function("cycles")?, steps: function("steps")?, rate: function("rate")? })
    }

    /// Measures a way of posting.
    ///
    /// # Safety
    /// The queue pair is handed over to the GPU, and the places are memory of it and of the card,
    /// until the kernel has ended.
    pub(super) unsafe fn cycles(
        &self,
        gpu: &Gpu,
        qp: DeviceQpData,
        which: u32,
        threads: u32,
        rounds: u32,
        places: Places,
    ) -> Result<(), Failure> {
        let stream = gpu.stream.cudarc().ok_or("the stream is not cudarc's")?;
        let mut launch = stream.launch_builder(&self.cycles);
        launch.arg(&qp).arg(&which).arg(&rounds).arg(&places);
        // SAFETY: these are the kernel's parameters; the rest is the caller's.
        unsafe { launch.launch(config(1, threads)) }?;
        Ok(())
    }

    /// Measures the steps of a put.
    ///
    /// # Safety
    /// As [`Self::cycles`].
    pub(super) unsafe fn steps(
        &self,
        gpu: &Gpu,
        qp: DeviceQpData,
        rounds: u32,
        places: Places,
    ) -> Result<(), Failure> {
        let stream = gpu.stream.cudarc().ok_or("the stream is not cudarc's")?;
        let mut launch = stream.launch_builder(&self.steps);
        launch.arg(&qp).arg(&rounds).arg(&places);
        // SAFETY: these are the kernel's parameters; the rest is the caller's.
        unsafe { launch.launch(config(1, 1)) }?;
        Ok(())
    }

    /// Measures how fast many post. `qps`: the address of their descriptions.
    ///
    /// # Safety
    /// As [`Self::cycles`], for all of them.
    pub(super) unsafe fn rate(
        &self,
        gpu: &Gpu,
        qps: u64,
        shape: Shape,
        count: u64,
        wait_each: bool,
        places: Places,
    ) -> Result<(), Failure> {
        let stream = gpu.stream.cudarc().ok_or("the stream is not cudarc's")?;
        let (Shape { of_block, sharers, blocks }, wait_each) = (shape, u32::from(wait_each));
        let mut launch = stream.launch_builder(&self.rate);
        launch.arg(&qps).arg(&sharers).arg(&of_block).arg(&count).arg(&wait_each).arg(&places);
        // SAFETY: these are the kernel's parameters; the rest is the caller's.
        unsafe { launch.launch(config(blocks, of_block * sharers)) }?;
        Ok(())
    }
}

pub(super) fn config(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// Descriptions of queue pairs one after the other, where a kernel can be given them.
pub(super) fn list(qps: &[DeviceQpData]) -> Result<PinnedMemory, Failure> {
    let memory = PinnedMemory::allocate(size_of_val(qps))?;
    // SAFETY: structures of integers without padding.
    let bytes = unsafe { std::slice::from_raw_parts(qps.as_ptr().cast::<u8>(), size_of_val(qps)) };
    memory.write(0, bytes);
    Ok(memory)
}
