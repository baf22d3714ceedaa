//! Queries of addresses, paths, and queue pair attributes.

use super::address::{Address, IbAddress};
use super::connection::{ACK_TIMEOUT, Connection, Phase};
use super::id::Id;
use super::manager::Inner;
use super::path::{EXACTLY, PATH_FLAGS, PATH_MTU, RATE, address_handle, own_pkey_index, path, pkey};
use crate::errno::{Errno, Result};
use crate::uapi::ucm::{
    PathRecData, QpAttr, QueryAddrResp, QueryPathResp, QueryRouteResp, Sockaddr6, Storage, UserPathRec,
};
use crate::verbs::port::PORT;
use gdsync_sys::verbs as ibv;
use softhca::sysfs::node_guid;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

/// `IB_QPS_INIT`, `IB_QPS_RTR`, `IB_QPS_RTS`.
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
/// `IB_ACCESS_REMOTE_WRITE`, `IB_ACCESS_REMOTE_READ`, `IB_ACCESS_REMOTE_ATOMIC`.
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ_AND_ATOMIC: u32 = 1 << 2 | 1 << 3;

/// Returns the first bytes of a socket address.
fn stored<const N: usize>(address: Option<&Address>) -> ([u8; N], u16) {
    let mut bytes = [0; N];
    let Some(address) = address else { return (bytes, 0) };
    let (whole, len) = address.store();
    let len = len.min(N);
    bytes[..len].copy_from_slice(&whole[..len]);
    (bytes, len as u16)
}

/// Returns an address as InfiniBand address with this GID.
fn as_ib(id: &Id, address: Option<&Address>, gid: [u8; 16]) -> Address {
    match address {
        Some(ib @ Address::Ib(_)) => *ib,
        _ => Address::Ib(IbAddress {
            pkey: pkey(id),
            flow: 0,
            gid,
            service_id: address.map_or(0, |address| id.service_id(address)),
            mask: 0,
            scope: 0,
        }),
    }
}

pub(crate) fn query_addr(id: &Id) -> QueryAddrResp {
    let (src, src_size) = stored::<{ size_of::<Storage>() }>(id.source.as_ref());
    let (dst, dst_size) = stored::<{ size_of::<Storage>() }>(id.destination.as_ref());
    QueryAddrResp { src, dst, src_size, dst_size, ..device(id) }
}

pub(crate) fn query_gid(id: &Id) -> QueryAddrResp {
    let own = id.card.as_ref().and_then(|open| open.card.gid_of(open.card.node()));
    let source = id.route.as_ref().map(|route| route.gids.source).or(own).unwrap_or_default();
    let destination = id.route.as_ref().map(|route| route.gids.destination).unwrap_or_default();
    let (src, src_size) = as_ib(id, id.source.as_ref(), source).store();
    let (dst, dst_size) = as_ib(id, id.destination.as_ref(), destination).store();
    QueryAddrResp { src, dst, src_size: src_size as u16, dst_size: dst_size as u16, ..device(id) }
}

/// `QUERY` of paths, cut to the room.
pub(crate) fn query_path(id: &Id, room: usize) -> Vec<u8> {
    let path = path(id);
    let head = QueryPathResp { num_paths: path.is_some().into(), reserved: 0 };
    // More than the record: the kernel compares so.
    let fits = room > size_of::<QueryPathResp>() + size_of::<PathRecData>();
    let record = path.filter(|_| fits).map(|path| PathRecData {
        flags: PATH_FLAGS,
        dgid: path.dgid,
        sgid: path.sgid,
        dlid: path.dlid,
        slid: path.slid,
        flow_label_hop_limit: U32::new(path.hop_limit.into()),
        traffic_class: path.traffic_class,
        reversible_paths: 1 << 7 | path.numb_path,
        pkey: path.pkey,
        mtu: EXACTLY << 6 | PATH_MTU,
        rate: EXACTLY << 6 | RATE,
        packet_life_time: EXACTLY << 6 | path.packet_life_time,
        ..PathRecData::new_zeroed()
    });
    let record = record.as_ref().map_or(&[][..], IntoBytes::as_bytes);
    [head.as_bytes(), record].concat()
}

/// `QUERY_ROUTE`, for programs without InfiniBand addresses.
pub(crate) fn query_route(id: &Id) -> QueryRouteResp {
    let device = device(id);
    let mut routes = [UserPathRec::new_zeroed(); 2];
    let path = path(id);
    if let Some(path) = path {
        routes[0] = path;
    }
    QueryRouteResp {
        node_guid: device.node_guid,
        routes,
        src: stored::<{ size_of::<Sockaddr6>() }>(id.source.as_ref()).0,
        dst: stored::<{ size_of::<Sockaddr6>() }>(id.destination.as_ref()).0,
        num_paths: path.is_some().into(),
        port_num: device.port_num,
        ibdev_index: device.ibdev_index,
        ..QueryRouteResp::new_zeroed()
    }
}

/// `INIT_QP_ATTR`: the attributes of the program's queue pair for its next state.
///
/// # Errors
/// EINVAL before the identifier has a card, and for a state that its connection has not reached.
pub(crate) fn qp_attributes(inner: &mut Inner, file: u32, number: u32, state: u32) -> Result<QpAttr> {
    let id = inner.id(file, number)?;
    if id.card.is_none() {
        return Err(Errno::INVALID);
    }
    let pkey_index = own_pkey_index(id).ok_or(Errno::INVALID)?;
    let mut attributes = QpAttr { qp_state: state, port_num: PORT, pkey_index, ..QpAttr::new_zeroed() };
    let local = id.connection;
    if id.qp_type.is_datagram() || local.is_none() {
        let more = if id.qp_type.is_datagram() { ibv::IBV_QP_QKEY } else { ibv::IBV_QP_ACCESS_FLAGS };
        attributes.qp_attr_mask = ibv::IBV_QP_STATE | ibv::IBV_QP_PKEY_INDEX | ibv::IBV_QP_PORT | more;
        attributes.qkey = if id.qp_type.is_datagram() { id.qkey } else { 0 };
        return Ok(attributes);
    }
    let (qp_type, psn) = (id.qp_type, id.psn);
    let ack_timeout = id.options.ack_timeout.unwrap_or(ACK_TIMEOUT);
    let link = inner.connection(local)?;
    let connection = &link.connection;
    let Connection { own, peer, .. } = connection;
    match state {
        INIT if connection.phase != Phase::Idle => {
            attributes.qp_attr_mask =
                ibv::IBV_QP_STATE | ibv::IBV_QP_ACCESS_FLAGS | ibv::IBV_QP_PKEY_INDEX | ibv::IBV_QP_PORT;
            let reads = if own.responder_resources > 0 { REMOTE_READ_AND_ATOMIC } else { 0 };
            attributes.qp_access_flags = REMOTE_WRITE | reads;
        }
        RTR if knows_peer(connection.phase) => {
            attributes.qp_attr_mask = ibv::IBV_QP_STATE
                | ibv::IBV_QP_AV
                | ibv::IBV_QP_PATH_MTU
                | ibv::IBV_QP_DEST_QPN
                | ibv::IBV_QP_RQ_PSN;
            let address = address_handle(&link.card, &connection.gids);
            attributes.ah_attr = address.ok_or(Errno::INVALID)?;
            attributes.path_mtu = peer.path_mtu.clamp(1, PATH_MTU).into();
            attributes.dest_qp_num = peer.qpn;
            attributes.rq_psn = psn;
            if qp_type.is_reliable_target() {
                attributes.qp_attr_mask |= ibv::IBV_QP_MAX_DEST_RD_ATOMIC | ibv::IBV_QP_MIN_RNR_TIMER;
                attributes.max_dest_rd_atomic = own.responder_resources;
            }
        }
        RTS if knows_peer(connection.phase) => {
            attributes.qp_attr_mask = ibv::IBV_QP_STATE | ibv::IBV_QP_SQ_PSN;
            attributes.sq_psn = peer.psn & 0xff_ffff;
            if qp_type.is_reliable_initiator() {
                attributes.qp_attr_mask |=
                    ibv::IBV_QP_RETRY_CNT | ibv::IBV_QP_RNR_RETRY | ibv::IBV_QP_MAX_QP_RD_ATOMIC;
                attributes.retry_cnt = own.retry_count;
                attributes.rnr_retry = own.rnr_retry_count;
                attributes.max_rd_atomic = own.initiator_depth;
            }
            if qp_type.is_reliable_initiator() || qp_type.is_reliable_target() {
                attributes.qp_attr_mask |= ibv::IBV_QP_TIMEOUT;
                attributes.timeout = ack_timeout;
            }
        }
        _ => return Err(Errno::INVALID),
    }
    Ok(attributes)
}

/// Returns whether the peer's queue pair is known in a phase, and the connection not over.
fn knows_peer(phase: Phase) -> bool {
    use Phase::*;
    matches!(phase, ReqRcvd | RepRcvd | RepSent | Established)
}

/// Returns the device of an identifier; all zero before it has one.
fn device(id: &Id) -> QueryAddrResp {
    let Some(open) = &id.card else { return QueryAddrResp::new_zeroed() };
    QueryAddrResp {
        node_guid: U64::new(node_guid(open.index)),
        port_num: PORT,
        pkey: U16::new(pkey(id)),
        ibdev_index: open.index as u32,
        ..QueryAddrResp::new_zeroed()
    }
}
