//! Queue pairs that release others, and those that are released.

use crate::verbs::{DeviceInner, QueueApi};
use gdsync_sys::api::Provider;
use gdsync_sys::mlx5dv;

/// What SEND_EN has to do with a queue pair: queue pairs have to be made for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing.
    Plain,
    /// It releases sends of others.
    Master,
    /// Another one releases its sends.
    Slave,
}

impl Role {
    /// The interface that makes it. Of verbs, those of the software card of this process alone have
    /// flags for it.
    pub(crate) fn maker(self, device: &DeviceInner) -> QueueApi {
        let has_flags = device.api.provider == Provider::Software;
        if self == Role::Plain || has_flags { QueueApi::Verbs } else { QueueApi::Devx }
    }

    /// The flag of the software card of this process.
    pub(crate) fn flag(self) -> u32 {
        match self {
            Role::Plain => 0,
            Role::Master => mlx5dv::SOFTWARE_QP_CREATE_MASTER,
            Role::Slave => mlx5dv::SOFTWARE_QP_CREATE_SLAVE_SEND,
        }
    }
}
