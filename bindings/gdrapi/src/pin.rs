//! Pinned memory and its mapping.

use crate::backend::Backend;
use crate::error::{CallError, non_null};
use crate::types::{self, InfoV2};
use gdsync_gdr::{Caching, GpuRange, Mapping, MappingBackend, MappingError, page_size};

#[derive(Default)]
struct MappingState {
    /// Made when the memory is pinned, so that memory that cannot be mapped is refused then; made anew after each `gdr_unmap`, which must not
    /// leave pages mapped.
    mapping: Option<Mapping>,
    /// Bytes of the mapping that `gdr_map` gave to the program; 0 while it is not mapped.
    shown: usize,
}

/// A range of whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pages {
    first: u64,
    /// The offset of the memory in the pages.
    skew: u64,
    size: usize,
}

impl Pages {
    fn around(address: u64, len: usize, page: usize) -> Result<Self, CallError> {
        let limit = |limit| CallError::Bad { what: "size", value: len as u64, limit };
        if len == 0 {
            return Err(limit("there must be bytes to pin"));
        }
        let skew = address % page as u64;
        let size = len
            .checked_add(skew as usize)
            .and_then(|end| end.checked_next_multiple_of(page))
            .filter(|size| isize::try_from(*size).is_ok())
            .filter(|size| (address - skew).checked_add(*size as u64).is_some());
        size.map(|size| Pages { first: address - skew, skew, size })
            .ok_or_else(|| limit("the address space must hold it"))
    }
}

/// The memory that `gdr_pin_buffer` pins.
pub(crate) struct Pin {
    backend: Backend,
    pages: Pages,
    /// None for the stand-in, which maps host memory instead of a GPU's.
    memory: Option<GpuRange>,
    state: MappingState,
}

fn type_of(mapping: &Mapping) -> u32 {
    match mapping.info().caching {
        Caching::Cached => types::TYPE_CACHING,
        Caching::Device => types::TYPE_DEVICE,
        _ => types::TYPE_WC,
    }
}

impl Pin {
    /// Pins memory.
    ///
    /// # Safety
    /// If the driver knows the address, the memory and the current context stay until the value is dropped.
    pub(crate) unsafe fn new(backend: Backend, address: u64, len: usize) -> Result<Self, CallError> {
        let pages = Pages::around(address, len, backend.page())?;
        let memory = match backend.kind {
            MappingBackend::StandIn => None,
            // From the memory's first byte on: earlier bytes of the page may be other memory, and are never mapped for the program.
            // SAFETY: the caller keeps the memory and the context.
            _ => Some(unsafe { GpuRange::from_current(address, pages.size - pages.skew as usize) }?),
        };
        let mut pin = Pin { backend, pages, memory, state: MappingState::default() };
        pin.state.mapping = Some(pin.make()?);
        Ok(pin)
    }

    fn make(&self) -> Result<Mapping, MappingError> {
        match &self.memory {
            Some(memory) => Mapping::pin_by(self.backend.kind, memory),
            None => Mapping::stand_in(self.pages.size),
        }
    }

    /// Refuses memory that is mapped, as `gdr_map` does first.
    pub(crate) fn check_unmapped(&self) -> Result<(), CallError> {
        if self.state.shown > 0 { Err(CallError::Mapped) } else { Ok(()) }
    }

    /// Maps the memory for the program. Returns the address of the first byte.
    pub(crate) fn map(&mut self, size: usize, wanted: Option<u32>) -> Result<*mut u8, CallError> {
        self.check_unmapped()?;
        let (page, skew) = (self.backend.page(), self.pages.skew);
        if skew != 0 {
            return Err(CallError::Unaligned { skew, page });
        }
        let bad = |limit| CallError::Bad { what: "size", value: size as u64, limit };
        let shown = size.checked_next_multiple_of(page_size()).filter(|shown| *shown <= self.pages.size);
        let shown = match shown {
            Some(0) => return Err(bad("there must be bytes to map")),
            Some(shown) => shown,
            None => return Err(bad("no more can be mapped than was pinned")),
        };
        let mapping = match self.state.mapping.take() {
            Some(mapping) => mapping,
            None => self.make()?,
        };
        let mapping = self.state.mapping.insert(mapping);
        let (has, base) = (type_of(mapping), mapping.as_ptr());
        if let Some(wanted) = wanted.filter(|wanted| *wanted != has) {
            return Err(CallError::OtherType { wanted, has, backend: self.backend.kind });
        }
        self.state.shown = shown;
        Ok(base)
    }

    /// Ends the mapping that [`Pin::map`] returned.
    pub(crate) fn unmap(&mut self, at: u64, size: usize) -> Result<(), CallError> {
        let (mapping, shown) = self.state.handed_out()?;
        let base = mapping.as_ptr() as u64;
        if at != base {
            return Err(CallError::Bad { what: "va", value: at, limit: "gdr_map gave another address" });
        }
        if size == 0 || size > shown {
            let limit = "gdr_map was asked for another";
            return Err(CallError::Bad { what: "size", value: size as u64, limit });
        }
        self.state = MappingState::default();
        Ok(())
    }

    /// The information that `gdr_get_info` reports.
    pub(crate) fn info(&self) -> InfoV2 {
        let mapping_type = self.state.handed_out().map_or(types::TYPE_NONE, |(mapping, _)| type_of(mapping));
        let mapped = if mapping_type == types::TYPE_NONE { 0 } else { types::MAPPED };
        let wc = if mapping_type == types::TYPE_WC { types::WC_MAPPING } else { 0 };
        InfoV2 {
            va: self.pages.first,
            mapped_size: self.pages.size as u64,
            page_size: self.backend.page() as u32,
            tm_cycles: 0,
            cycles_per_ms: 0,
            bits: mapped | wc,
            mapping_type,
        }
    }

    /// Returns whether the memory was freed while it was mapped.
    pub(crate) fn is_freed(&self) -> bool {
        let asked = self.state.mapping.as_ref().map(|mapping| mapping.copy_from(0, &mut []));
        matches!(asked, Some(Err(MappingError::Freed)))
    }

    /// Copies into the mapping.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes, and does not overlap the mapping.
    #[inline]
    pub(crate) unsafe fn copy_to(&self, at: u64, from: *const u8, len: usize) -> Result<(), CallError> {
        let Some((mapping, offset)) = self.state.place(at, len)? else { return Ok(()) };
        non_null("h_ptr", from)?;
        // SAFETY: the caller passes readable memory; the length is at most that of the mapping, so it fits the address space.
        let bytes = unsafe { std::slice::from_raw_parts(from, len) };
        Ok(mapping.copy_to(offset, bytes)?)
    }

    /// Copies out of the mapping.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes, and does not overlap the mapping.
    #[inline]
    pub(crate) unsafe fn copy_from(&self, at: u64, to: *mut u8, len: usize) -> Result<(), CallError> {
        let Some((mapping, offset)) = self.state.place(at, len)? else { return Ok(()) };
        non_null("h_ptr", to)?;
        // SAFETY: the caller passes writable memory, in which any value is valid; the length as above.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to, len) };
        Ok(mapping.copy_from(offset, bytes)?)
    }
}

impl MappingState {
    /// The mapping that `gdr_map` gave to the program, and its length.
    #[inline]
    fn handed_out(&self) -> Result<(&Mapping, usize), CallError> {
        match &self.mapping {
            Some(mapping) if self.shown > 0 => Ok((mapping, self.shown)),
            _ => Err(CallError::NotMapped),
        }
    }

    /// Returns the mapping and the offset of a range in it, or none if there is nothing to copy.
    #[inline]
    fn place(&self, at: u64, len: usize) -> Result<Option<(&Mapping, usize)>, CallError> {
        let (mapping, size) = self.handed_out()?;
        if len == 0 {
            return Ok(None);
        }
        let start = mapping.as_ptr() as u64;
        // An address before the first byte wraps to one far after the last.
        let offset = at.wrapping_sub(start);
        if offset > size as u64 || len as u64 > size as u64 - offset {
            return Err(CallError::Outside { at, len, start, size });
        }
        Ok(Some((mapping, offset as usize)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_hold_the_memory() {
        let around = |address, len| Pages::around(address, len, 0x1_0000).ok();
        assert_eq!(around(0x2_0000, 1), Some(Pages { first: 0x2_0000, skew: 0, size: 0x1_0000 }));
        assert_eq!(around(0x2_0000, 0x1_0000), Some(Pages { first: 0x2_0000, skew: 0, size: 0x1_0000 }));
        assert_eq!(around(0x2_ffff, 2), Some(Pages { first: 0x2_0000, skew: 0xffff, size: 0x2_0000 }));
        assert_eq!(around(0x2_0000, 0), None);
        assert_eq!(around(0, usize::MAX), None);
        assert_eq!(around(0, 1 << 63), None);
        assert_eq!(around(u64::MAX - 0xffff, 1), None, "its end has no address");
        assert!(around(u64::MAX - 0x1_ffff, 1).is_some());
    }
}
