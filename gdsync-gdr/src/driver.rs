//! The CUDA driver, loaded at run time: its errors, and queries that need no context.

use cudarc::driver::sys;
use std::ffi::CStr;
use std::sync::OnceLock;

/// The oldest supported driver, in the format of `cuDriverGetVersion`: CUDA 12.0.
const OLDEST: i32 = 12_000;

/// Errors of the CUDA driver, or of loading it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// There is no CUDA driver.
    #[error("there is no CUDA driver here (libcuda.so.1 cannot be loaded): install the NVIDIA driver")]
    NoDriver,
    /// The driver is too old.
    #[error("the CUDA driver is of version {}, but {} is the oldest that works: install a newer NVIDIA driver", dotted(*.found), dotted(*.needed))]
    TooOld {
        /// Its version, in the format of `cuDriverGetVersion`.
        found: i32,
        /// The oldest supported version.
        needed: i32,
    },
    /// No such GPU.
    #[error(
        "there is no GPU {ordinal}: the driver has {count}, counted from 0 (CUDA_VISIBLE_DEVICES hides the others)"
    )]
    NoDevice {
        /// The requested number.
        ordinal: u32,
        /// The number of GPUs.
        count: u32,
    },
    /// A call failed.
    #[error("{call} failed: {name} ({code})")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// `CUresult`.
        code: u32,
        /// Its name.
        name: String,
    },
}

fn dotted(code: i32) -> String {
    format!("{}.{}", code / 1000, code % 1000 / 10)
}

impl DriverError {
    /// Creates the error of a call that returned `result`.
    #[cold]
    pub fn call(call: &'static str, result: sys::CUresult) -> Self {
        let mut name = std::ptr::null();
        // SAFETY: the driver's library can be loaded (checked first). `name` is a valid place, which receives a
        // static string, or null for an unknown code.
        let known = unsafe {
            sys::is_culib_present()
                && sys::cuGetErrorName(result, &mut name) == sys::CUresult::CUDA_SUCCESS
                && !name.is_null()
        };
        let name = if known {
            // SAFETY: a zero-terminated static string of the driver.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            "unknown error".to_owned()
        };
        DriverError::Call { call, code: result as u32, name }
    }
}

/// Returns an error unless the call succeeded.
///
/// # Errors
/// [`DriverError::Call`].
#[inline]
pub fn check(call: &'static str, result: sys::CUresult) -> Result<(), DriverError> {
    if result == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(DriverError::call(call, result)) }
}

/// Loads and initialises the driver, which every other call of the driver requires. Later calls cost a load of a flag.
///
/// # Errors
/// [`DriverError::NoDriver`], [`DriverError::TooOld`], or [`DriverError::Call`].
pub fn initialise() -> Result<(), DriverError> {
    static READY: OnceLock<()> = OnceLock::new();
    if READY.get().is_some() {
        return Ok(());
    }
    // SAFETY: the initialisers of the driver's library have no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Err(DriverError::NoDriver);
    }
    let found = loaded_version()?;
    if found < OLDEST {
        return Err(DriverError::TooOld { found, needed: OLDEST });
    }
    // SAFETY: no preconditions.
    check("cuInit", unsafe { sys::cuInit(0) })?;
    READY.get_or_init(|| ());
    Ok(())
}

fn loaded_version() -> Result<i32, DriverError> {
    let mut found = 0;
    // SAFETY: `found` is a valid place; the callers have loaded the library, and this function works before `cuInit`.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut found) })?;
    Ok(found)
}

/// Returns the newest CUDA version that the driver supports, in the format of `cuDriverGetVersion`: 13.0 is 13000.
///
/// # Errors
/// As [`initialise`].
pub fn version() -> Result<u32, DriverError> {
    initialise()?;
    Ok(u32::try_from(loaded_version()?).unwrap_or(0))
}

/// Returns the number of GPUs.
///
/// # Errors
/// As [`initialise`].
pub fn device_count() -> Result<u32, DriverError> {
    initialise()?;
    let mut count = 0;
    // SAFETY: `count` is a valid place.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    Ok(u32::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_value_the_limit_and_the_remedy() {
        let old = DriverError::TooOld { found: 11_080, needed: 12_000 }.to_string();
        assert!(old.contains("11.8") && old.contains("12.0"), "{old}");
        let none = DriverError::NoDevice { ordinal: 7, count: 2 }.to_string();
        assert!(none.contains("GPU 7") && none.contains("has 2"), "{none}");
    }
}
