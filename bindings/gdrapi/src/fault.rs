//! From errors, and panics, to errno values.

use crate::log;
use gdsync::cuda::CudaError;
use gdsync::mapped::{MappingBackend, MappingError, Refusal};
use libc::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What helps where only exportable memory can be mapped.
const OTHER_MEMORY: &str = "without gdrdrv, and with drivers before CUDA 13.3, only memory of cuMemCreate with requestedHandleTypes = \
     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR can be mapped; load gdrdrv for that of cuMemAlloc";

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{what} is a null pointer")]
    Null { what: &'static str },
    #[error("{what} is {value:#x}, but {limit}")]
    Bad { what: &'static str, value: u64, limit: &'static str },
    #[error("{value:#x} is no {what} of this process: it was given back, or belongs to a parent process")]
    Unknown { what: &'static str, value: u64 },
    #[error("memory handle {value:#x} belongs to another gdr_t")]
    Foreign { value: u64 },
    #[error("{most} ranges are pinned already: unpin some")]
    Full { most: usize },
    #[error("the memory is mapped already: gdr_unmap it first")]
    Mapped,
    #[error("the memory is not mapped: gdr_map it first")]
    NotMapped,
    #[error("{len} bytes at {at:#x} lie outside the mapping, {size} bytes at {start:#x}")]
    Outside { at: u64, len: usize, start: u64, size: usize },
    #[error("the memory begins {skew} bytes after a page of {page}: pin whole pages to map them")]
    Unaligned { skew: u64, page: usize },
    #[error("a mapping of type {wanted} cannot be had: {backend} maps this memory as type {has}")]
    OtherType { wanted: u32, has: u32, backend: MappingBackend },
    #[error("nothing here maps GPU memory for the CPU: {}", list(.tried))]
    NoBackend { tried: Vec<(MappingBackend, Refusal)> },
    #[error("GDSYNC_MAPPING: {reason}, and stand-in to try programs without a GPU")]
    UnknownBackend { reason: String },
    #[error("{refusal}; {OTHER_MEMORY}")]
    OtherMemory { refusal: Refusal },
    #[error(transparent)]
    Mapping(MappingError),
    #[error("a panic inside gdsync, which is a defect: please report it ({message})")]
    Panic { message: String },
}

fn list(tried: &[(MappingBackend, Refusal)]) -> String {
    let each: Vec<String> = tried.iter().map(|(backend, refusal)| format!("{backend}: {refusal}")).collect();
    each.join("; ")
}

impl From<MappingError> for Fault {
    fn from(error: MappingError) -> Self {
        match error {
            MappingError::Refused { backend: MappingBackend::ResourceManager, refusal } => {
                Fault::OtherMemory { refusal }
            }
            other => Fault::Mapping(other),
        }
    }
}

impl From<CudaError> for Fault {
    fn from(error: CudaError) -> Self {
        Fault::Mapping(MappingError::Cuda(error))
    }
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const CUDA_OUT_OF_MEMORY: u32 = 2;

fn of_mapping(error: &MappingError) -> c_int {
    match error {
        MappingError::Cuda(CudaError::NoDriver | CudaError::TooOld { .. } | CudaError::NoDevice { .. }) => {
            libc::ENODEV
        }
        MappingError::Cuda(CudaError::Call { code: CUDA_OUT_OF_MEMORY, .. })
        | MappingError::NoHostMemory { .. } => libc::ENOMEM,
        MappingError::Refused { backend: MappingBackend::DmaBuf, .. } | MappingError::Unavailable { .. } => {
            libc::ENOTSUP
        }
        MappingError::Forked => libc::EACCES,
        MappingError::Freed => libc::EFAULT,
        _ => libc::EINVAL,
    }
}

impl Fault {
    /// What the C function returns.
    fn errno(&self) -> c_int {
        match self {
            Fault::Mapped => libc::EAGAIN,
            Fault::Full { .. } => libc::ENOMEM,
            Fault::OtherType { backend: MappingBackend::Gdrdrv, .. } => libc::EOPNOTSUPP,
            Fault::OtherMemory { .. } => libc::ENOTSUP,
            Fault::NoBackend { .. } => libc::ENODEV,
            Fault::Mapping(error) => of_mapping(error),
            Fault::Panic { .. } => libc::EIO,
            _ => libc::EINVAL,
        }
    }
}

#[cold]
#[inline(never)]
fn report(call: &'static str, fault: &Fault) -> c_int {
    log::start();
    let errno = fault.errno();
    tracing::error!(errno, "{call}: {fault}");
    errno
}

/// Does what a C function is to do. A panic is an error like others.
#[inline]
pub(crate) fn attempt<T>(call: &'static str, body: impl FnOnce() -> Result<T, Fault>) -> Result<T, c_int> {
    // What a panic leaves half done is behind locks that do not remember it, and consistent after each step.
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Fault::Panic { message })
    });
    result.map_err(|fault| report(call, &fault))
}

/// A C function that returns 0 or a positive errno.
#[inline]
pub(crate) fn status(call: &'static str, body: impl FnOnce() -> Result<(), Fault>) -> c_int {
    attempt(call, body).err().unwrap_or(0)
}

/// A pointer that must not be null.
#[inline]
pub(crate) fn non_null<T>(what: &'static str, pointer: *const T) -> Result<(), Fault> {
    if pointer.is_null() { Err(Fault::Null { what }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_the_errno_values_of_the_header() {
        let refusal = || match MappingBackend::StandIn.offered(false) {
            Err(refusal) => refusal,
            Ok(()) => panic!("a stand-in maps no GPU memory"),
        };
        let refused = |backend| Fault::from(MappingError::Refused { backend, refusal: refusal() });
        assert_eq!(refused(MappingBackend::ResourceManager).errno(), libc::ENOTSUP);
        assert!(refused(MappingBackend::ResourceManager).to_string().contains("POSIX_FILE_DESCRIPTOR"));
        assert_eq!(refused(MappingBackend::DmaBuf).errno(), libc::ENOTSUP);
        assert_eq!(refused(MappingBackend::Gdrdrv).errno(), libc::EINVAL);
        let other = |backend| Fault::OtherType { wanted: 2, has: 1, backend }.errno();
        assert_eq!(
            (other(MappingBackend::Gdrdrv), other(MappingBackend::DmaBuf)),
            (libc::EOPNOTSUPP, libc::EINVAL)
        );
        let call = |code| Fault::from(CudaError::Call { call: "cuX", code, name: String::new() }).errno();
        assert_eq!((call(CUDA_OUT_OF_MEMORY), call(1)), (libc::ENOMEM, libc::EINVAL));
        assert_eq!(Fault::from(CudaError::NoDriver).errno(), libc::ENODEV);
        assert_eq!(Fault::from(MappingError::Forked).errno(), libc::EACCES);
        assert_eq!(Fault::from(MappingError::Freed).errno(), libc::EFAULT);
        assert_eq!((Fault::Mapped.errno(), Fault::Full { most: 1 }.errno()), (libc::EAGAIN, libc::ENOMEM));
        let none = Fault::NoBackend { tried: vec![(MappingBackend::Gdrdrv, refusal())] };
        assert!(none.errno() == libc::ENODEV && none.to_string().contains("gdrdrv: "), "{none}");
    }

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(status("gdr_test", || panic!("on purpose")), libc::EIO);
        assert_eq!(status("gdr_test", || Ok(())), 0);
    }
}
