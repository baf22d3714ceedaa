//! Numbers of the DEVX objects, methods and attributes: `mlx5_user_ioctl_cmds.h`.

/// `MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA`.
pub(crate) const EVENTS_OMIT_DATA: u64 = 1;

/// Kinds of objects (`enum mlx5_ib_objects`).
pub(crate) mod object {
    use crate::uapi::ioctl::DRIVER;
    pub(crate) const DEVX: u16 = DRIVER;
    pub(crate) const DEVX_OBJ: u16 = DRIVER + 1;
    pub(crate) const DEVX_UMEM: u16 = DRIVER + 2;
    pub(crate) const DEVX_ASYNC_CMD_FD: u16 = DRIVER + 4;
    pub(crate) const DEVX_ASYNC_EVENT_FD: u16 = DRIVER + 5;
}

/// Methods (`enum mlx5_ib_devx_methods`, `_obj_methods`, `_umem_methods`).
pub(crate) mod method {
    use crate::uapi::ioctl::DRIVER;
    pub(crate) const OTHER: u16 = DRIVER;
    pub(crate) const QUERY_UAR: u16 = DRIVER + 1;
    pub(crate) const QUERY_EQN: u16 = DRIVER + 2;
    pub(crate) const SUBSCRIBE_EVENT: u16 = DRIVER + 3;
    pub(crate) const OBJ_CREATE: u16 = DRIVER;
    pub(crate) const OBJ_DESTROY: u16 = DRIVER + 1;
    pub(crate) const OBJ_MODIFY: u16 = DRIVER + 2;
    pub(crate) const OBJ_QUERY: u16 = DRIVER + 3;
    pub(crate) const OBJ_ASYNC_QUERY: u16 = DRIVER + 4;
    /// The only method of the files of asynchronous commands and of events.
    pub(crate) const FD_ALLOC: u16 = DRIVER;
    pub(crate) const UMEM_REG: u16 = DRIVER;
    pub(crate) const UMEM_DEREG: u16 = DRIVER + 1;
}

pub(crate) mod attr {
    use crate::uapi::ioctl::DRIVER;
    pub(crate) const OTHER_IN: u16 = DRIVER;
    pub(crate) const OTHER_OUT: u16 = DRIVER + 1;

    /// The handle, in all methods of objects and of user memory.
    pub(crate) const HANDLE: u16 = DRIVER;
    pub(crate) const OBJ_IN: u16 = DRIVER + 1;
    pub(crate) const OBJ_OUT: u16 = DRIVER + 2;

    pub(crate) const ASYNC_QUERY_FD: u16 = DRIVER + 2;
    pub(crate) const ASYNC_QUERY_WR_ID: u16 = DRIVER + 3;
    pub(crate) const ASYNC_QUERY_OUT_LEN: u16 = DRIVER + 4;

    pub(crate) const EVENT_FD_FLAGS: u16 = DRIVER + 1;
    pub(crate) const SUBSCRIBE_FD: u16 = DRIVER;
    pub(crate) const SUBSCRIBE_OBJECT: u16 = DRIVER + 1;
    pub(crate) const SUBSCRIBE_EVENTS: u16 = DRIVER + 2;
    pub(crate) const SUBSCRIBE_EVENTFD: u16 = DRIVER + 3;
    pub(crate) const SUBSCRIBE_COOKIE: u16 = DRIVER + 4;

    pub(crate) const EQN_VECTOR: u16 = DRIVER;
    pub(crate) const EQN_NUMBER: u16 = DRIVER + 1;

    pub(crate) const UMEM_ADDR: u16 = DRIVER + 1;
    pub(crate) const UMEM_LEN: u16 = DRIVER + 2;
    pub(crate) const UMEM_ACCESS: u16 = DRIVER + 3;
    pub(crate) const UMEM_ID: u16 = DRIVER + 4;
    pub(crate) const UMEM_PAGE_SIZES: u16 = DRIVER + 5;
    pub(crate) const UMEM_DMABUF_FD: u16 = DRIVER + 6;
}
