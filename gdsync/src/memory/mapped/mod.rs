//! CPU mappings of GPU memory: the CPU loads from and stores to it over the bus, a few bytes in a fraction of a microsecond, where a
//! copy by the driver takes several.
//!
//! # Ways to map
//! There are three ([`MappingBackend`]); [`MappedMemory`] takes the first that works, or the one that the environment variable
//! `GDSYNC_MAPPING` names (`gdrdrv`, `dma-buf`, `nvrm`). Each has been made to work in turn because none is everywhere:
//!
//! | backend | needs | maps |
//! |---|---|---|
//! | gdrdrv | gdrcopy's kernel module, protocol 2.0 to 2.6 | any GPU memory, pages of 64 KiB |
//! | dma-buf | a driver of CUDA 13.3 or newer | any GPU memory, pages of the CPU |
//! | nvrm | NVIDIA's driver, major version 580; others if asked for by name | memory that was allocated exportable |
//!
//! # Example
//! ```no_run
//! use gdsync::cuda;
//! use gdsync::mapped::MappedMemory;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = cuda::context(0)?;
//! let memory = MappedMemory::allocate(&context, 4096)?;
//! memory.copy_to(128, b"seen by kernels at once")?;
//! let mut back = [0; 4];
//! memory.copy_from(128, &mut back)?;
//! assert_eq!(&back, b"seen");
//! // The same memory, for kernels, streams and cards.
//! println!("{:?}, {:?}", memory.gpu(), memory.info());
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//! [`Mapping::copy_to`] ends with a store fence, [`Mapping::copy_from`] begins with a full fence: a thread's copies happen in its own
//! order, and a store after a copy (a doorbell, a flag) is seen by the GPU after it. Between threads, and between CPU and GPU, a word
//! that is stored last and loaded first orders what is stored before and loaded after, as everywhere.
//!
//! # Fork
//! A child process has no part in its parent's mappings: every copy is [`MappingError::Forked`] there, and dropping one undoes nothing.

mod copy;
mod dma_buf;
mod error;
#[cfg(test)]
mod fakes;
mod fork;
mod gdrdrv;
mod kernel;
mod mapping;
mod memory;
mod nvrm;
mod offer;
mod stand_in;

pub(crate) use copy::load_combined;
pub use copy::{LoadKernel, StoreKernel};
pub use error::{MappingError, Refusal};
pub use mapping::Mapping;
pub use memory::{Availability, MappedMemory, available};
pub use offer::GdrdrvModule;

use std::fmt;
use std::str::FromStr;

/// Environment variable that names the backend.
const VARIABLE: &str = "GDSYNC_MAPPING";

/// Who maps GPU memory for the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MappingBackend {
    /// gdrdrv, gdrcopy's kernel module.
    Gdrdrv,
    /// The kernel's own mapping of dma-bufs.
    DmaBuf,
    /// The resource manager of NVIDIA's driver.
    ResourceManager,
    /// Nobody: ordinary memory in the place of a GPU's ([`Mapping::stand_in`]).
    StandIn,
}

impl MappingBackend {
    /// Those for GPU memory, in the order in which they are tried.
    pub const ALL: [MappingBackend; 3] =
        [MappingBackend::Gdrdrv, MappingBackend::DmaBuf, MappingBackend::ResourceManager];
}

impl fmt::Display for MappingBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MappingBackend::Gdrdrv => "gdrdrv",
            MappingBackend::DmaBuf => "dma-buf",
            MappingBackend::ResourceManager => "nvrm",
            MappingBackend::StandIn => "stand-in",
        })
    }
}

impl FromStr for MappingBackend {
    type Err = String;

    /// Of a backend for GPU memory.
    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|backend| backend.to_string() == name);
        known.ok_or_else(|| format!("{name} is no way to map GPU memory: there are gdrdrv, dma-buf and nvrm"))
    }
}

/// How the CPU's caches treat a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Caching {
    /// Stores gather in a buffer until a line is full or a fence comes; loads are not cached.
    WriteCombining,
    /// As ordinary memory: CPU and GPU are coherent (Grace Hopper and such).
    Cached,
    /// Device memory of Arm: aligned accesses of ordinary width only.
    Device,
}

impl fmt::Display for Caching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Caching::WriteCombining => "write-combining",
            Caching::Cached => "cached",
            Caching::Device => "device",
        })
    }
}

/// What is mapped, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappingInfo {
    /// Who mapped it.
    pub backend: MappingBackend,
    /// How the CPU's caches treat it.
    pub caching: Caching,
    /// Bytes of a page, as the backend counts: what is mapped begins and ends at one.
    pub page_size: usize,
    /// Bytes mapped, whole pages.
    pub mapped_size: usize,
    /// Where in them the memory begins.
    pub offset: usize,
}
