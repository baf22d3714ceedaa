//! Errors of commands, asynchronous events, and the strict checker's diagnostics.

use crate::fabric::FabricError;
use crate::peer_memory::PeerMemoryError;
use std::collections::VecDeque;
use std::fmt;

/// Why a command failed. Fronts translate it into an errno.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// The fabric cannot be set up.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Memory or a thread cannot be had.
    #[error("the card cannot start: {0}")]
    System(#[from] std::io::Error),
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
        /// How many use it.
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
    /// A value is not acceptable.
    #[error("{what} is {value:#x}: {limit}")]
    Invalid {
        /// The attribute.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What would be acceptable.
        limit: &'static str,
    },
    /// Memory to be registered is not mapped, or not with the right access.
    #[error("{len} bytes at {addr:#x} are not mapped with the access asked for")]
    Unmapped {
        /// First address.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Memory to be registered belongs to a peer-memory client, which does not give it.
    #[error("{len} bytes at {addr:#x} are peer memory that cannot be registered, says {client}: {error}")]
    PeerMemory {
        /// The client's name.
        client: String,
        /// First address.
        addr: u64,
        /// Length in bytes.
        len: u64,
        /// What it says.
        error: PeerMemoryError,
    },
    /// A transition of a queue pair that the transport does not have.
    #[error("a queue pair cannot go from {from:?} to {to:?}")]
    Transition {
        /// State it is in.
        from: super::QpState,
        /// State asked for.
        to: super::QpState,
    },
    /// A transition lacks an attribute.
    #[error("the transition from {from:?} to {to:?} needs {attribute}")]
    Missing {
        /// State it is in.
        from: super::QpState,
        /// State asked for.
        to: super::QpState,
        /// The attribute, by its name in `ibv_modify_qp`'s mask.
        attribute: &'static str,
    },
    /// A transition does not allow an attribute.
    #[error("the transition from {from:?} to {to:?} does not allow {attribute}")]
    Superfluous {
        /// State it is in.
        from: super::QpState,
        /// State asked for.
        to: super::QpState,
        /// The attribute, by its name in `ibv_modify_qp`'s mask.
        attribute: &'static str,
    },
}

/// Something that happened without being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An armed completion queue got an entry of the kind that it was armed for.
    Completion {
        /// Its number.
        cqn: u32,
    },
    /// A completion queue overran and is dead.
    CqError {
        /// Its number.
        cqn: u32,
    },
    /// A queue pair failed in a way that no completion tells.
    QpFatal {
        /// Its number.
        qpn: u32,
    },
    /// The remote side sent a request that breaks the transport's rules.
    QpRequestError {
        /// Its number.
        qpn: u32,
    },
    /// The remote side used a wrong key, bound or right.
    QpAccessError {
        /// Its number.
        qpn: u32,
    },
    /// The first packet came while the queue pair was still RTR.
    CommunicationEstablished {
        /// Its number.
        qpn: u32,
    },
}

/// Something that a program did wrong, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostic {
    /// The queue pair, where one is concerned.
    pub qpn: Option<u32>,
    /// Index of the work-queue entry, where one is concerned.
    pub index: Option<u16>,
    /// The field or rule that is broken.
    pub field: &'static str,
    /// What was seen and what was expected.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(qpn) = self.qpn {
            write!(f, "queue pair {qpn:#x}")?;
        }
        if let Some(index) = self.index {
            write!(f, " WQE {index}")?;
        }
        write!(f, " {}: {}", self.field, self.message)
    }
}

/// The last diagnostics of a card.
#[derive(Debug, Default)]
pub(super) struct Diagnostics {
    kept: VecDeque<Diagnostic>,
}

/// How many diagnostics are kept; older ones are in the log only.
const KEPT: usize = 256;

impl Diagnostics {
    pub(super) fn report(&mut self, diagnostic: Diagnostic) {
        tracing::warn!(%diagnostic, "a program broke the card's rules");
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(diagnostic);
    }

    pub(super) fn all(&self) -> Vec<Diagnostic> {
        self.kept.iter().cloned().collect()
    }
}
