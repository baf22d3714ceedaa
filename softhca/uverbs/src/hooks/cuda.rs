//! Interposed functions of the CUDA driver: the export of GPU memory as a file, whose address is recorded,
//! and the registration of host memory, which takes the card's doorbell registers for device memory.
//!
//! Programs reach the driver by its symbols, by `dlsym(3)`, and by the driver's own `cuGetProcAddress`, as
//! the CUDA runtime does, so these are interposed, too.

use crate::cuda::{self, real_dlsym};
use libc::{c_char, c_int, c_uint, c_void};
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `CUDA_ERROR_NOT_INITIALIZED`, for a process without a driver.
const NOT_INITIALIZED: c_int = 3;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF: c_int = 1;
/// `CU_MEMHOSTREGISTER_IOMEMORY`.
const IO_MEMORY: c_uint = 4;
/// The version since which `cuGetProcAddress` has five arguments.
const FIVE_ARGUMENTS: c_int = 12000;

struct Real {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Real {
    const fn new(name: &'static CStr) -> Self {
        Real { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns its address as a program has found it, or in the loaded driver; `None` without one.
    fn address(&self) -> Option<*mut c_void> {
        let known = self.address.load(Ordering::Acquire);
        if !known.is_null() {
            return Some(known);
        }
        // SAFETY: the name is a C string, and NOLOAD runs no initialiser.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return None;
        }
        // SAFETY: the handle of a loaded library, and a C string.
        let found = unsafe { real_dlsym()(library, self.name.as_ptr()) };
        self.note(found);
        (!found.is_null()).then_some(found)
    }

    /// Records the first address that a program has found.
    fn note(&self, address: *mut c_void) {
        let none = ptr::null_mut();
        let _ = self.address.compare_exchange(none, address, Ordering::AcqRel, Ordering::Acquire);
    }
}

static EXPORT: Real = Real::new(c"cuMemGetHandleForAddressRange");
static REGISTER: Real = Real::new(c"cuMemHostRegister_v2");
static PROC_ADDRESS: Real = Real::new(c"cuGetProcAddress");
static PROC_ADDRESS_V2: Real = Real::new(c"cuGetProcAddress_v2");

/// Returns the driver's function of a name and its replacement. `version` is the argument of
/// `cuGetProcAddress`, which takes names without their versions.
fn stand_in(name: &CStr, version: Option<c_int>) -> Option<(&'static Real, *mut c_void)> {
    let is_new = version.is_some_and(|version| version >= FIVE_ARGUMENTS);
    Some(match name.to_bytes() {
        b"cuMemGetHandleForAddressRange" => (&EXPORT, cuMemGetHandleForAddressRange as *mut c_void),
        b"cuMemHostRegister_v2" | b"cuMemHostRegister" => (&REGISTER, cuMemHostRegister_v2 as *mut c_void),
        b"cuGetProcAddress" if !is_new => (&PROC_ADDRESS, cuGetProcAddress as *mut c_void),
        b"cuGetProcAddress_v2" | b"cuGetProcAddress" => {
            (&PROC_ADDRESS_V2, cuGetProcAddress_v2 as *mut c_void)
        }
        _ => return None,
    })
}

/// Returns the replacement of a driver function that `dlsym(3)` finds; null for everything else.
///
/// # Safety
/// As `dlsym(3)`.
#[cfg(not(fuzzing))]
unsafe extern "C" fn choose(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let real = real_dlsym();
    // A library that asks for the next one interposes on the driver itself. The default scope has this
    // library's functions.
    if name.is_null() || handle == libc::RTLD_NEXT || handle == libc::RTLD_DEFAULT {
        return ptr::null_mut();
    }
    // SAFETY: guaranteed by the caller.
    let Some((function, ours)) = stand_in(unsafe { CStr::from_ptr(name) }, None) else {
        return ptr::null_mut();
    };
    // SAFETY: guaranteed by the caller.
    let found = unsafe { real(handle, name) };
    if found.is_null() || found == ours {
        return ptr::null_mut();
    }
    function.note(found);
    ours
}

/// `dlsym(3)`. RTLD_NEXT depends on the caller, so all but the driver's functions are passed on with the
/// caller's return address.
///
/// # Safety
/// As the C function.
#[cfg(all(not(any(test, fuzzing)), target_arch = "x86_64"))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {choose}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "jmp qword ptr [rip + {real}]",
        choose = sym choose,
        real = sym cuda::symbols::DLSYM,
    )
}

/// As on x86-64.
///
/// # Safety
/// As the C function.
#[cfg(all(not(any(test, fuzzing)), target_arch = "aarch64"))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {choose}",
        "cbz x0, 2f",
        "ldp x29, x30, [sp], #32",
        "ret",
        "2:",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "br x16",
        choose = sym choose,
        real = sym cuda::symbols::DLSYM,
    )
}

/// Calls a function of the driver with this signature.
macro_rules! call {
    ($real:expr, fn($($type:ty),+)($($argument:expr),+)) => {
        match $real.address() {
            // SAFETY: cuda.h declares the function with this type; the caller vouches for the arguments.
            Some(address) => unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),+) -> c_int>(address)($($argument),+)
            },
            None => NOT_INITIALIZED,
        }
    };
}

/// Replaces a function that `cuGetProcAddress` has found by this library's.
///
/// # Safety
/// `symbol` is null or a C string, `found` null or valid.
unsafe fn replace(symbol: *const c_char, found: *mut *mut c_void, version: c_int) {
    // SAFETY: guaranteed by the caller.
    if symbol.is_null() || found.is_null() || unsafe { (*found).is_null() } {
        return;
    }
    // SAFETY: guaranteed by the caller.
    if let Some((function, ours)) = stand_in(unsafe { CStr::from_ptr(symbol) }, Some(version)) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if *found != ours {
                function.note(*found);
                *found = ours;
            }
        }
    }
}

/// `cuGetProcAddress` of CUDA 11.
///
/// # Safety
/// As the driver's function.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
#[allow(non_snake_case, reason = "the driver's name")]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> c_int {
    let result =
        call!(PROC_ADDRESS, fn(*const c_char, *mut *mut c_void, c_int, u64)(symbol, found, version, flags));
    if result == 0 {
        // SAFETY: the driver has found the symbol, so the arguments are valid.
        unsafe { replace(symbol, found, version) };
    }
    result
}

/// `cuGetProcAddress` since CUDA 12.
///
/// # Safety
/// As the driver's function.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
#[allow(non_snake_case, reason = "the driver's name")]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> c_int {
    let result = call!(
        PROC_ADDRESS_V2,
        fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int)(symbol, found, version, flags, status)
    );
    if result == 0 {
        // SAFETY: as above.
        unsafe { replace(symbol, found, version) };
    }
    result
}

/// `cuMemGetHandleForAddressRange`: records the memory of a dma-buf.
///
/// # Safety
/// As the driver's function.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
#[allow(non_snake_case, reason = "the driver's name")]
pub unsafe extern "C" fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    addr: u64,
    len: usize,
    kind: c_int,
    flags: u64,
) -> c_int {
    let result = call!(EXPORT, fn(*mut c_void, u64, usize, c_int, u64)(handle, addr, len, kind, flags));
    if result == 0 && kind == DMA_BUF {
        // SAFETY: the driver has stored a file descriptor there.
        cuda::note(unsafe { handle.cast::<c_int>().read() }, addr, len as u64);
    }
    result
}

/// `cuMemHostRegister`: doorbell registers of a software card are ordinary memory, regardless of the program's flags.
///
/// # Safety
/// As the driver's function.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
#[allow(non_snake_case, reason = "the driver's name")]
pub unsafe extern "C" fn cuMemHostRegister_v2(at: *mut c_void, len: usize, flags: c_uint) -> c_int {
    let is_ours = flags & IO_MEMORY != 0
        && std::fs::read_to_string("/proc/self/maps")
            .is_ok_and(|maps| is_of_a_card(&maps, at as u64, len as u64));
    let flags = if is_ours { flags & !IO_MEMORY } else { flags };
    call!(REGISTER, fn(*mut c_void, usize, c_uint)(at, len, flags))
}

/// `cuMemHostRegister` of old programs.
///
/// # Safety
/// As the driver's function.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
#[allow(non_snake_case, reason = "the driver's name")]
pub unsafe extern "C" fn cuMemHostRegister(at: *mut c_void, len: usize, flags: c_uint) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { cuMemHostRegister_v2(at, len, flags) }
}

/// Returns whether a range is inside one mapping of a card's memory file, by `/proc/self/maps`.
fn is_of_a_card(maps: &str, at: u64, len: u64) -> bool {
    maps.lines().filter(|line| line.contains(softhca::card::MEMORY_FILE)).any(|line| {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let number = |text| u64::from_str_radix(text, 16).ok();
        let Some((Some(first), Some(end))) = range.map(|(first, end)| (number(first), number(end))) else {
            return false;
        };
        first <= at && at.checked_add(len).is_some_and(|last| last <= end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_a_card_are_ordinary_memory() {
        let maps = "1000-3000 rw-s 00900000 00:01 7 /memfd:gdsync-softhca (deleted)\n\
                    3000-4000 rw-p 00000000 00:00 0\nrubbish memfd:gdsync-softhca\n";
        for (at, len, expected) in [
            (0x1800, 8, true),
            (0x1000, 0x2000, true),
            (0x2ff8, 9, false),
            (0x3000, 8, false),
            (0xff8, 16, false),
        ] {
            assert_eq!(is_of_a_card(maps, at, len), expected, "{at:#x}");
        }
        assert!(!is_of_a_card(maps, 0x1800, u64::MAX));
    }

    #[test]
    fn each_name_has_its_stand_in() {
        let of = |name, version| stand_in(name, version).map(|(real, ours)| (real.name, ours));
        let (old, new) = (cuGetProcAddress as *mut c_void, cuGetProcAddress_v2 as *mut c_void);
        assert_eq!(of(c"cuGetProcAddress", None), Some((c"cuGetProcAddress", old)));
        assert_eq!(of(c"cuGetProcAddress", Some(11080)), Some((c"cuGetProcAddress", old)));
        assert_eq!(of(c"cuGetProcAddress", Some(12000)), Some((c"cuGetProcAddress_v2", new)));
        assert_eq!(of(c"cuGetProcAddress_v2", None), Some((c"cuGetProcAddress_v2", new)));
        let register = cuMemHostRegister_v2 as *mut c_void;
        assert_eq!(of(c"cuMemHostRegister", Some(12000)), Some((c"cuMemHostRegister_v2", register)));
        assert_eq!(of(c"cuMemAlloc_v2", None), None);
    }

    #[test]
    fn without_a_driver_nothing_is_done() {
        let mut place = ptr::null_mut();
        // SAFETY: valid arguments, which no driver sees.
        unsafe {
            assert_eq!(cuGetProcAddress(c"cuInit".as_ptr(), &mut place, 11080, 0), NOT_INITIALIZED);
            let found = &raw mut place;
            assert_eq!(
                cuGetProcAddress_v2(c"cuInit".as_ptr(), found, 12000, 0, ptr::null_mut()),
                NOT_INITIALIZED
            );
            assert_eq!(cuMemGetHandleForAddressRange(found.cast(), 4096, 1, DMA_BUF, 0), NOT_INITIALIZED);
            assert_eq!(cuMemHostRegister(ptr::null_mut(), 8, IO_MEMORY), NOT_INITIALIZED);
            assert!(choose(libc::RTLD_NEXT, c"cuGetProcAddress".as_ptr()).is_null());
            assert!(choose(libc::RTLD_DEFAULT, c"malloc".as_ptr()).is_null());
        }
        assert!(place.is_null());
    }
}
