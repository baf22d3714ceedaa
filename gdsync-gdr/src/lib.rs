//! CPU mappings of GPU memory: the CPU loads from and stores to it over the bus. A few bytes take a fraction of a
//! microsecond, instead of several microseconds for a copy by the driver.
//!
//! [`Mapping::pin`] maps GPU memory by its address, like gdrcopy's `gdr_pin_buffer` and `gdr_map`, but for some
//! memory also without gdrcopy's kernel module. The CUDA driver is loaded at run time: this crate builds and tests on
//! machines without one.
//!
//! # Backends
//! [`Mapping::pin`] uses the first of three backends ([`MappingBackend`]) that works, or the one named by the
//! environment variable `GDSYNC_MAPPING` (`gdrdrv`, `dma-buf`, `nvrm`).
//!
//! | backend | needs | maps |
//! |---|---|---|
//! | gdrdrv | gdrcopy's kernel module, protocol 2.0 to 2.6 | any GPU memory, pages of 64 KiB |
//! | dma-buf | a driver of CUDA 13.3 or newer | any GPU memory, pages of the CPU |
//! | nvrm | NVIDIA's driver, major version 580; others if asked for by name | memory that was allocated exportable |
//!
//! # Example
//! ```no_run
//! use gdsync_gdr::{GpuRange, Mapping};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let address = 0;
//! // SAFETY: `address` is that of a `cuMemAlloc` of 4096 bytes, which is freed after the mapping is dropped.
//! let memory = unsafe { GpuRange::from_current(address, 4096) }?;
//! let mapping = Mapping::pin(&memory.kept(true))?;
//! mapping.copy_to(128, b"kernels see this")?;
//! let mut back = [0; 7];
//! mapping.copy_from(128, &mut back)?;
//! assert_eq!(&back, b"kernels");
//! println!("{:?}", mapping.info());
//! # Ok(())
//! # }
//! ```
//! [`Mapping::stand_in`] does the same with host memory on a machine without a GPU.
//!
//! # Order
//! [`Mapping::copy_to`] ends with a store fence, [`Mapping::copy_from`] begins with a full fence: a thread's copies
//! take effect in program order, and the GPU sees a store that follows a copy (a doorbell, a flag) after the copy.
//! Between threads, and between CPU and GPU, a word that is stored last and loaded first orders the earlier stores
//! and the later loads.
//!
//! # Fork
//! A child process does not inherit its parent's mappings: its copies fail with [`MappingError::Forked`], and
//! dropping a mapping there releases nothing.

#[deny(unsafe_code)]
mod backend;
mod copy;
pub mod driver;
#[cfg(test)]
#[path = "../tests/fakes/mod.rs"]
mod fakes;
mod gdrdrv;
mod gpu;
mod kernel;
mod mapping;
mod nvrm;
#[deny(unsafe_code)]
mod pin;
mod range;
mod stores;

pub use backend::{Caching, MappingBackend, MappingError, MappingInfo, Refusal};
pub use copy::{LoadKernel, StoreKernel, load_combined};
pub use cudarc;
pub use gdsync_sys::host::page_size;
pub use gpu::{Context, Entered, Gpu};
pub use mapping::Mapping;
pub use pin::GdrdrvModule;
pub use range::GpuRange;
pub use stores::Stores;
