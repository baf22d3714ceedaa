//! The way in which an open library maps memory, chosen once.

use crate::fault::Fault;
use crate::types::{GPU_PAGE, VERSION};
use gdsync::mapped::{GdrdrvModule, MappingBackend, Refusal};
use std::ffi::OsStr;

/// What the environment wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    First,
    Named(MappingBackend),
}

/// From the values of `GDSYNC_MAPPING` and `GDRCOPY_USE_DMABUF_MMAP`.
fn wish(mapping: Option<&OsStr>, dma_buf: Option<&OsStr>) -> Result<Wish, Fault> {
    match mapping.filter(|name| !name.is_empty()).map(OsStr::to_string_lossy) {
        // `FromStr` knows only backends for GPU memory.
        Some(name) if name == MappingBackend::StandIn.to_string() => Ok(Wish::Named(MappingBackend::StandIn)),
        Some(name) => match name.parse() {
            Ok(backend) => Ok(Wish::Named(backend)),
            Err(reason) => Err(Fault::UnknownBackend { reason }),
        },
        None if dma_buf == Some(OsStr::new("1")) => Ok(Wish::Named(MappingBackend::DmaBuf)),
        None => Ok(Wish::First),
    }
}

/// How memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backend {
    pub(crate) kind: MappingBackend,
    /// What counts as the driver's version.
    pub(crate) version: (u16, u16),
    /// What is pinned stays if CUDA frees it first.
    pub(crate) persistent: bool,
}

impl Backend {
    /// That which the environment wants, or the first that the machine has.
    pub(crate) fn choose() -> Result<Self, Fault> {
        let value = |variable| std::env::var_os(variable);
        match wish(value("GDSYNC_MAPPING").as_deref(), value("GDRCOPY_USE_DMABUF_MMAP").as_deref())? {
            Wish::Named(backend) => Self::of(backend, true)
                .map_err(|refusal| Fault::NoBackend { tried: vec![(backend, refusal)] }),
            Wish::First => {
                let mut tried = Vec::new();
                for backend in MappingBackend::ALL {
                    match Self::of(backend, false) {
                        Ok(found) => return Ok(found),
                        Err(refusal) => tried.push((backend, refusal)),
                    }
                }
                Err(Fault::NoBackend { tried })
            }
        }
    }

    fn of(kind: MappingBackend, by_name: bool) -> Result<Self, Refusal> {
        match kind {
            MappingBackend::Gdrdrv => {
                let module = GdrdrvModule::ask()?;
                Ok(Backend { kind, version: module.version, persistent: module.keeps_memory })
            }
            MappingBackend::StandIn => Ok(Backend { kind, version: VERSION, persistent: true }),
            _ => {
                kind.offered(by_name)?;
                Ok(Backend { kind, version: VERSION, persistent: true })
            }
        }
    }

    /// Bytes of a page: what is mapped begins and ends at one. gdrcopy counts so, too: GPU pages, but the host's for dma-bufs.
    pub(crate) fn page(self) -> usize {
        if self.kind == MappingBackend::DmaBuf { host_page() } else { GPU_PAGE }
    }
}

/// Bytes of the host's pages.
pub(crate) fn host_page() -> usize {
    // SAFETY: only reads a constant of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_a_backend() {
        let wish = |mapping: &str, dma_buf: &str| wish(Some(OsStr::new(mapping)), Some(OsStr::new(dma_buf)));
        let named = |backend| Some(Wish::Named(backend));
        for backend in [MappingBackend::StandIn].into_iter().chain(MappingBackend::ALL) {
            assert_eq!(wish(&backend.to_string(), "1").ok(), named(backend));
        }
        assert_eq!(wish("", "1").ok(), named(MappingBackend::DmaBuf));
        assert_eq!(super::wish(None, Some(OsStr::new("1"))).ok(), named(MappingBackend::DmaBuf));
        for off in ["", "0", "2", "yes"] {
            assert_eq!(wish("", off).ok(), Some(Wish::First));
        }
        let error = wish("gdrcopy", "1").unwrap_err().to_string();
        assert!(error.contains("gdrcopy") && error.contains("nvrm") && error.contains("stand-in"), "{error}");
    }

    #[test]
    fn pages_are_the_gpus_but_for_dma_bufs() {
        let page = |kind| Backend { kind, version: VERSION, persistent: true }.page();
        assert_eq!((page(MappingBackend::Gdrdrv), page(MappingBackend::ResourceManager)), (65_536, 65_536));
        assert_eq!(page(MappingBackend::DmaBuf), host_page());
    }
}
