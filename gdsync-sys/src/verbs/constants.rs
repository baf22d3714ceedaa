//! Constants of `infiniband/verbs.h`.

use libc::c_int;

/// Declares constants of one type.
macro_rules! constants {
    ($type:ty; $($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $type = $value;)*
    };
}

// C enums.
constants! { c_int;
    IBV_QPS_RESET = 0;
    IBV_QPS_INIT = 1;
    IBV_QPS_RTR = 2;
    IBV_QPS_RTS = 3;
    /// Send queue drained.
    IBV_QPS_SQD = 4;
    IBV_QPS_ERR = 6;

    IBV_QPT_RC = 2;
    IBV_QPT_UC = 3;
    IBV_QPT_UD = 4;
    /// Driver-specific; with mlx5, dynamically connected transport.
    IBV_QPT_DRIVER = 255;

    IBV_MTU_256 = 1;
    IBV_MTU_512 = 2;
    IBV_MTU_1024 = 3;
    IBV_MTU_2048 = 4;
    IBV_MTU_4096 = 5;

    IBV_PORT_DOWN = 1;
    /// Not configured yet.
    IBV_PORT_INIT = 2;
    /// Configured, not active yet.
    IBV_PORT_ARMED = 3;
    IBV_PORT_ACTIVE = 4;

    IBV_ATOMIC_NONE = 0;

    /// A completion queue overran or failed.
    IBV_EVENT_CQ_ERR = 0;
    IBV_EVENT_QP_FATAL = 1;
    /// A request broke the transport's rules.
    IBV_EVENT_QP_REQ_ERR = 2;
    /// A request broke local access rights.
    IBV_EVENT_QP_ACCESS_ERR = 3;
    /// Communication established: the first packet arrived before the transition to RTS.
    IBV_EVENT_COMM_EST = 4;
    IBV_EVENT_DEVICE_FATAL = 8;
    IBV_EVENT_SRQ_ERR = 14;
    /// A shared receive queue has fewer receives than its limit.
    IBV_EVENT_SRQ_LIMIT_REACHED = 15;
    /// A failed queue pair takes no more receives from its shared receive queue.
    IBV_EVENT_QP_LAST_WQE_REACHED = 16;
}

constants! { u32;
    /// Memory windows of type 1.
    IBV_DEVICE_MEM_WINDOW = 1 << 17;
    /// Memory windows of type 2A, bound to a queue pair's number and a domain.
    IBV_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23;
    /// Memory windows of type 2B, bound to a queue pair's number.
    IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24;
    /// Fast registration, local invalidation, and sends with invalidation.
    IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21;

    IBV_GID_TYPE_IB = 0;
    /// RoCE version 1: Ethernet frames of their own type.
    IBV_GID_TYPE_ROCE_V1 = 1;
    /// RoCE version 2: UDP.
    IBV_GID_TYPE_ROCE_V2 = 2;

    IBV_ACCESS_LOCAL_WRITE = 1 << 0;
    /// Remote write; needs local write.
    IBV_ACCESS_REMOTE_WRITE = 1 << 1;
    IBV_ACCESS_REMOTE_READ = 1 << 2;
    /// Remote atomic; needs local write.
    IBV_ACCESS_REMOTE_ATOMIC = 1 << 3;
    /// Memory windows may be bound to the region.
    IBV_ACCESS_MW_BIND = 1 << 4;
    /// The card may reorder its writes on the bus.
    IBV_ACCESS_RELAXED_ORDERING = 1 << 20;
}

constants! { u8;
    IBV_LINK_LAYER_UNSPECIFIED = 0;
    IBV_LINK_LAYER_INFINIBAND = 1;
    IBV_LINK_LAYER_ETHERNET = 2;
}

// Valid fields of `ibv_qp_attr`.
constants! { u32;
    IBV_QP_STATE = 1 << 0;
    IBV_QP_CUR_STATE = 1 << 1;
    IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2;
    IBV_QP_ACCESS_FLAGS = 1 << 3;
    IBV_QP_PKEY_INDEX = 1 << 4;
    IBV_QP_PORT = 1 << 5;
    IBV_QP_QKEY = 1 << 6;
    /// `ah_attr` is set.
    IBV_QP_AV = 1 << 7;
    IBV_QP_PATH_MTU = 1 << 8;
    IBV_QP_TIMEOUT = 1 << 9;
    IBV_QP_RETRY_CNT = 1 << 10;
    IBV_QP_RNR_RETRY = 1 << 11;
    IBV_QP_RQ_PSN = 1 << 12;
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13;
    /// `alt_ah_attr` and its companions are set.
    IBV_QP_ALT_PATH = 1 << 14;
    IBV_QP_MIN_RNR_TIMER = 1 << 15;
    IBV_QP_SQ_PSN = 1 << 16;
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17;
    IBV_QP_PATH_MIG_STATE = 1 << 18;
    IBV_QP_CAP = 1 << 19;
    IBV_QP_DEST_QPN = 1 << 20;
    IBV_QP_RATE_LIMIT = 1 << 25;
}
