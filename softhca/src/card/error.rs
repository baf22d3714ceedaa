//! Errors of commands.

use super::config::InvalidValue;
use super::memory::registered::RegionError;
use super::transport::transition::ModifyError;
use crate::fabric::FabricError;
use crate::setting::SettingError;
use std::io::{self, ErrorKind};

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// The fabric cannot be set up.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A malformed setting in the environment.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The system provides no memory or no thread.
    #[error("the card cannot start: {0}")]
    System(#[from] io::Error),
    /// An object does not exist.
    #[error("there is no {what} {number:#x}")]
    NotFound {
        /// Kind of object.
        what: &'static str,
        /// Its number.
        number: u32,
    },
    /// An object is in use.
    #[error("{what} {number:#x} is in use by {users} objects: destroy them first")]
    Busy {
        /// Kind of object.
        what: &'static str,
        /// Its number.
        number: u32,
        /// Number of objects that use it.
        users: u32,
    },
    /// Too many objects of a kind.
    #[error("{limit} of {what} exist, which is the limit")]
    TooMany {
        /// Kind of object.
        what: &'static str,
        /// The limit.
        limit: u32,
    },
    /// The card is on the fabric of several hosts, which has no multicast groups.
    #[error("there are multicast groups on the fabric of one host only")]
    NoMulticast,
    /// A value is out of range.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// Memory cannot be registered.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A queue pair cannot be changed as asked.
    #[error(transparent)]
    Modify(#[from] ModifyError),
}

impl CardError {
    /// Returns the errno that the kernel would return for the command.
    pub fn errno(&self) -> i32 {
        match self {
            CardError::Fabric(FabricError::Addresses(_)) | CardError::Setting(_) => libc::EINVAL,
            CardError::Fabric(_) => libc::ENODEV,
            CardError::System(error) if error.kind() == ErrorKind::FileTooLarge => libc::EFBIG,
            CardError::System(error) if error.kind() == ErrorKind::OutOfMemory => libc::ENOMEM,
            CardError::System(error) => error.raw_os_error().filter(|code| *code != 0).unwrap_or(libc::EIO),
            CardError::Busy { .. } => libc::EBUSY,
            CardError::TooMany { .. } => libc::ENOMEM,
            CardError::NoMulticast => libc::EOPNOTSUPP,
            CardError::Region(RegionError::Unmapped { .. } | RegionError::Peer { .. }) => libc::EFAULT,
            CardError::NotFound { .. }
            | CardError::Invalid(_)
            | CardError::Region(RegionError::Invalid(_))
            | CardError::Modify(_) => libc::EINVAL,
        }
    }
}

pub(super) fn missing(what: &'static str, number: u32) -> CardError {
    CardError::NotFound { what, number }
}

pub(super) fn within(what: &'static str, count: usize, limit: u32) -> Result<(), CardError> {
    if count < limit as usize { Ok(()) } else { Err(CardError::TooMany { what, limit }) }
}
