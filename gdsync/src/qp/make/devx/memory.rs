//! The memory of a queue, and its registration with the device.

use crate::cuda::{Placement, arena_of, gpu};
use crate::memory::arena::{Arena, Block};
use crate::qp::make::devx::api_of;
use crate::qp::make::devx::sizes::RECORD;
use crate::verbs::{DeviceInner, Error, Owned, call};
use gdsync_sys::host::page_size;
use gdsync_sys::mlx5dv::{self, mlx5dv_devx_umem, mlx5dv_devx_umem_in};
use gdsync_sys::prm::command::encode::UmemPlace;
use gdsync_sys::verbs::IBV_ACCESS_LOCAL_WRITE;
use std::any::Any;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::{fmt, io};

/// A zeroed block of memory for a queue: its rings, and its doorbell record.
pub(crate) struct QueueMemory {
    /// The CPU's address: aligned to a page, valid as long as `keep`.
    cpu: NonNull<u8>,
    len: usize,
    source: UmemSource,
    keep: Keep,
}

/// Keeps a block of memory mapped. Dropped after the device has deregistered the memory.
pub(crate) type Keep = Box<dyn Any + Send + Sync>;

/// How the memory is registered with the device.
#[derive(Debug)]
pub(crate) enum UmemSource {
    /// By the CPU's address; the kernel pins the pages.
    Host,
    /// As a part of a dma-buf, for example of GPU memory. The device keeps the buffer, so the descriptor is closed
    /// after registration.
    DmaBuf { fd: OwnedFd, offset: u64 },
}

impl QueueMemory {
    /// # Safety
    /// `cpu..cpu + len` is zeroed, aligned to a page, valid for reads and writes of the CPU until `keep` is dropped,
    /// and has no other user; the source names the same memory. A `Span` announces it to streams.
    pub(crate) unsafe fn new(cpu: NonNull<u8>, len: usize, source: UmemSource, keep: Keep) -> Self {
        QueueMemory { cpu, len, source, keep }
    }
}

pub(crate) trait MemorySource: fmt::Debug + Send + Sync {
    /// Allocates a block of at least `len` bytes.
    fn allocate(&self, len: usize) -> Result<QueueMemory, Error>;
}

/// An arena of host memory, or of GPU memory that the CPU has mapped.
#[derive(Debug)]
struct ArenaSource {
    arena: Arc<Arena>,
    is_gpu: bool,
}

impl MemorySource for ArenaSource {
    fn allocate(&self, len: usize) -> Result<QueueMemory, Error> {
        let memory = |source| Error::Memory { len, source };
        // Devices register whole pages of GPU memory, which nothing else may share.
        let len = if self.is_gpu { len.next_multiple_of(page_size()) } else { len };
        let block = Block::cut(Some(&self.arena), len, page_size()).map_err(memory)?;
        let cpu = block.start();
        let source = match self.is_gpu {
            true => self.dma_buf(cpu.as_ptr()).map_err(memory)?,
            false => UmemSource::Host,
        };
        // SAFETY: the arena's block is zeroed, ours until `Block` releases it, and part of a span; the dma-buf is
        // of the chunk that contains the block.
        Ok(unsafe { QueueMemory::new(cpu, len, source, Box::new(block)) })
    }
}

impl ArenaSource {
    fn dma_buf(&self, block: *mut u8) -> io::Result<UmemSource> {
        let chunk = self.arena.owner(block).and_then(|owner| owner.downcast::<gpu::Chunk>().ok());
        let chunk = chunk.ok_or_else(|| io::Error::other("its arena does not know whose it is"))?;
        let (fd, offset) = chunk.memory.dma_buf().map_err(io::Error::other)?;
        Ok(UmemSource::DmaBuf { fd, offset: offset + (block as u64 - chunk.base) })
    }
}

/// Returns the source of a placement's memory.
///
/// # Errors
/// [`PlacementError`](crate::cuda::PlacementError).
pub(super) fn source_of(
    placement: Placement,
    device: &Arc<DeviceInner>,
) -> Result<Arc<dyn MemorySource>, Error> {
    let gpu = arena_of(placement)?;
    let is_gpu = gpu.is_some();
    Ok(Arc::new(ArenaSource { arena: gpu.unwrap_or_else(|| device.arena.clone()), is_gpu }))
}

/// Registered memory of one queue, or of a queue pair's two: rings, and a doorbell record.
#[derive(Debug)]
pub(super) struct Blocks {
    rings: Umem,
    /// The record's memory, if it is not behind the rings.
    apart: Option<Umem>,
    record_at: usize,
}

impl Blocks {
    /// Registers memory for rings of `len` bytes, a multiple of 64, and a record.
    pub(super) fn register(
        device: &Arc<DeviceInner>,
        len: usize,
        rings: &Arc<dyn MemorySource>,
        records: &Arc<dyn MemorySource>,
    ) -> Result<Self, Error> {
        let register = |source: &Arc<dyn MemorySource>, len| Umem::register(device, source.allocate(len)?);
        if Arc::ptr_eq(rings, records) {
            return Ok(Blocks { rings: register(rings, len + RECORD)?, apart: None, record_at: len });
        }
        Ok(Blocks { rings: register(rings, len)?, apart: Some(register(records, RECORD)?), record_at: 0 })
    }

    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        self.rings.at(offset)
    }

    pub(super) fn place(&self) -> UmemPlace {
        self.rings.place(0)
    }

    pub(super) fn record(&self, word: usize) -> *mut u32 {
        self.apart.as_ref().unwrap_or(&self.rings).at(self.record_at + word * size_of::<u32>()).cast()
    }

    pub(super) fn record_place(&self) -> UmemPlace {
        self.apart.as_ref().unwrap_or(&self.rings).place(self.record_at)
    }
}

/// Queue memory registered with the device.
pub(super) struct Umem {
    _raw: Owned<mlx5dv_devx_umem>,
    id: u32,
    cpu: NonNull<u8>,
    /// Dropped after the registration has ended.
    _keep: Keep,
    _device: Arc<DeviceInner>,
}

// SAFETY: the memory is accessed by atomics and under locks; any thread may use the rest.
unsafe impl Send for Umem {}
// SAFETY: as above.
unsafe impl Sync for Umem {}

impl fmt::Debug for Umem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Umem({:#x} at {:p})", self.id, self.cpu)
    }
}

impl Umem {
    pub(super) fn register(device: &Arc<DeviceInner>, memory: QueueMemory) -> Result<Self, Error> {
        let api = api_of(device)?;
        let QueueMemory { cpu, len, source, keep } = memory;
        let access = IBV_ACCESS_LOCAL_WRITE;
        let raw = match source {
            UmemSource::Host => {
                // SAFETY: the context is open; the memory is mapped until `keep` is dropped (`QueueMemory::new`).
                let raw = unsafe { (api.umem_reg)(device.context(), cpu.as_ptr().cast(), len, access) };
                call::pointer("mlx5dv_devx_umem_reg", raw, || format!("{len} bytes"))?
            }
            UmemSource::DmaBuf { fd, offset } => {
                let detail = || format!("{len} bytes at {offset} of a dma-buf");
                let Some(umem_reg_ex) = api.umem_reg_ex else {
                    let source = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
                    let detail = format!("{}: libmlx5 has it from rdma-core 35 on", detail());
                    return Err(Error::Verbs { call: "mlx5dv_devx_umem_reg_ex", detail, source });
                };
                let mut asked = mlx5dv_devx_umem_in {
                    addr: offset as *mut _,
                    size: len,
                    access,
                    // For any page size.
                    pgsz_bitmap: !(page_size() as u64 - 1),
                    comp_mask: mlx5dv::MLX5DV_UMEM_MASK_DMABUF,
                    dmabuf_fd: fd.as_raw_fd(),
                };
                // SAFETY: as above; the descriptor is open.
                let raw = unsafe { umem_reg_ex(device.context(), &mut asked) };
                call::pointer("mlx5dv_devx_umem_reg_ex", raw, detail)?
            }
        };
        // SAFETY: a registration that was just made; its number never changes.
        let id = unsafe { (*raw.as_ptr()).umem_id };
        // SAFETY: the object in this memory is destroyed before, by the order of its owner's fields. The memory
        // holds the device.
        let raw = unsafe { Owned::new(raw, api.umem_dereg, "mlx5dv_devx_umem_dereg") };
        Ok(Umem { _raw: raw, id, cpu, _keep: keep, _device: device.clone() })
    }

    pub(super) fn place(&self, offset: usize) -> UmemPlace {
        UmemPlace { id: self.id, offset: offset as u64 }
    }

    /// Returns the CPU's address of an offset, which is inside if it is less than the length.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        self.cpu.as_ptr().wrapping_add(offset)
    }
}
