//! What a GPU is, asked without making a context on it.

use super::capabilities::GpuCapabilities;
use super::context::GpuContext;
use super::error::{CudaError, check};
use cudarc::driver::sys;
use std::ffi::CStr;

/// Room for `domain:bus:device.function` and the zero behind it (`cuDeviceGetPCIBusId` needs at least 13 bytes), and for names.
const TEXT: usize = 256;

/// A GPU, as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuDescription {
    /// Its name, such as `NVIDIA H200`.
    pub name: String,
    /// Its PCI address as Linux writes it: `0000:3b:00.0`, lower case.
    pub pci_address: String,
    /// What it can do for streams.
    pub capabilities: GpuCapabilities,
}

/// The newest CUDA that the driver serves, as `cuDriverGetVersion` counts: 13.0 is 13000.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::TooOld`], or [`CudaError::Call`].
pub fn driver_version() -> Result<u32, CudaError> {
    super::driver()?;
    let mut found = 0;
    // SAFETY: `found` is a valid place.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut found) })?;
    Ok(u32::try_from(found).unwrap_or(0))
}

/// Describes a GPU. Makes no context, and so takes no memory of it.
///
/// # Errors
/// As [`device_count`](super::device_count), and [`CudaError::NoDevice`].
pub fn describe(ordinal: u32) -> Result<GpuDescription, CudaError> {
    let count = super::device_count()?;
    let number = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
    let number = number.ok_or(CudaError::NoDevice { ordinal, count })?;
    let mut device = 0;
    // SAFETY: `device` is a valid place.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, number) })?;
    let name = text("cuDeviceGetName", |at, len| {
        // SAFETY: `at` has room for `len` bytes.
        unsafe { sys::cuDeviceGetName(at, len, device) }
    })?;
    Ok(GpuDescription {
        name,
        pci_address: pci_address(device)?,
        capabilities: GpuCapabilities::read(device)?,
    })
}

/// As Linux writes it: lower case.
fn pci_address(device: sys::CUdevice) -> Result<String, CudaError> {
    let address = text("cuDeviceGetPCIBusId", |at, len| {
        // SAFETY: `at` has room for `len` bytes; the device is the driver's.
        unsafe { sys::cuDeviceGetPCIBusId(at, len, device) }
    })?;
    Ok(address.to_lowercase())
}

impl GpuContext {
    /// The GPU's PCI address, such as `0000:18:00.0`.
    pub(crate) fn bus_id(&self) -> Result<String, CudaError> {
        pci_address(self.ordinal())
    }

    /// True where CPU and GPU keep each other's caches coherent, so that the CPU may cache the GPU's memory.
    pub(crate) fn is_coherent(&self) -> bool {
        let attribute =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
        let mut value = 0;
        // SAFETY: `value` is a valid place; the device is the driver's.
        let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.ordinal()) };
        check("cuDeviceGetAttribute", result).is_ok() && value != 0
    }
}

/// What a call writes as a zero-terminated string.
fn text(
    call: &'static str,
    fill: impl FnOnce(*mut libc::c_char, libc::c_int) -> sys::CUresult,
) -> Result<String, CudaError> {
    let mut bytes = [0u8; TEXT];
    check(call, fill(bytes.as_mut_ptr().cast(), TEXT as libc::c_int))?;
    // Should the driver ever leave out the zero: nothing rather than a guess.
    Ok(CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned()))
}
