//! The capabilities of a GPU that gdsync uses.

use crate::cuda::CudaError;
use cudarc::driver::sys;
use gdsync_gdr::{Gpu, driver};

/// The order in which a GPU shows a card's writes into its memory
/// (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WritesOrdering {
    /// No order: a flag may become visible before data that were written earlier.
    None,
    /// In order to the GPU that owns the memory.
    Owner,
    /// In order to every GPU.
    AllDevices,
}

/// How data that a card wrote into GPU memory become visible to a stream after it has waited for their completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// The GPU keeps the order.
    Ordered,
    /// Every wait is followed by a flush.
    Flushed,
    /// Not at all: a card must not write into this GPU's memory for its streams.
    Impossible,
}

/// The capabilities of a GPU, read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuCapabilities {
    /// 64-bit stream memory operations, which doorbells need.
    pub ops_64_bit: bool,
    /// Waits with NOR, which every other lap of a completion queue needs.
    pub wait_nor: bool,
    /// `CU_STREAM_WAIT_VALUE_FLUSH`, and the flush as a separate operation.
    pub flush_remote_writes: bool,
    /// The order in which a card's writes into GPU memory become visible.
    pub writes_ordering: WritesOrdering,
    /// True if GPU memory can be exported to a card as a dma-buf.
    pub dma_buf: bool,
    /// True if kernels' atomic operations on host memory are atomic for the CPU and for cards, which they mostly are
    /// not over PCIe (`CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED`).
    pub host_atomics: bool,
    /// True if processes share a context of the Multi-Process Service (`CU_DEVICE_ATTRIBUTE_MPS_ENABLED`) and run
    /// concurrently; otherwise the GPU time-slices them. `None` if the driver does not know the attribute.
    pub mps: Option<bool>,
}

impl GpuCapabilities {
    pub(super) fn read(gpu: Gpu) -> Result<Self, CudaError> {
        use sys::CUdevice_attribute as A;
        let attribute = |attribute: A| gpu.attribute(attribute);
        let ordering = attribute(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?;
        Ok(GpuCapabilities {
            ops_64_bit: attribute(A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)? != 0,
            wait_nor: attribute(A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR)? != 0,
            flush_remote_writes: attribute(A::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES)? != 0,
            // `CUGPUDirectRDMAWritesOrdering`: 0, 100, 200.
            writes_ordering: match ordering {
                200.. => WritesOrdering::AllDevices,
                100.. => WritesOrdering::Owner,
                _ => WritesOrdering::None,
            },
            dma_buf: attribute(A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)? != 0,
            host_atomics: attribute(A::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED)? != 0,
            mps: attribute(A::CU_DEVICE_ATTRIBUTE_MPS_ENABLED).ok().map(|value| value != 0),
        })
    }

    /// How this GPU's streams see a card's writes into its memory.
    pub fn consistency(&self) -> Consistency {
        match self.writes_ordering {
            // If the GPU has a flush, it costs nothing, and it covers memory of other GPUs.
            WritesOrdering::None | WritesOrdering::Owner if self.flush_remote_writes => Consistency::Flushed,
            WritesOrdering::None => Consistency::Impossible,
            WritesOrdering::Owner | WritesOrdering::AllDevices => Consistency::Ordered,
        }
    }
}

/// A GPU, as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuDescription {
    /// Its name, such as `NVIDIA H200`.
    pub name: String,
    /// Its PCI address as Linux writes it: `0000:3b:00.0`, lower case.
    pub pci_address: String,
    /// Its capabilities.
    pub capabilities: GpuCapabilities,
}

/// The newest CUDA version that the driver supports, in the format of `cuDriverGetVersion`: 13000 is 13.0.
///
/// # Errors
/// As [`device_count`](super::device_count).
pub fn driver_version() -> Result<u32, CudaError> {
    Ok(driver::version()?)
}

/// Describes a GPU. Creates no context, and so uses none of its memory.
///
/// # Errors
/// As [`device_count`](super::device_count), and [`DriverError::NoDevice`](super::DriverError::NoDevice).
pub fn describe(ordinal: u32) -> Result<GpuDescription, CudaError> {
    let gpu = Gpu::new(ordinal)?;
    Ok(GpuDescription {
        name: gpu.name()?,
        pci_address: gpu.pci_address()?,
        capabilities: GpuCapabilities::read(gpu)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cards_write_is_ordered_flushed_or_refused() {
        let caps = |flush_remote_writes, writes_ordering| GpuCapabilities {
            ops_64_bit: true,
            wait_nor: true,
            flush_remote_writes,
            writes_ordering,
            dma_buf: true,
            host_atomics: false,
            mps: None,
        };
        // An H200 has no flush, and orders writes for its owner.
        assert_eq!(caps(false, WritesOrdering::Owner).consistency(), Consistency::Ordered);
        assert_eq!(caps(false, WritesOrdering::AllDevices).consistency(), Consistency::Ordered);
        assert_eq!(caps(true, WritesOrdering::AllDevices).consistency(), Consistency::Ordered);
        assert_eq!(caps(true, WritesOrdering::None).consistency(), Consistency::Flushed);
        assert_eq!(caps(true, WritesOrdering::Owner).consistency(), Consistency::Flushed);
        assert_eq!(caps(false, WritesOrdering::None).consistency(), Consistency::Impossible);
    }
}
