//! `dlsym(3)` of the C library, which this library replaces.

use libc::{c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `dlsym(3)` of the C library; null before the first use.
pub(crate) static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Stands for `dlsym(3)` if the C library's is not found.
unsafe extern "C" fn no_symbol(_: *mut c_void, _: *const c_char) -> *mut c_void {
    ptr::null_mut()
}

/// Returns it. It finds the driver's own functions, which no library has replaced.
pub(crate) fn real_dlsym() -> Dlsym {
    let known = DLSYM.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: only this function stores here, and a function of this type.
        return unsafe { std::mem::transmute::<*mut c_void, Dlsym>(known) };
    }
    // The symbol's versions: of newer C libraries, and the first of each machine.
    let versions = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];
    let found = versions.iter().find_map(|version| {
        // SAFETY: both are C strings.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        (!found.is_null()).then_some(found)
    });
    let found = found.unwrap_or(no_symbol as Dlsym as *mut c_void);
    DLSYM.store(found, Ordering::Release);
    // SAFETY: the C library declares `dlsym` with this type.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(found) }
}
