//! The C functions, which `gdrapi.h` documents.
//!
//! # Safety
//! The caller of an `unsafe` function guarantees, besides what its own documentation says, that a pointer through which it writes is null,
//! which is an error, or valid for the write that the header documents. Handles may be any numbers.

#![allow(clippy::missing_safety_doc, reason = "the module's documentation has what all functions require")]

use crate::backend::Backend;
use crate::error::{CallError, attempt, non_null, status};
use crate::log;
use crate::pin::Pin;
use crate::table::table;
use crate::types::{self, Gdr, InfoV1, InfoV2, MemoryHandle};
use gdsync_gdr::MappingBackend;
use libc::{c_char, c_int, c_uint, c_ulong, c_void};
use std::ffi::CStr;

fn number(g: *mut Gdr) -> Result<u64, CallError> {
    non_null("g", g)?;
    Ok(g as u64)
}

/// `gdr_open`: the library, or null.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_open() -> *mut Gdr {
    log::start();
    let opened = attempt("gdr_open", || {
        let backend = Backend::choose()?;
        tracing::info!("gdr_open: GPU memory is mapped by {}", backend.kind);
        Ok(table().open(backend))
    });
    // A number, not an address: it is never dereferenced.
    opened.map_or(std::ptr::null_mut(), |number| std::ptr::without_provenance_mut(number as usize))
}

/// `gdr_close`.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_close(g: *mut Gdr) -> c_int {
    status("gdr_close", || table().close(number(g)?))
}

/// `gdr_pin_buffer`.
///
/// # Safety
/// See the module; memory at the address that CUDA knows stays until it is unpinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_pin_buffer(
    g: *mut Gdr,
    addr: c_ulong,
    size: usize,
    p2p_token: u64,
    va_space: u32,
    handle: *mut MemoryHandle,
) -> c_int {
    status("gdr_pin_buffer", || {
        let limit = "peer-to-peer tokens are no longer used: it must be 0";
        if p2p_token != 0 {
            return Err(CallError::Bad { what: "p2p_token", value: p2p_token, limit });
        }
        if va_space != 0 {
            return Err(CallError::Bad { what: "va_space", value: va_space.into(), limit });
        }
        // SAFETY: the caller keeps the memory until it is unpinned.
        unsafe { pin(g, addr, size, handle) }
    })
}

/// `gdr_pin_buffer_v2`.
///
/// # Safety
/// As [`gdr_pin_buffer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_pin_buffer_v2(
    g: *mut Gdr,
    addr: c_ulong,
    size: usize,
    flags: u32,
    handle: *mut MemoryHandle,
) -> c_int {
    status("gdr_pin_buffer_v2", || {
        let bad = |limit| Err(CallError::Bad { what: "flags", value: flags.into(), limit });
        match flags {
            // SAFETY: the caller keeps the memory until it is unpinned.
            0 => unsafe { pin(g, addr, size, handle) },
            types::PIN_FORCE_PCIE => bad("nothing here maps over PCIe what is coherent"),
            _ => bad("there are only 0 and GDR_PIN_FLAG_FORCE_PCIE"),
        }
    })
}

/// # Safety
/// As [`gdr_pin_buffer`].
unsafe fn pin(g: *mut Gdr, addr: c_ulong, size: usize, handle: *mut MemoryHandle) -> Result<(), CallError> {
    let library = number(g)?;
    let backend = table().library(library)?;
    non_null("handle", handle)?;
    // SAFETY: the caller keeps the memory until it is unpinned.
    let pin = unsafe { Pin::new(backend, addr, size) }?;
    let number = table().add(library, pin)?;
    // SAFETY: not null (checked), so the caller passes a valid pointer.
    unsafe { handle.write(MemoryHandle { h: number as c_ulong }) };
    Ok(())
}

/// `gdr_unpin_buffer`.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_unpin_buffer(g: *mut Gdr, handle: MemoryHandle) -> c_int {
    status("gdr_unpin_buffer", || table().remove(number(g)?, handle.h))
}

/// `gdr_get_callback_flag`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_get_callback_flag(g: *mut Gdr, handle: MemoryHandle, flag: *mut c_int) -> c_int {
    status("gdr_get_callback_flag", || {
        let freed = table().look(number(g)?, handle.h, |pin| Ok(pin.is_freed()))?;
        non_null("flag", flag)?;
        // SAFETY: not null (checked), so the caller passes a valid pointer.
        unsafe { flag.write(freed.into()) };
        Ok(())
    })
}

fn info(g: *mut Gdr, handle: MemoryHandle) -> Result<InfoV2, CallError> {
    table().look(number(g)?, handle.h, |pin| Ok(pin.info()))
}

/// `gdr_get_info_v2`, which the header also calls `gdr_get_info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_get_info_v2(g: *mut Gdr, handle: MemoryHandle, to: *mut InfoV2) -> c_int {
    status("gdr_get_info_v2", || {
        let info = info(g, handle)?;
        non_null("info", to)?;
        // SAFETY: not null (checked), so the caller passes a valid pointer.
        unsafe { to.write(info) };
        Ok(())
    })
}

/// The symbol `gdr_get_info` of programs that were built before gdrcopy 2.4, with the shorter struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_get_info(g: *mut Gdr, handle: MemoryHandle, to: *mut InfoV1) -> c_int {
    status("gdr_get_info", || {
        let InfoV2 { va, mapped_size, page_size, tm_cycles, cycles_per_ms, bits, .. } = info(g, handle)?;
        non_null("info", to)?;
        // SAFETY: not null (checked), so the caller passes a valid pointer.
        unsafe { to.write(InfoV1 { va, mapped_size, page_size, tm_cycles, cycles_per_ms, bits }) };
        Ok(())
    })
}

/// `gdr_map`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_map(
    g: *mut Gdr,
    handle: MemoryHandle,
    va: *mut *mut c_void,
    size: usize,
) -> c_int {
    // SAFETY: the caller passes a pointer that is null or valid.
    status("gdr_map", || unsafe { map(g, handle, va, size, 0) })
}

/// `gdr_map_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_map_v2(
    g: *mut Gdr,
    handle: MemoryHandle,
    ptr_va: *mut *mut c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller passes a pointer that is null or valid.
    status("gdr_map_v2", || unsafe { map(g, handle, ptr_va, size, flags) })
}

/// # Safety
/// See the module.
unsafe fn map(
    g: *mut Gdr,
    handle: MemoryHandle,
    va: *mut *mut c_void,
    size: usize,
    flags: c_int,
) -> Result<(), CallError> {
    let library = number(g)?;
    table().look(library, handle.h, |pin| pin.check_unmapped())?;
    non_null("va", va)?;
    let wanted = match u32::try_from(flags) {
        Ok(0) => None,
        Ok(wanted @ types::TYPE_WC..=types::TYPE_DEVICE) => Some(wanted),
        _ => {
            let limit = "there are only those of gdr_map_flags_t";
            return Err(CallError::Bad { what: "flags", value: flags as u32 as u64, limit });
        }
    };
    let at = table().change(library, handle.h, |pin| pin.map(size, wanted))?;
    // SAFETY: not null (checked), so the caller passes a valid pointer.
    unsafe { va.write(at.cast()) };
    Ok(())
}

/// `gdr_unmap`.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_unmap(g: *mut Gdr, handle: MemoryHandle, va: *mut c_void, size: usize) -> c_int {
    status("gdr_unmap", || table().change(number(g)?, handle.h, |pin| pin.unmap(va as u64, size)))
}

/// `gdr_copy_to_mapping`.
///
/// # Safety
/// `h_ptr` is readable for `size` bytes, and does not overlap the mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_copy_to_mapping(
    handle: MemoryHandle,
    map_d_ptr: *mut c_void,
    h_ptr: *const c_void,
    size: usize,
) -> c_int {
    status("gdr_copy_to_mapping", || {
        // SAFETY: the caller passes readable memory of that size.
        table().copy(handle.h, |pin| unsafe { pin.copy_to(map_d_ptr as u64, h_ptr.cast(), size) })
    })
}

/// `gdr_copy_from_mapping`.
///
/// # Safety
/// `h_ptr` is writable for `size` bytes, and does not overlap the mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_copy_from_mapping(
    handle: MemoryHandle,
    h_ptr: *mut c_void,
    map_d_ptr: *const c_void,
    size: usize,
) -> c_int {
    status("gdr_copy_from_mapping", || {
        // SAFETY: the caller passes writable memory of that size.
        table().copy(handle.h, |pin| unsafe { pin.copy_from(map_d_ptr as u64, h_ptr.cast(), size) })
    })
}

/// # Safety
/// Each is null or valid.
unsafe fn write_version(version: (u16, u16), major: *mut c_int, minor: *mut c_int) {
    for (to, number) in [(major, version.0), (minor, version.1)] {
        if !to.is_null() {
            // SAFETY: not null (checked), so the caller passes a valid pointer.
            unsafe { to.write(number.into()) };
        }
    }
}

/// `gdr_runtime_get_version`. Null pointers are not written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_runtime_get_version(major: *mut c_int, minor: *mut c_int) {
    // SAFETY: the caller passes pointers that are null or valid.
    unsafe { write_version(types::VERSION, major, minor) };
}

/// `gdr_driver_get_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_driver_get_version(g: *mut Gdr, major: *mut c_int, minor: *mut c_int) -> c_int {
    status("gdr_driver_get_version", || {
        let backend = table().library(number(g)?)?;
        non_null("major", major)?;
        non_null("minor", minor)?;
        // SAFETY: the caller passes pointers that are null or valid.
        unsafe { write_version(backend.version, major, minor) };
        Ok(())
    })
}

/// `gdr_get_attribute`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_get_attribute(g: *mut Gdr, attr: c_uint, v: *mut c_int) -> c_int {
    status("gdr_get_attribute", || {
        let backend = table().library(number(g)?)?;
        non_null("v", v)?;
        let value = match attr {
            types::ATTR_PERSISTENT => backend.persistent,
            types::ATTR_FORCE_PCIE => false,
            types::ATTR_DMA_BUF => backend.kind == MappingBackend::DmaBuf,
            _ => {
                let limit = "there are only those of gdr_attr_t";
                return Err(CallError::Bad { what: "attr", value: attr.into(), limit });
            }
        };
        // SAFETY: not null (checked), so the caller passes a valid pointer.
        unsafe { v.write(value.into()) };
        Ok(())
    })
}

/// `gdr_get_mapping_type_string`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_get_mapping_type_string(
    mapping_type: c_uint,
    pstr: *mut *const c_char,
) -> c_int {
    status("gdr_get_mapping_type_string", || {
        non_null("pstr", pstr)?;
        let name: &CStr = match mapping_type {
            types::TYPE_NONE => c"None",
            types::TYPE_WC => c"Write Combining",
            types::TYPE_CACHING => c"Caching",
            types::TYPE_DEVICE => c"Device",
            _ => {
                let limit = "there are only those of gdr_mapping_type_t";
                return Err(CallError::Bad { what: "mapping_type", value: mapping_type.into(), limit });
            }
        };
        // SAFETY: not null (checked), so the caller passes a valid pointer.
        unsafe { pstr.write(name.as_ptr()) };
        Ok(())
    })
}
