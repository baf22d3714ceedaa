//! Transport services, and the requests that each of them takes.

use gdsync_sys::prm::wqe::Opcode;
use gdsync_sys::verbs;
use std::fmt;

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// Reliable connection: every operation, without loss and in order.
    #[default]
    Rc,
    /// Unreliable connection: sends and RDMA writes, with and without immediate. If a packet is lost, so is the
    /// message, without an error for the sender.
    Uc,
    /// Unreliable datagrams: sends, with and without immediate, of at most the port's MTU. Each names its destination
    /// ([`crate::WorkRequest::to`]). A message that finds no receive is lost, and the sender gets no error.
    Ud,
    /// Dynamically connected transport, the sending side (an initiator): every operation, as reliable as
    /// [`Self::Rc`]. Each request names its target ([`crate::WorkRequest::to_target`]), to which the card connects
    /// itself: one queue pair reaches any number of targets ([`crate::qp::DcTarget`]), and takes no receives.
    Dc,
}

impl Transport {
    pub(crate) fn code(self) -> libc::c_int {
        match self {
            Transport::Rc => verbs::IBV_QPT_RC,
            Transport::Uc => verbs::IBV_QPT_UC,
            Transport::Ud => verbs::IBV_QPT_UD,
            Transport::Dc => verbs::IBV_QPT_DRIVER,
        }
    }

    /// True if each request names its destination; the queue pair is then ready once it is created.
    pub(crate) fn is_addressed(self) -> bool {
        matches!(self, Transport::Ud | Transport::Dc)
    }

    /// IB specification, 9.1 (table 35, operations of each service); a DC initiator has those of RC (libmlx5's
    /// `MLX5_SUPPORTED_SEND_OPS_FLAGS_DCI`).
    fn has(self, opcode: Opcode) -> bool {
        match opcode {
            Opcode::Nop | Opcode::Send | Opcode::SendImm => true,
            Opcode::RdmaWrite | Opcode::RdmaWriteImm => self != Transport::Ud,
            _ => matches!(self, Transport::Rc | Transport::Dc),
        }
    }

    /// Checks that queue pairs of this transport support an operation. The error is the operation, in words.
    pub(crate) fn check(self, opcode: Opcode) -> Result<(), &'static str> {
        if self.has(opcode) {
            return Ok(());
        }
        let operation = match opcode {
            Opcode::RdmaWrite | Opcode::RdmaWriteImm => "an RDMA write",
            Opcode::RdmaRead => "an RDMA read",
            _ => "an atomic operation",
        };
        Err(operation)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Ud => "UD",
            Transport::Dc => "DC",
        })
    }
}

/// The interface that creates queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueApi {
    /// Verbs (`mlx5dv_create_qp`, `mlx5dv_create_cq`), in host memory.
    #[default]
    Verbs,
    /// Device commands (DEVX). They need a device that takes commands from programs: mlx5 on the system's libraries.
    /// Asynchronous events that name such queues are not delivered (those of ports and devices are): a completion
    /// queue never overruns here, and other failures of a queue pair show in a completion or, on the responder's
    /// side, in a completion of the requester.
    Devx,
}
