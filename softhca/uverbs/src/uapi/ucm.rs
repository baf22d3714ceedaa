//! The connection manager's structures: `rdma_user_cm.h`, `ib_user_sa.h`, and `ib_user_verbs.h`.
//!
//! Numbers are in host order unless a field says otherwise.

use zerocopy::byteorder::big_endian;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) const MAX_PRIVATE_DATA: usize = 256;

/// Numbers of commands (`RDMA_USER_CM_CMD_*`).
pub(crate) mod command {
    pub(crate) const CREATE_ID: u32 = 0;
    pub(crate) const DESTROY_ID: u32 = 1;
    pub(crate) const BIND_IP: u32 = 2;
    pub(crate) const RESOLVE_IP: u32 = 3;
    pub(crate) const RESOLVE_ROUTE: u32 = 4;
    pub(crate) const QUERY_ROUTE: u32 = 5;
    pub(crate) const CONNECT: u32 = 6;
    pub(crate) const LISTEN: u32 = 7;
    pub(crate) const ACCEPT: u32 = 8;
    pub(crate) const REJECT: u32 = 9;
    pub(crate) const DISCONNECT: u32 = 10;
    pub(crate) const INIT_QP_ATTR: u32 = 11;
    pub(crate) const GET_EVENT: u32 = 12;
    pub(crate) const GET_OPTION: u32 = 13;
    pub(crate) const SET_OPTION: u32 = 14;
    pub(crate) const NOTIFY: u32 = 15;
    pub(crate) const JOIN_IP_MCAST: u32 = 16;
    pub(crate) const LEAVE_MCAST: u32 = 17;
    pub(crate) const MIGRATE_ID: u32 = 18;
    pub(crate) const QUERY: u32 = 19;
    pub(crate) const BIND: u32 = 20;
    pub(crate) const RESOLVE_ADDR: u32 = 21;
    pub(crate) const JOIN_MCAST: u32 = 22;
}

/// Port spaces (`enum rdma_ucm_port_space`).
pub(crate) mod space {
    pub(crate) const IPOIB: u16 = 0x0002;
    pub(crate) const IB: u16 = 0x013f;
    pub(crate) const TCP: u16 = 0x0106;
    pub(crate) const UDP: u16 = 0x0111;
}

/// Kinds of queries (`RDMA_USER_CM_QUERY_*`).
pub(crate) mod query {
    pub(crate) const ADDR: u32 = 0;
    pub(crate) const PATH: u32 = 1;
    pub(crate) const GID: u32 = 2;
}

/// Options (`RDMA_OPTION_*`): level and name.
pub(crate) mod option {
    pub(crate) const TOS: (u32, u32) = (0, 0);
    pub(crate) const REUSEADDR: (u32, u32) = (0, 1);
    pub(crate) const AFONLY: (u32, u32) = (0, 2);
    pub(crate) const ACK_TIMEOUT: (u32, u32) = (0, 3);
    pub(crate) const IB_PATH: (u32, u32) = (1, 1);
}

/// Defines structures of the interface. None has padding: `IntoBytes` checks that.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)+ })+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)+
            }
        )+
    };
}

/// Bytes of `struct sockaddr_storage`.
pub(crate) type Storage = [u8; 128];
/// Bytes of `struct sockaddr_in6`.
pub(crate) type Sockaddr6 = [u8; 28];

structures! {
    /// `struct rdma_ucm_cmd_hdr`.
    Header { cmd: u32, bytes_in: u16, bytes_out: u16, }
    CreateId { uid: u64, response: u64, space: u16, qp_type: u8, reserved: [u8; 5], }
    /// `struct rdma_ucm_destroy_id`, also for leaving a multicast group.
    DestroyId { response: u64, id: u32, reserved: u32, }
    BindIp { response: u64, addr: Sockaddr6, id: u32, }
    Bind { id: u32, addr_size: u16, reserved: u16, addr: Storage, }
    ResolveIp { src: Sockaddr6, dst: Sockaddr6, id: u32, timeout_ms: u32, }
    ResolveAddr {
        id: u32, timeout_ms: u32, src_size: u16, dst_size: u16, reserved: u32, src: Storage, dst: Storage,
    }
    ResolveRoute { id: u32, timeout_ms: u32, }
    Query { response: u64, id: u32, option: u32, }
    UserPathRec {
        dgid: [u8; 16], sgid: [u8; 16], dlid: big_endian::U16, slid: big_endian::U16, raw_traffic: u32,
        flow_label: big_endian::U32, reversible: u32, mtu: u32, pkey: big_endian::U16, hop_limit: u8,
        traffic_class: u8, numb_path: u8, sl: u8, mtu_selector: u8, rate_selector: u8, rate: u8,
        packet_life_time_selector: u8, packet_life_time: u8, preference: u8,
    }
    QueryRouteResp {
        node_guid: big_endian::U64, routes: [UserPathRec; 2], src: Sockaddr6, dst: Sockaddr6, num_paths: u32,
        port_num: u8, reserved: [u8; 3], ibdev_index: u32, reserved1: u32,
    }
    QueryAddrResp {
        node_guid: big_endian::U64, port_num: u8, reserved: u8, pkey: big_endian::U16, src_size: u16,
        dst_size: u16, src: Storage, dst: Storage, ibdev_index: u32, reserved1: u32,
    }
    /// The fixed part of `struct rdma_ucm_query_path_resp`.
    QueryPathResp { num_paths: u32, reserved: u32, }
    /// `struct ib_path_rec_data`, with the path record as the subnet administrator sends it (IB
    /// specification, 15.2.5.16).
    PathRecData {
        flags: u32, reserved: u32, service_id: [u8; 8], dgid: [u8; 16], sgid: [u8; 16],
        dlid: big_endian::U16, slid: big_endian::U16, flow_label_hop_limit: big_endian::U32,
        traffic_class: u8, reversible_paths: u8, pkey: big_endian::U16, class_level: big_endian::U16,
        mtu: u8, rate: u8, packet_life_time: u8, preference: u8, reserved2: [u8; 6],
    }
    ConnParam {
        qp_num: u32, qkey: u32, private_data: [u8; MAX_PRIVATE_DATA], private_data_len: u8, srq: u8,
        responder_resources: u8, initiator_depth: u8, flow_control: u8, retry_count: u8,
        rnr_retry_count: u8, valid: u8,
    }
    AhAttr {
        dgid: [u8; 16], flow_label: u32, sgid_index: u8, hop_limit: u8, traffic_class: u8, reserved: u8,
        dlid: u16, sl: u8, src_path_bits: u8, static_rate: u8, is_global: u8, port_num: u8, reserved2: u8,
    }
    UdParam {
        qp_num: u32, qkey: u32, ah_attr: AhAttr, private_data: [u8; MAX_PRIVATE_DATA],
        private_data_len: u8, reserved: [u8; 7],
    }
    Ece { vendor_id: u32, attr_mod: u32, }
    /// `struct rdma_ucm_connect` without its last field, which older programs lack.
    Connect { param: ConnParam, id: u32, reserved: u32, }
    Listen { id: u32, backlog: u32, }
    /// `struct rdma_ucm_accept` without its last field, which older programs lack.
    Accept { uid: u64, param: ConnParam, id: u32, reserved: u32, }
    Reject { id: u32, private_data_len: u8, reason: u8, reserved: [u8; 2], private_data: [u8; MAX_PRIVATE_DATA], }
    Disconnect { id: u32, }
    InitQpAttr { response: u64, id: u32, qp_state: u32, }
    QpAttr {
        qp_attr_mask: u32, qp_state: u32, cur_qp_state: u32, path_mtu: u32, path_mig_state: u32, qkey: u32,
        rq_psn: u32, sq_psn: u32, dest_qp_num: u32, qp_access_flags: u32, ah_attr: AhAttr,
        alt_ah_attr: AhAttr, max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32,
        max_inline_data: u32, pkey_index: u16, alt_pkey_index: u16, en_sqd_async_notify: u8,
        sq_draining: u8, max_rd_atomic: u8, max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8,
        timeout: u8, retry_cnt: u8, rnr_retry: u8, alt_port_num: u8, alt_timeout: u8, reserved: [u8; 5],
    }
    Notify { id: u32, event: u32, }
    JoinIpMcast { response: u64, uid: u64, addr: Sockaddr6, id: u32, }
    JoinMcast { response: u64, uid: u64, id: u32, addr_size: u16, join_flags: u16, addr: Storage, }
    GetEvent { response: u64, }
    /// `struct rdma_ucm_event_resp`, with room for the longer of the parameters [`ConnParam`] and [`UdParam`].
    EventResp {
        uid: u64, id: u32, event: u32, status: u32, param: [u8; size_of::<UdParam>()], reserved: u32, ece: Ece,
    }
    SetOption { optval: u64, id: u32, level: u32, optname: u32, optlen: u32, }
    MigrateId { response: u64, id: u32, fd: u32, }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_those_of_the_header() {
        // Measured with a C compiler on linux-libc-dev 6.1.
        let sizes = [
            (size_of::<CreateId>(), 24),
            (size_of::<BindIp>(), 40),
            (size_of::<Bind>(), 136),
            (size_of::<ResolveIp>(), 64),
            (size_of::<ResolveAddr>(), 272),
            (size_of::<UserPathRec>(), 64),
            (size_of::<QueryRouteResp>(), 208),
            (size_of::<QueryAddrResp>(), 280),
            (size_of::<PathRecData>(), 72),
            (size_of::<ConnParam>(), 272),
            (size_of::<UdParam>(), 304),
            (size_of::<Connect>(), 280),
            (size_of::<Accept>(), 288),
            (size_of::<Reject>(), 264),
            (size_of::<QpAttr>(), 144),
            (size_of::<JoinIpMcast>(), 48),
            (size_of::<JoinMcast>(), 152),
            (size_of::<EventResp>(), 336),
        ];
        for (index, (ours, theirs)) in sizes.into_iter().enumerate() {
            assert_eq!(ours, theirs, "structure {index}");
        }
        assert_eq!(offset_of!(EventResp, param), 20);
        assert_eq!(offset_of!(EventResp, ece), 328);
        assert_eq!(offset_of!(QueryAddrResp, ibdev_index), 272);
        assert_eq!(offset_of!(QueryRouteResp, num_paths), 192);
        assert_eq!(offset_of!(QpAttr, ah_attr), 40);
        assert_eq!(offset_of!(QpAttr, pkey_index), 124);
    }
}
