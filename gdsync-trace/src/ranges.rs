//! What lasts, as ranges of NVTX: profilers such as Nsight Systems show them, whether a trace is recorded or not.
//! Without the feature `nvtx`, nothing.

use crate::record::Kind;

/// A range of the calling thread, which ends where this is dropped: by the thread that began it.
#[derive(Debug)]
pub(crate) struct Range {
    #[cfg(feature = "nvtx")]
    _range: Option<nvtx::domain::LocalRange<'static>>,
}

impl Range {
    /// No range.
    #[inline(always)]
    pub(crate) fn none() -> Self {
        Range {
            #[cfg(feature = "nvtx")]
            _range: None,
        }
    }

    /// A range by the name of its kind, in the domain `gdsync`.
    #[cfg(feature = "nvtx")]
    pub(crate) fn begin(kind: Kind) -> Self {
        Range { _range: names::of(kind).map(|name| names::domain().local_range(name)) }
    }

    /// None, without the feature.
    #[cfg(not(feature = "nvtx"))]
    #[inline(always)]
    pub(crate) fn begin(_kind: Kind) -> Self {
        Range::none()
    }
}

#[cfg(feature = "nvtx")]
mod names {
    use crate::record::Kind;
    use nvtx::Domain;
    use nvtx::domain::RegisteredString;
    use std::ffi::CString;
    use std::sync::OnceLock;

    /// A profiler gets to know the domain, and each name, once.
    pub(super) fn domain() -> &'static Domain {
        static DOMAIN: OnceLock<Domain> = OnceLock::new();
        DOMAIN.get_or_init(|| Domain::new(c"gdsync"))
    }

    pub(super) fn of(kind: Kind) -> Option<RegisteredString<'static>> {
        static NAMES: OnceLock<Vec<Option<RegisteredString<'static>>>> = OnceLock::new();
        let register = |kind: &Kind| {
            let name = CString::new(kind.name()).ok()?;
            Some(domain().register_string(name))
        };
        let names = NAMES.get_or_init(|| Kind::ALL.iter().map(register).collect());
        // Their numbers begin at 1.
        *names.get((kind as usize).checked_sub(1)?)?
    }
}
