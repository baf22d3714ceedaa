//! Constants of `infiniband/verbs.h`.

use libc::c_int;

/// Declares named constants of a C enum, each with a line of documentation.
macro_rules! c_enum {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => { $($(#[$doc])* pub const $name: c_int = $value;)* };
}

c_enum! {
    /// The queue pair takes nothing.
    IBV_QPS_RESET = 0;
    /// Receives may be posted.
    IBV_QPS_INIT = 1;
    /// Ready to receive.
    IBV_QPS_RTR = 2;
    /// Ready to send.
    IBV_QPS_RTS = 3;
    /// Send queue drained.
    IBV_QPS_SQD = 4;
    /// Error: all work is flushed.
    IBV_QPS_ERR = 6;

    /// Reliable connection.
    IBV_QPT_RC = 2;
    /// Unreliable connection.
    IBV_QPT_UC = 3;
    /// Unreliable datagram.
    IBV_QPT_UD = 4;
    /// The driver's own: of mlx5, dynamically connected transport.
    IBV_QPT_DRIVER = 255;

    /// 256 bytes.
    IBV_MTU_256 = 1;
    /// 512 bytes.
    IBV_MTU_512 = 2;
    /// 1024 bytes.
    IBV_MTU_1024 = 3;
    /// 2048 bytes.
    IBV_MTU_2048 = 4;
    /// 4096 bytes.
    IBV_MTU_4096 = 5;

    /// No link.
    IBV_PORT_DOWN = 1;
    /// Not configured yet.
    IBV_PORT_INIT = 2;
    /// Configured, not active yet.
    IBV_PORT_ARMED = 3;
    /// In use.
    IBV_PORT_ACTIVE = 4;

    /// No atomic operations.
    IBV_ATOMIC_NONE = 0;

    /// A completion queue overran or failed.
    IBV_EVENT_CQ_ERR = 0;
    /// A queue pair failed.
    IBV_EVENT_QP_FATAL = 1;
    /// A request broke the transport's rules.
    IBV_EVENT_QP_REQ_ERR = 2;
    /// A request broke local access rights.
    IBV_EVENT_QP_ACCESS_ERR = 3;
    /// First packet arrived before the state said so.
    IBV_EVENT_COMM_EST = 4;
    /// The device failed.
    IBV_EVENT_DEVICE_FATAL = 8;
    /// A shared receive queue failed.
    IBV_EVENT_SRQ_ERR = 14;
    /// A shared receive queue has fewer receives than its limit.
    IBV_EVENT_SRQ_LIMIT_REACHED = 15;
    /// A queue pair that has failed takes no more receives from its shared receive queue.
    IBV_EVENT_QP_LAST_WQE_REACHED = 16;
}

/// The device has memory windows of type 2 that belong to a queue pair's number.
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
/// The device has fast registration, local invalidation, and sends that invalidate.
pub const IBV_DEVICE_MEM_MGT_EXTENSIONS: u32 = 1 << 21;

/// Link layer not known.
pub const IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;
/// InfiniBand.
pub const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
/// Ethernet (RoCE).
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;

/// InfiniBand.
pub const IBV_GID_TYPE_IB: u32 = 0;
/// RoCE version 1: Ethernet frames of their own type.
pub const IBV_GID_TYPE_ROCE_V1: u32 = 1;
/// RoCE version 2: UDP.
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;

/// Local write.
pub const IBV_ACCESS_LOCAL_WRITE: u32 = 1 << 0;
/// Remote write; needs local write.
pub const IBV_ACCESS_REMOTE_WRITE: u32 = 1 << 1;
/// Remote read.
pub const IBV_ACCESS_REMOTE_READ: u32 = 1 << 2;
/// Remote atomic; needs local write.
pub const IBV_ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
/// Memory windows may be bound to it.
pub const IBV_ACCESS_MW_BIND: u32 = 1 << 4;
/// The card may reorder its writes on the bus.
pub const IBV_ACCESS_RELAXED_ORDERING: u32 = 1 << 20;

/// `qp_state` is set.
pub const IBV_QP_STATE: u32 = 1 << 0;
/// `cur_qp_state` is set.
pub const IBV_QP_CUR_STATE: u32 = 1 << 1;
/// `en_sqd_async_notify` is set.
pub const IBV_QP_EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
/// `qp_access_flags` is set.
pub const IBV_QP_ACCESS_FLAGS: u32 = 1 << 3;
/// `pkey_index` is set.
pub const IBV_QP_PKEY_INDEX: u32 = 1 << 4;
/// `port_num` is set.
pub const IBV_QP_PORT: u32 = 1 << 5;
/// `qkey` is set.
pub const IBV_QP_QKEY: u32 = 1 << 6;
/// `ah_attr` is set.
pub const IBV_QP_AV: u32 = 1 << 7;
/// `path_mtu` is set.
pub const IBV_QP_PATH_MTU: u32 = 1 << 8;
/// `timeout` is set.
pub const IBV_QP_TIMEOUT: u32 = 1 << 9;
/// `retry_cnt` is set.
pub const IBV_QP_RETRY_CNT: u32 = 1 << 10;
/// `rnr_retry` is set.
pub const IBV_QP_RNR_RETRY: u32 = 1 << 11;
/// `rq_psn` is set.
pub const IBV_QP_RQ_PSN: u32 = 1 << 12;
/// `max_rd_atomic` is set.
pub const IBV_QP_MAX_QP_RD_ATOMIC: u32 = 1 << 13;
/// `alt_ah_attr` and its companions are set.
pub const IBV_QP_ALT_PATH: u32 = 1 << 14;
/// `min_rnr_timer` is set.
pub const IBV_QP_MIN_RNR_TIMER: u32 = 1 << 15;
/// `sq_psn` is set.
pub const IBV_QP_SQ_PSN: u32 = 1 << 16;
/// `max_dest_rd_atomic` is set.
pub const IBV_QP_MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
/// `path_mig_state` is set.
pub const IBV_QP_PATH_MIG_STATE: u32 = 1 << 18;
/// `cap` is set.
pub const IBV_QP_CAP: u32 = 1 << 19;
/// `dest_qp_num` is set.
pub const IBV_QP_DEST_QPN: u32 = 1 << 20;
/// `rate_limit` is set.
pub const IBV_QP_RATE_LIMIT: u32 = 1 << 25;
