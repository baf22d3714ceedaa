//! Backends, and the properties of a mapping.

use std::fmt;
use std::str::FromStr;

/// Interfaces that map GPU memory for the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MappingBackend {
    /// gdrdrv, gdrcopy's kernel module.
    Gdrdrv,
    /// `mmap` of a dma-buf.
    DmaBuf,
    /// The resource manager of NVIDIA's driver.
    ResourceManager,
    /// Host memory instead of GPU memory ([`Mapping::stand_in`](crate::Mapping::stand_in)).
    StandIn,
}

impl MappingBackend {
    /// The backends for GPU memory, in the order of trial.
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

    /// Parses the name of a backend for GPU memory.
    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|backend| backend.to_string() == name);
        known.ok_or_else(|| format!("{name} is no way to map GPU memory: there are gdrdrv, dma-buf and nvrm"))
    }
}

/// How the CPU's caches treat a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Caching {
    /// Stores are combined in a buffer until a line is full or a fence drains it; loads are not cached.
    WriteCombining,
    /// Cached like ordinary memory: CPU and GPU are coherent (Grace Hopper).
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

/// Properties of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappingInfo {
    /// The backend that mapped it.
    pub backend: MappingBackend,
    /// Caching by the CPU.
    pub caching: Caching,
    /// Bytes of the backend's pages; mapped ranges are whole pages.
    pub page_size: usize,
    /// Bytes mapped, whole pages.
    pub mapped_size: usize,
    /// Offset of the memory in them.
    pub offset: usize,
}
