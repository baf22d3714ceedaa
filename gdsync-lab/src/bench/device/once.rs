//! A single put by a kernel.

use super::{Places, SOURCE, config};
use gdsync::cuda;
use gdsync::cudarc::driver::{CudaContext, PushKernelArg};
use gdsync::device::{DeviceQp, nvrtc};
use gdsync::{CudaStream, MemoryRegion, PinnedMemory, Stream};
use gdsync_cli::failure::Failure;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time for the kernel's put to complete, and for the kernel to end.
const PATIENCE: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(20);

/// Makes a kernel put the first 8 bytes of one region into another, and wait for the completion.
///
/// # Errors
/// The kernel cannot be compiled or launched, does not end, or its put fails.
pub(crate) fn put(
    context: &Arc<CudaContext>,
    stream: &Stream<CudaStream>,
    queue_pair: &DeviceQp,
    [from, to]: [&MemoryRegion; 2],
) -> Result<(), Failure> {
    // SAFETY: the kernel gets raw addresses, so cudarc has nothing to track.
    unsafe { context.disable_event_tracking() };
    let kernel = nvrtc::load(context, "bench.cu", SOURCE)?.load_function("attempt")?;
    let results = PinnedMemory::allocate(4096)?;
    let places = Places {
        local: cuda::pin(context, from.memory())?,
        remote: cuda::pin(context, to.memory())?,
        results: cuda::pin(context, &results)?,
        lkey: from.lkey(),
        rkey: to.rkey(),
    };
    let (data, patience) = (queue_pair.data(), PATIENCE.as_nanos() as u64);
    let mut launch = stream.cudarc().ok_or("the stream is not cudarc's")?.launch_builder(&kernel);
    launch.arg(&data).arg(&patience).arg(&places);
    // SAFETY: these are the kernel's parameters. The kernel is over, or this process ends, before their memory is freed: it
    // gives up after its patience.
    unsafe { launch.launch(config(1, 1)) }?;
    if !stream.synchronize_timeout(LONG)? {
        std::mem::forget(results);
        return Err("the kernel has not ended within 20 s".into());
    }
    match [0, 1].map(|at| results.words64()[at].load(Ordering::Acquire)) {
        [0, _] => Ok(()),
        [status, error] => {
            Err(format!("the kernel's put has failed with status {status}, error {error:#x}").into())
        }
    }
}
