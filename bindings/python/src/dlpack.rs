//! What a DLPack capsule says of a tensor (DLPack 1.0, `dlpack.h`).

use crate::errors::Failure;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use std::ffi::{CStr, c_void};
use std::slice;

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

/// The beginning of `DLManagedTensorVersioned`; a `DLManagedTensor` begins with its tensor.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// The newest major version whose layout is known here.
const MAJOR: u32 = 1;

/// What `_tensors.py` takes: the address, the shape, the strides in elements or None, the bytes of an
/// element, whether the tensor is read-only, and its device.
type Described<'py> = (u64, Bound<'py, PyTuple>, Option<Bound<'py, PyTuple>>, u64, bool, i32, i32);

/// # Errors
/// A capsule of another name, that is one that was consumed, or of a newer major version.
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
