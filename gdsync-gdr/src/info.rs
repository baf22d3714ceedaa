//! The backends by name, and what they say of a mapping.

use std::fmt;
use std::str::FromStr;

/// What maps GPU memory for the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MappingBackend {
    /// gdrdrv, gdrcopy's kernel module.
    Gdrdrv,
    /// `mmap` of a dma-buf.
    DmaBuf,
    /// The resource manager of NVIDIA's driver.
    ResourceManager,
    /// Host memory in the place of a GPU's ([`Mapping::stand_in`](crate::Mapping::stand_in)).
    StandIn,
}

impl MappingBackend {
    /// The backends for GPU memory, in the order in which they are tried.
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

    /// The name of a backend for GPU memory.
    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|backend| backend.to_string() == name);
        known.ok_or_else(|| format!("{name} is no way to map GPU memory: there are gdrdrv, dma-buf and nvrm"))
    }
}

/// How the CPU's caches treat a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Caching {
    /// Stores gather in a buffer until a line is full or a fence drains it; loads are not cached.
    WriteCombining,
    /// As ordinary memory: CPU and GPU are coherent (Grace Hopper and such).
    Cached,
    /// Device memory of Arm: aligned accesses of at most 8 bytes only.
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
    /// The backend that mapped it.
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
