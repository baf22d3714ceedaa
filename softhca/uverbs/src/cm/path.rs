//! Paths between cards, and the addresses of peers.

use super::connection::ACK_TIMEOUT;
use super::id::Id;
use super::message::Gids;
use crate::card::OpenCard;
use crate::errno::{Errno, Result};
use crate::uapi::ucm::{AhAttr, PathRecData, UserPathRec};
use crate::verbs::port::PORT;
use softhca::card::{GidEntry, GidKind, LinkLayer};
use softhca::fabric::Node;
use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, FromZeros};

/// `IBV_MTU_4096`, the path MTU of every fabric.
pub(crate) const PATH_MTU: u8 = 5;
/// The only partition key: full membership of the default partition.
pub(crate) const PKEY: u16 = 0xffff;
/// Hops of a global route.
const HOP_LIMIT: u8 = 64;
/// `IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL`.
pub(crate) const PATH_FLAGS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;
/// Selector of a path's property: exactly this value.
pub(crate) const EXACTLY: u8 = 2;
/// Rate code of 100 Gbit/s (`IB_RATE_100_GBPS`).
pub(crate) const RATE: u8 = 16;

fn is_ethernet(open: &OpenCard) -> bool {
    open.card.link_layer() == LinkLayer::Ethernet
}

/// Returns the LID of a node on InfiniBand; 0 on Ethernet.
fn lid(open: &OpenCard, node: Node) -> u16 {
    if is_ethernet(open) { 0 } else { node as u16 }
}

/// Returns the address of a peer for queue pairs and address handles; `None` if the source is not the card's.
pub(crate) fn address_handle(open: &OpenCard, node: Node, gids: &Gids) -> Option<AhAttr> {
    let is_source = |entry: &GidEntry| {
        entry.gid == gids.source && matches!(entry.kind, GidKind::RoceV2 | GidKind::InfiniBand)
    };
    let index = open.card.gids().iter().position(is_source)?;
    Some(AhAttr {
        dgid: gids.destination,
        sgid_index: index as u8,
        hop_limit: if is_ethernet(open) { HOP_LIMIT } else { 0 },
        dlid: lid(open, node),
        is_global: is_ethernet(open).into(),
        port_num: PORT,
        ..AhAttr::new_zeroed()
    })
}

/// Returns the path to the identifier's peer.
pub(crate) fn path(id: &Id) -> Option<UserPathRec> {
    let route = id.route.as_ref()?;
    let open = &route.card;
    Some(UserPathRec {
        dgid: route.gids.destination,
        sgid: route.gids.source,
        dlid: U16::new(lid(open, route.node)),
        slid: U16::new(lid(open, open.card.node())),
        reversible: 1,
        mtu: PATH_MTU.into(),
        pkey: U16::new(PKEY),
        hop_limit: if is_ethernet(open) { HOP_LIMIT } else { 0 },
        traffic_class: id.options.type_of_service,
        numb_path: 1,
        mtu_selector: EXACTLY,
        rate_selector: EXACTLY,
        rate: RATE,
        packet_life_time_selector: EXACTLY,
        packet_life_time: ACK_TIMEOUT - 1,
        ..UserPathRec::new_zeroed()
    })
}

/// Checks that one of a program's paths leads there and back.
///
/// # Errors
/// EINVAL.
pub(crate) fn check_path(value: &[u8]) -> Result<()> {
    let records = value.chunks_exact(size_of::<PathRecData>());
    let is_whole = records.remainder().is_empty();
    let mut flags =
        records.filter_map(|bytes| PathRecData::read_from_bytes(bytes).ok()).map(|path| path.flags);
    if is_whole && flags.any(|flags| flags == PATH_FLAGS) { Ok(()) } else { Err(Errno::INVALID) }
}
