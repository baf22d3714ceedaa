//! The backend of an open library, chosen once.

use crate::error::CallError;
use crate::types::{GPU_PAGE, VERSION};
use gdsync_gdr::{GdrdrvModule, MappingBackend, MappingError, Refusal, page_size};
use std::ffi::OsStr;

/// Returns the backend that `GDSYNC_MAPPING` and `GDRCOPY_USE_DMABUF_MMAP` name with these values.
fn wish(mapping: Option<&OsStr>, dma_buf: Option<&OsStr>) -> Result<Option<MappingBackend>, CallError> {
    match mapping.filter(|name| !name.is_empty()).map(OsStr::to_string_lossy) {
        // `FromStr` parses only backends for GPU memory.
        Some(name) if name == MappingBackend::StandIn.to_string() => Ok(Some(MappingBackend::StandIn)),
        Some(name) => name.parse().map(Some).map_err(|reason| CallError::UnknownBackend { reason }),
        None => Ok((dma_buf == Some(OsStr::new("1"))).then_some(MappingBackend::DmaBuf)),
    }
}

/// A way to map memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backend {
    pub(crate) kind: MappingBackend,
    pub(crate) version: (u16, u16),
    /// True if pinned memory stays when CUDA frees it first.
    pub(crate) persistent: bool,
}

impl Backend {
    /// Returns the backend that the environment names, or the first that the machine has.
    pub(crate) fn choose() -> Result<Self, CallError> {
        let value = |variable| std::env::var_os(variable);
        let wish = wish(value("GDSYNC_MAPPING").as_deref(), value("GDRCOPY_USE_DMABUF_MMAP").as_deref())?;
        let chosen = match wish {
            Some(backend) => Self::of(backend, true)
                .map_err(|refusal| MappingError::Unavailable { tried: vec![(backend, refusal)] }),
            None => MappingBackend::first_working(|backend, by_name| {
                Self::of(backend, by_name).map_err(|refusal| MappingError::Refused { backend, refusal })
            }),
        };
        chosen.map_err(CallError::NoBackend)
    }

    fn of(kind: MappingBackend, by_name: bool) -> Result<Self, Refusal> {
        match kind {
            MappingBackend::Gdrdrv => {
                let module = GdrdrvModule::ask()?;
                Ok(Backend { kind, version: module.version, persistent: module.keeps_memory })
            }
            _ => {
                if kind != MappingBackend::StandIn {
                    kind.check_support(by_name)?;
                }
                Ok(Backend { kind, version: VERSION, persistent: true })
            }
        }
    }

    /// Bytes of a page, at whose multiples mappings begin and end: a GPU page, as in gdrcopy, or a host page for dma-bufs.
    pub(crate) fn page(self) -> usize {
        if self.kind == MappingBackend::DmaBuf { page_size() } else { GPU_PAGE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_a_backend() {
        let wish = |mapping: &str, dma_buf: &str| wish(Some(OsStr::new(mapping)), Some(OsStr::new(dma_buf)));
        let named = |backend| Some(Some(backend));
        for backend in [MappingBackend::StandIn].into_iter().chain(MappingBackend::ALL) {
            assert_eq!(wish(&backend.to_string(), "1").ok(), named(backend));
        }
        assert_eq!(wish("", "1").ok(), named(MappingBackend::DmaBuf));
        assert_eq!(super::wish(None, Some(OsStr::new("1"))).ok(), named(MappingBackend::DmaBuf));
        for off in ["", "0", "2", "yes"] {
            assert_eq!(wish("", off).ok(), Some(None));
        }
        let error = wish("gdrcopy", "1").unwrap_err().to_string();
        assert!(error.contains("gdrcopy") && error.contains("nvrm") && error.contains("stand-in"), "{error}");
    }

    #[test]
    fn pages_are_the_gpus_but_for_dma_bufs() {
        let page = |kind| Backend { kind, version: VERSION, persistent: true }.page();
        assert_eq!((page(MappingBackend::Gdrdrv), page(MappingBackend::ResourceManager)), (65_536, 65_536));
        assert_eq!(page(MappingBackend::DmaBuf), page_size());
    }
}
