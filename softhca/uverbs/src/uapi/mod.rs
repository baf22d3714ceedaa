//! The kernel's headers: numbers of commands, objects and attributes, and the structures in commands.
//!
//! Source: `rdma/rdma_user_ioctl_cmds.h`, `ib_user_ioctl_cmds.h`, `ib_user_verbs.h`, `ib_user_ioctl_verbs.h`,
//! `rdma_user_cm.h`, `ib_user_sa.h`, `mlx5-abi.h` and `mlx5_user_ioctl_cmds.h` of Linux 6.1. Names are those
//! of the headers, without the common prefixes.

/// Defines structures of the headers.
macro_rules! structures {
    ($($(#[$about:meta])* struct $name:ident { $($(#[$field_about:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
        #[repr(C)]
        pub(crate) struct $name {
            $($(#[$field_about])* pub(crate) $field: $type,)*
        }
    )*};
}

pub(crate) mod devx;
pub(crate) mod ioctl;
pub(crate) mod methods;
pub(crate) mod mlx5;
pub(crate) mod queues;
pub(crate) mod ucm;
pub(crate) mod verbs;
