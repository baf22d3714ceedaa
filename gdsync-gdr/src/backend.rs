//! Backends, the properties of their mappings, and the reasons why they fail.

use crate::driver::DriverError;
use std::fmt;
use std::io;
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

/// The reason why a backend does not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {reason} ({remedy})")]
#[non_exhaustive]
pub struct Refusal {
    /// The step that failed.
    pub step: String,
    /// Its error.
    pub reason: String,
    /// The remedy.
    pub remedy: String,
}

impl Refusal {
    /// Creates a refusal from the failed step, the reason and the remedy.
    pub fn new(step: impl Into<String>, reason: impl fmt::Display, remedy: impl Into<String>) -> Self {
        Refusal { step: step.into(), reason: reason.to_string(), remedy: remedy.into() }
    }

    pub(crate) fn driver(step: &str, error: DriverError) -> Self {
        Refusal::new(step, error, "see what the CUDA driver says of that error")
    }

    /// Creates the refusal for a device file that does not open.
    pub(crate) fn open(path: &str, error: &io::Error, missing: &str) -> Self {
        let remedy = match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => missing.to_owned(),
            Some(libc::EACCES | libc::EPERM) => {
                format!("give this user the right to read and write {path}, and a container the device")
            }
            Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)".to_owned(),
            _ => "the kernel's log may say more (dmesg)".to_owned(),
        };
        Refusal::new(format!("open {path}"), error, remedy)
    }
}

/// Errors of CPU mappings of GPU memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// An error of the CUDA driver.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// GPU memory to map could not be allocated.
    #[error("cannot allocate GPU memory to map: {reason}")]
    Allocation {
        /// The reason.
        reason: String,
    },
    /// The requested backend does not work.
    #[error("{backend} cannot map GPU memory for the CPU: {refusal}")]
    Refused {
        /// The backend.
        backend: MappingBackend,
        /// The reason.
        refusal: Refusal,
    },
    /// No backend works.
    #[error("no way to map GPU memory for the CPU works here: {}", list(.tried))]
    Unavailable {
        /// Each tried backend, with its reason.
        tried: Vec<(MappingBackend, Refusal)>,
    },
    /// There is no such backend.
    #[error("{variable}: {reason}")]
    UnknownBackend {
        /// The environment variable with its name.
        variable: &'static str,
        /// The name, and the names of the backends.
        reason: String,
    },
    /// A range lies outside the mapping.
    #[error("bytes {start}..{end} lie outside the {len} bytes mapped")]
    OutOfBounds {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Length of the mapping.
        len: usize,
    },
    /// The GPU memory was freed while mapped.
    #[error("the GPU memory was freed under its mapping: keep it until the mapping is dropped")]
    Freed,
    /// The mapping belongs to a parent process.
    #[error("the mapping belongs to the process that made it, not to a child: map again after fork")]
    Forked,
    /// This processor lacks a copy kernel.
    #[error("this processor has no copy kernel {kernel}: it has {has}")]
    NoKernel {
        /// The kernel's name.
        kernel: String,
        /// The available kernels.
        has: String,
    },
    /// Host memory for a stand-in cannot be mapped.
    #[error("cannot map {len} bytes of host memory in the place of a GPU's: {reason}")]
    NoHostMemory {
        /// Requested bytes.
        len: usize,
        /// The operating system's error.
        reason: String,
    },
}

fn list(tried: &[(MappingBackend, Refusal)]) -> String {
    let each: Vec<String> = tried.iter().map(|(backend, refusal)| format!("{backend}: {refusal}")).collect();
    each.join("; ")
}

impl MappingError {
    pub(crate) fn no_kernel<K: fmt::Display>(kernel: K, available: impl Iterator<Item = K>) -> Self {
        let has: Vec<String> = available.map(|kernel| kernel.to_string()).collect();
        MappingError::NoKernel { kernel: kernel.to_string(), has: has.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_that_was_tried_is_named_with_its_remedy() {
        let refusal = |reason: &str| Refusal::new("open", reason, "install it");
        let error = MappingError::Unavailable {
            tried: vec![
                (MappingBackend::Gdrdrv, refusal("no file")),
                (MappingBackend::ResourceManager, refusal("too old")),
            ],
        };
        let text = error.to_string();
        assert!(text.contains("gdrdrv: open: no file (install it)"), "{text}");
        assert!(text.contains("nvrm: open: too old (install it)"), "{text}");
    }

    #[test]
    fn a_file_that_does_not_open_gets_the_remedy_of_its_errno() {
        let of = |errno| Refusal::open("/dev/x", &io::Error::from_raw_os_error(errno), "load x").remedy;
        assert_eq!(of(libc::ENOENT), "load x");
        assert!(of(libc::EACCES).contains("/dev/x"));
        assert!(of(libc::EMFILE).contains("ulimit"));
        assert!(of(libc::EIO).contains("dmesg"));
    }
}
