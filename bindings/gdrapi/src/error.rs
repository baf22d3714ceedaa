//! Translates errors and panics to errno values.

use crate::log;
use gdsync_gdr::driver::DriverError;
use gdsync_gdr::{MappingBackend, MappingError, Refusal};
use gdsync_sys::contain::contain;
use libc::c_int;

/// The remedy if only exportable memory can be mapped.
const OTHER_MEMORY: &str = "without gdrdrv, and with drivers before CUDA 13.3, only memory of cuMemCreate with requestedHandleTypes = \
     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR can be mapped; load gdrdrv for that of cuMemAlloc";

#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
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
    #[error(transparent)]
    NoBackend(MappingError),
    #[error("GDSYNC_MAPPING: {reason}, and stand-in to try programs without a GPU")]
    UnknownBackend { reason: String },
    #[error("{refusal}; {OTHER_MEMORY}")]
    OtherMemory { refusal: Refusal },
    #[error(transparent)]
    Mapping(MappingError),
    #[error("a panic inside gdsync, which is a defect: please report it ({message})")]
    Panic { message: String },
}

impl From<MappingError> for CallError {
    fn from(error: MappingError) -> Self {
        match error {
            MappingError::Refused { backend: MappingBackend::ResourceManager, refusal } => {
                CallError::OtherMemory { refusal }
            }
            other => CallError::Mapping(other),
        }
    }
}

impl From<DriverError> for CallError {
    fn from(error: DriverError) -> Self {
        CallError::Mapping(MappingError::Driver(error))
    }
}

const CUDA_OUT_OF_MEMORY: u32 = 2;

fn of_mapping(error: &MappingError) -> c_int {
    match error {
        MappingError::Driver(
            DriverError::NoDriver | DriverError::TooOld { .. } | DriverError::NoDevice { .. },
        ) => libc::ENODEV,
        MappingError::Driver(DriverError::Call { code: CUDA_OUT_OF_MEMORY, .. })
        | MappingError::NoHostMemory { .. } => libc::ENOMEM,
        MappingError::Refused { backend: MappingBackend::DmaBuf, .. } | MappingError::Unavailable { .. } => {
            libc::ENOTSUP
        }
        MappingError::Forked => libc::EACCES,
        MappingError::Freed => libc::EFAULT,
        _ => libc::EINVAL,
    }
}

impl CallError {
    fn errno(&self) -> c_int {
        match self {
            CallError::Mapped => libc::EAGAIN,
            CallError::Full { .. } => libc::ENOMEM,
            CallError::OtherType { backend: MappingBackend::Gdrdrv, .. } => libc::EOPNOTSUPP,
            CallError::OtherMemory { .. } => libc::ENOTSUP,
            CallError::NoBackend(_) => libc::ENODEV,
            CallError::Mapping(error) => of_mapping(error),
            CallError::Panic { .. } => libc::EIO,
            _ => libc::EINVAL,
        }
    }
}

#[cold]
#[inline(never)]
fn report(call: &'static str, error: &CallError) -> c_int {
    log::start();
    let errno = error.errno();
    tracing::error!(errno, "{call}: {error}");
    errno
}

/// Runs the body of a C function, and returns a panic as an error.
#[inline]
pub(crate) fn attempt<T>(
    call: &'static str,
    body: impl FnOnce() -> Result<T, CallError>,
) -> Result<T, c_int> {
    // State that a panic interrupts is behind locks without poisoning, and consistent after each step.
    let result = contain(body).unwrap_or_else(|message| Err(CallError::Panic { message }));
    result.map_err(|error| report(call, &error))
}

/// Runs a C function that returns 0 or a positive errno.
#[inline]
pub(crate) fn status(call: &'static str, body: impl FnOnce() -> Result<(), CallError>) -> c_int {
    attempt(call, body).err().unwrap_or(0)
}

/// Refuses a null pointer.
#[inline]
pub(crate) fn non_null<T>(what: &'static str, pointer: *const T) -> Result<(), CallError> {
    if pointer.is_null() { Err(CallError::Null { what }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_the_errno_values_of_the_header() {
        let refusal = || match MappingBackend::StandIn.check_support(false) {
            Err(refusal) => refusal,
            Ok(()) => panic!("a stand-in maps no GPU memory"),
        };
        let refused = |backend| CallError::from(MappingError::Refused { backend, refusal: refusal() });
        assert_eq!(refused(MappingBackend::ResourceManager).errno(), libc::ENOTSUP);
        assert!(refused(MappingBackend::ResourceManager).to_string().contains("POSIX_FILE_DESCRIPTOR"));
        assert_eq!(refused(MappingBackend::DmaBuf).errno(), libc::ENOTSUP);
        assert_eq!(refused(MappingBackend::Gdrdrv).errno(), libc::EINVAL);
        let other = |backend| CallError::OtherType { wanted: 2, has: 1, backend }.errno();
        assert_eq!(
            (other(MappingBackend::Gdrdrv), other(MappingBackend::DmaBuf)),
            (libc::EOPNOTSUPP, libc::EINVAL)
        );
        let call =
            |code| CallError::from(DriverError::Call { call: "cuX", code, name: String::new() }).errno();
        assert_eq!((call(CUDA_OUT_OF_MEMORY), call(1)), (libc::ENOMEM, libc::EINVAL));
        assert_eq!(CallError::from(DriverError::NoDriver).errno(), libc::ENODEV);
        assert_eq!(CallError::from(MappingError::Forked).errno(), libc::EACCES);
        assert_eq!(CallError::from(MappingError::Freed).errno(), libc::EFAULT);
        assert_eq!(
            (CallError::Mapped.errno(), CallError::Full { most: 1 }.errno()),
            (libc::EAGAIN, libc::ENOMEM)
        );
        let tried = vec![(MappingBackend::Gdrdrv, refusal())];
        let none = CallError::NoBackend(MappingError::Unavailable { tried });
        assert!(none.errno() == libc::ENODEV && none.to_string().contains("gdrdrv: "), "{none}");
    }

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(status("gdr_test", || panic!("on purpose")), libc::EIO);
        assert_eq!(status("gdr_test", || Ok(())), 0);
    }
}
