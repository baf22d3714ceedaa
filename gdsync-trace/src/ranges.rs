//! Spans as NVTX ranges, which profilers such as Nsight Systems show with or without a trace. Without the feature
//! `nvtx` they do nothing.

use crate::record::Kind;

/// A range of the calling thread. The same thread drops it to end the range.
#[derive(Debug)]
pub(crate) struct Range {
    #[cfg(feature = "nvtx")]
    _range: Option<nvtx::domain::LocalRange<'static>>,
}

impl Range {
    /// Returns no range.
    #[inline(always)]
    pub(crate) fn none() -> Self {
        Range {
            #[cfg(feature = "nvtx")]
            _range: None,
        }
    }

    /// Begins a range with the name of its kind, in the domain `gdsync`.
    #[cfg(feature = "nvtx")]
    pub(crate) fn begin(kind: Kind) -> Self {
        Range { _range: names::of(kind).map(|name| names::domain().local_range(name)) }
    }

    /// Returns no range: the feature is disabled.
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

    /// The domain and each name are registered once.
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
        // Numbers of kinds begin at 1.
        *names.get((kind as usize).checked_sub(1)?)?
    }
}
