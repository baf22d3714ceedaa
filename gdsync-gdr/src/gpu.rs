//! What mappings ask of a GPU. None of it needs a context.

use crate::driver::{self, DriverError, check};
use cudarc::driver::sys;
use std::ffi::CStr;
use std::fmt;

/// Room for a name, or for a PCI address (`cuDeviceGetPCIBusId` wants at least 13 bytes), and the zero behind it.
const TEXT: usize = 256;

/// A GPU of this machine, by the driver's number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gpu(sys::CUdevice);

impl Gpu {
    /// The GPU of that number.
    ///
    /// # Errors
    /// [`DriverError::NoDevice`], and as [`driver::device_count`].
    pub fn new(ordinal: u32) -> Result<Self, DriverError> {
        let count = driver::device_count()?;
        let number = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
        let number = number.ok_or(DriverError::NoDevice { ordinal, count })?;
        let mut device = 0;
        // SAFETY: `device` is a valid place.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, number) })?;
        Ok(Gpu(device))
    }

    /// The GPU of a device handle. Calls on a handle that the driver does not know are [`DriverError::Call`]; without
    /// a driver, they are [`DriverError::NoDriver`].
    pub fn from_device(device: sys::CUdevice) -> Self {
        Gpu(device)
    }

    /// The GPU whose memory lies at an address.
    ///
    /// # Errors
    /// [`DriverError::Call`] where the driver does not know the address; and as [`driver::initialise`].
    pub(crate) fn of_address(address: u64) -> Result<Self, DriverError> {
        driver::initialise()?;
        let mut ordinal = -1i32;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: the attribute is an int; the driver checks the address.
        check("cuPointerGetAttribute", unsafe {
            sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address)
        })?;
        // Where GPUs reach all of the host's memory, the driver knows that, too, as no GPU's.
        let host = |_| DriverError::call("cuPointerGetAttribute", sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        Gpu::new(u32::try_from(ordinal).map_err(host)?)
    }

    /// The driver's handle.
    pub fn device(self) -> sys::CUdevice {
        self.0
    }

    /// Its name, such as `NVIDIA H200`.
    ///
    /// # Errors
    /// [`DriverError::Call`], and as [`driver::initialise`].
    pub fn name(self) -> Result<String, DriverError> {
        driver::initialise()?;
        text("cuDeviceGetName", |at, len| {
            // SAFETY: `at` has room for `len` bytes.
            unsafe { sys::cuDeviceGetName(at, len, self.0) }
        })
    }

    /// Its PCI address as Linux writes it: `0000:3b:00.0`, lower case.
    ///
    /// # Errors
    /// [`DriverError::Call`], and as [`driver::initialise`].
    pub fn pci_address(self) -> Result<String, DriverError> {
        driver::initialise()?;
        let address = text("cuDeviceGetPCIBusId", |at, len| {
            // SAFETY: `at` has room for `len` bytes.
            unsafe { sys::cuDeviceGetPCIBusId(at, len, self.0) }
        })?;
        Ok(address.to_lowercase())
    }

    /// One of the driver's attributes of the GPU.
    ///
    /// # Errors
    /// [`DriverError::Call`], and as [`driver::initialise`].
    pub fn attribute(self, attribute: sys::CUdevice_attribute) -> Result<i32, DriverError> {
        driver::initialise()?;
        let mut value = 0;
        // SAFETY: `value` is a valid place; the driver checks the handle.
        check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.0) })?;
        Ok(value)
    }

    /// True where streams and kernels of this GPU can be given access to the memory of another one
    /// (`cuDeviceCanAccessPeer`). A GPU is no peer of itself.
    ///
    /// # Errors
    /// [`DriverError::Call`], and as [`driver::initialise`].
    pub fn can_access(self, peer: Gpu) -> Result<bool, DriverError> {
        driver::initialise()?;
        let mut can = 0;
        // SAFETY: `can` is a valid place; the driver checks the handles.
        check("cuDeviceCanAccessPeer", unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.0, peer.0) })?;
        Ok(can != 0)
    }

    /// One of the driver's attributes of the way from this GPU to a peer.
    ///
    /// # Errors
    /// [`DriverError::Call`], and as [`driver::initialise`].
    pub fn peer_attribute(
        self,
        peer: Gpu,
        attribute: sys::CUdevice_P2PAttribute,
    ) -> Result<i32, DriverError> {
        driver::initialise()?;
        let mut value = 0;
        // SAFETY: `value` is a valid place; the driver checks the handles.
        check("cuDeviceGetP2PAttribute", unsafe {
            sys::cuDeviceGetP2PAttribute(&mut value, attribute, self.0, peer.0)
        })?;
        Ok(value)
    }

    /// True where the driver makes dma-bufs of this GPU's memory.
    pub(crate) fn makes_dma_bufs(self) -> bool {
        self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)
            .is_ok_and(|value| value != 0)
    }

    /// True where CPU and GPU keep each other's caches coherent, so that the CPU may cache the GPU's memory.
    pub(crate) fn is_coherent(self) -> bool {
        use sys::CUdevice_attribute as A;
        self.attribute(A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)
            .is_ok_and(|value| value != 0)
    }
}

/// `GPU 1 (NVIDIA H200)`; the number alone where the driver does not say the name.
impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}", self.0)?;
        self.name().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

/// What a call writes as a zero-terminated string.
fn text(
    call: &'static str,
    fill: impl FnOnce(*mut libc::c_char, libc::c_int) -> sys::CUresult,
) -> Result<String, DriverError> {
    let mut bytes = [0u8; TEXT];
    check(call, fill(bytes.as_mut_ptr().cast(), TEXT as libc::c_int))?;
    // Should the driver ever leave out the zero: nothing rather than a guess.
    Ok(CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_no_driver_knows_is_an_error() {
        let gpu = Gpu::from_device(1 << 20);
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
        let rank = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK;
        for refused in [
            gpu.name().err(),
            gpu.pci_address().err(),
            gpu.attribute(attribute).err(),
            gpu.can_access(gpu).err(),
            gpu.peer_attribute(gpu, rank).err(),
        ] {
            match refused {
                Some(DriverError::NoDriver | DriverError::TooOld { .. } | DriverError::Call { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(gpu.to_string(), format!("GPU {}", 1 << 20));
    }
}
