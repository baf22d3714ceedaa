//! CPU mappings of GPU memory: their speed and their correctness.

mod copies;
mod freed;
mod sanity;

pub(crate) use copies::{bandwidth, latency};
pub(crate) use sanity::run as sanity;

use gdsync::advanced::mapped::{self, MappedMemory, Mapping, MappingBackend};
use gdsync::cuda::{self, GpuMemory};
use gdsync::cudarc::driver::CudaContext;
use gdsync_cli::cli::MappedOptions;
use gdsync_cli::failure::Failure;
use std::ops::Deref;
use std::sync::Arc;

/// Memory of a GPU, or of its stand-in.
enum Memory {
    Gpu(MappedMemory),
    StandIn(Mapping),
}

impl Deref for Memory {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        match self {
            Memory::Gpu(memory) => memory,
            Memory::StandIn(mapping) => mapping,
        }
    }
}

impl Memory {
    fn gpu(&self) -> Option<&GpuMemory> {
        match self {
            Memory::Gpu(memory) => Some(memory.gpu()),
            Memory::StandIn(_) => None,
        }
    }
}

struct Source {
    context: Option<Arc<CudaContext>>,
    backends: Vec<MappingBackend>,
    absent: Vec<Absent>,
}

#[derive(Debug, serde::Serialize)]
struct Absent {
    backend: String,
    reason: String,
}

fn absent_lines(absent: &[Absent]) -> String {
    absent.iter().map(|one| format!("not by {}: {}\n", one.backend, one.reason)).collect()
}

impl Source {
    /// # Errors
    /// There is no GPU, or no backend works on it.
    fn new(options: &MappedOptions) -> Result<Self, Failure> {
        if options.stand_in {
            return Ok(Source { context: None, backends: vec![MappingBackend::StandIn], absent: Vec::new() });
        }
        let context = cuda::context(options.gpu)
            .map_err(|error| format!("{error} (--stand-in tries everything on ordinary memory)"))?;
        // For the driver's own copies.
        context.bind_to_thread()?;
        if let Some(backend) = options.backend {
            // Fails at once if the backend does not work.
            MappedMemory::allocate_by(backend, &context, 1)?;
            return Ok(Source { context: Some(context), backends: vec![backend], absent: Vec::new() });
        }
        let (mut backends, mut absent) = (Vec::new(), Vec::new());
        for found in mapped::available(&context)? {
            match found.refusal {
                None => backends.push(found.backend),
                Some(refusal) => {
                    let (backend, reason) = (found.backend.to_string(), refusal.to_string());
                    absent.push(Absent { backend, reason });
                }
            }
        }
        if backends.is_empty() {
            let reasons: Vec<String> =
                absent.iter().map(|absent| format!("{}: {}", absent.backend, absent.reason)).collect();
            return Err(format!("no way to map GPU memory works here: {}", reasons.join("; ")).into());
        }
        Ok(Source { context: Some(context), backends, absent })
    }

    fn name(&self) -> Result<String, Failure> {
        match &self.context {
            Some(context) => Ok(context.name()?),
            None => Ok("no GPU, ordinary memory in its place".to_owned()),
        }
    }

    fn allocate(&self, backend: MappingBackend, len: usize) -> Result<Memory, Failure> {
        match &self.context {
            Some(context) => Ok(Memory::Gpu(MappedMemory::allocate_by(backend, context, len)?)),
            None => Ok(Memory::StandIn(Mapping::stand_in(len)?)),
        }
    }
}

/// The result of a check that did not fail.
enum Outcome {
    Passed,
    /// Not possible here: why.
    Skipped(&'static str),
}

/// Returns bytes without long repetitions.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed).wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}
