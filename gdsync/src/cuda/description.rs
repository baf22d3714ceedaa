//! What a GPU is, asked without making a context on it.

use super::capabilities::GpuCapabilities;
use super::error::CudaError;
use gdsync_gdr::{Gpu, driver};

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
/// As [`device_count`](super::device_count).
pub fn driver_version() -> Result<u32, CudaError> {
    Ok(driver::version()?)
}

/// Describes a GPU. Makes no context, and so takes no memory of it.
///
/// # Errors
/// As [`device_count`](super::device_count), and
/// [`DriverError::NoDevice`](super::DriverError::NoDevice).
pub fn describe(ordinal: u32) -> Result<GpuDescription, CudaError> {
    let gpu = Gpu::new(ordinal)?;
    Ok(GpuDescription {
        name: gpu.name()?,
        pci_address: gpu.pci_address()?,
        capabilities: GpuCapabilities::read(gpu)?,
    })
}
