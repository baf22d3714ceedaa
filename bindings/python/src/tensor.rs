//! The memory of Python objects, and DLPack capsules (DLPack 1.0, `dlpack.h`).

use crate::errors::Failure;
use crate::owner::Owner;
use gdsync::PinnedMemory;
use gdsync::cuda::{self, GpuMemory};
use gdsync::cudarc::driver::sys;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyTuple};
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::slice;

/// Memory of the host, or of a GPU.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    Host(PinnedMemory),
    Gpu(GpuMemory, u32),
}

impl Memory {
    /// Returns the memory of an array, a tensor or a buffer, kept until its last use has passed.
    ///
    /// # Errors
    /// Memory that cannot be registered, with the reason (`_tensors.py`).
    pub(crate) fn of(tensor: &Bound<'_, PyAny>) -> Result<Self, Failure> {
        static DESCRIBE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let describe = DESCRIBE.import(tensor.py(), "gdsync._tensors", "describe")?;
        let (address, len, gpu, owner): (u64, usize, Option<i64>, Bound<'_, PyAny>) =
            describe.call1((tensor,))?.extract()?;
        let owner = Owner::new(owner);
        let Some(gpu) = gpu else {
            let base = NonNull::new(address as *mut u8)
                .ok_or_else(|| Failure::invalid("the tensor has the address 0"))?;
            // SAFETY: the tensor's protocol guarantees writable memory as long as the object, which `owner` keeps. To
            // other code, that of Python libraries, accesses of this side are those of a device.
            return Ok(Memory::Host(unsafe { PinnedMemory::from_raw(base, len, owner) }));
        };
        let ordinal = match u32::try_from(gpu) {
            Ok(ordinal) => ordinal,
            Err(_) => ordinal_of(address)?,
        };
        let context = cuda::context(ordinal)?;
        // SAFETY: the tensor's protocol guarantees memory of the GPU as long as the object, which `owner` keeps; the
        // primary context reaches all memory of its GPU.
        let memory = unsafe { GpuMemory::from_raw(&context, address, len, owner) }?;
        Ok(Memory::Gpu(memory, ordinal))
    }

    pub(crate) fn allocate(len: usize, gpu: Option<u32>) -> Result<Self, Failure> {
        match gpu {
            None => {
                let memory = PinnedMemory::allocate(len);
                Ok(Memory::Host(memory.map_err(|source| gdsync::Error::Memory { len, source })?))
            }
            Some(ordinal) => Ok(Memory::Gpu(GpuMemory::allocate(&cuda::context(ordinal)?, len)?, ordinal)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Memory::Host(memory) => memory.len(),
            Memory::Gpu(memory, _) => memory.len(),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        match self {
            Memory::Host(memory) => memory.addr().get(),
            Memory::Gpu(memory, _) => memory.address(),
        }
    }

    pub(crate) fn place(&self) -> String {
        match self {
            Memory::Host(_) => "host memory".to_owned(),
            Memory::Gpu(_, ordinal) => format!("memory of GPU {ordinal}"),
        }
    }

    /// # Errors
    /// A range that leaves the memory.
    pub(crate) fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>, Failure> {
        self.check(offset, len)?;
        let mut bytes = vec![0; len];
        match self {
            Memory::Host(memory) => _ = memory.read(offset, &mut bytes),
            Memory::Gpu(memory, _) => memory.read(offset, &mut bytes)?,
        }
        Ok(bytes)
    }

    /// # Errors
    /// A range that leaves the memory.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Failure> {
        self.check(offset, bytes.len())?;
        match self {
            Memory::Host(memory) => _ = memory.write(offset, bytes),
            Memory::Gpu(memory, _) => memory.write(offset, bytes)?,
        }
        Ok(())
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), Failure> {
        let size = self.len();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Failure::invalid(format!(
                "{len} bytes from offset {offset} leave the {size} bytes there"
            ))),
        }
    }

    /// Returns the array interface of NumPy (`__array_interface__`), CuPy and PyTorch (`__cuda_array_interface__`):
    /// bytes.
    pub(crate) fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyDict>> {
        let interface = pyo3::types::PyDict::new(py);
        interface.set_item("shape", (self.len(),))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (self.address(), false))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}

/// Returns the GPU whose memory is at an address.
fn ordinal_of(address: u64) -> Result<u32, Failure> {
    // Initialises the driver.
    cuda::device_count()?;
    let mut ordinal = 0i32;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: the attribute is an int; the driver checks the address.
    let result = unsafe { sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address) };
    match (result, u32::try_from(ordinal)) {
        (sys::CUresult::CUDA_SUCCESS, Ok(ordinal)) => Ok(ordinal),
        _ => Err(Failure::invalid(format!("the CUDA driver knows no memory at {address:#x}"))),
    }
}

/// Returns true for memory of CUDA's virtual memory management, such as torch's expandable segments.
fn is_virtual(address: u64) -> bool {
    let mut legacy = 1i32;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    // SAFETY: the attribute is a boolean, which fits an int; the driver checks the address.
    let result = unsafe { sys::cuPointerGetAttribute((&raw mut legacy).cast(), attribute, address) };
    result == sys::CUresult::CUDA_SUCCESS && legacy & 0xff == 0
}

/// Adds the helpful setting to a card's refusal of memory.
pub(crate) fn explain(memory: &Memory, failure: Failure) -> Failure {
    match memory {
        Memory::Gpu(gpu, _) if is_virtual(gpu.address()) => failure.with_hint(
            "the memory is of CUDA's virtual memory management, as torch's expandable segments are, which this card does not take: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, or allocate by gdsync",
        ),
        _ => failure,
    }
}

const NAME: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// The start of `DLManagedTensorVersioned`; a `DLManagedTensor` starts with its tensor.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// The supported major version.
const MAJOR: u32 = 1;

/// The result for `_tensors.py`: the address, the shape, the strides in elements or None, an element's size in bytes,
/// whether the tensor is read-only, and its device.
type Described<'py> = (u64, Bound<'py, PyTuple>, Option<Bound<'py, PyTuple>>, u64, bool, i32, i32);

/// # Errors
/// A capsule of another name, such as a consumed one, or of a newer major version.
#[pyfunction]
pub(crate) fn _dlpack<'py>(capsule: &Bound<'py, PyCapsule>) -> Result<Described<'py>, Failure> {
    let py = capsule.py();
    let (tensor, read_only) = if capsule.is_valid_checked(Some(VERSIONED)) {
        let managed = capsule.pointer_checked(Some(VERSIONED))?.cast::<Versioned>();
        // SAFETY: by the protocol, a capsule of this name points to a `DLManagedTensorVersioned`, which lives
        // as long as the capsule; its first field says which major version that is.
        let major = unsafe { (*managed.as_ptr()).major };
        if major != MAJOR {
            let text = format!("the tensor exports version {major} of DLPack, and {MAJOR} is known here");
            return Err(Failure::invalid(text));
        }
        // SAFETY: as above; the layout is that of version 1.
        unsafe { (&(*managed.as_ptr()).tensor, (*managed.as_ptr()).flags & READ_ONLY != 0) }
    } else if capsule.is_valid_checked(Some(NAME)) {
        let managed = capsule.pointer_checked(Some(NAME))?.cast::<Tensor>();
        // SAFETY: by the protocol, a capsule of this name points to a `DLManagedTensor`, which begins with a
        // `DLTensor` and lives as long as the capsule.
        (unsafe { managed.as_ref() }, false)
    } else {
        return Err(Failure::invalid("the capsule of the tensor is none of DLPack's, or was consumed"));
    };
    let dimensions = usize::try_from(tensor.ndim).unwrap_or(0);
    let numbers = |at: *const i64| {
        if at.is_null() || dimensions == 0 {
            return Vec::new();
        }
        // SAFETY: by the protocol, shape and strides have `ndim` entries, which live as long as the tensor.
        unsafe { slice::from_raw_parts(at, dimensions) }.to_vec()
    };
    let strides = match tensor.strides.is_null() {
        true => None,
        false => Some(PyTuple::new(py, numbers(tensor.strides))?),
    };
    let item = (u64::from(tensor.bits) * u64::from(tensor.lanes)).div_ceil(8);
    let address = (tensor.data as u64).wrapping_add(tensor.byte_offset);
    let shape = PyTuple::new(py, numbers(tensor.shape))?;
    Ok((address, shape, strides, item, read_only, tensor.device_type, tensor.device_id))
}
