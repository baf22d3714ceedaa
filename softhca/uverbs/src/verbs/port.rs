//! The port and its GID table.

use crate::attributes::Request;
use crate::context::Context;
use crate::errno::{Errno, Result};
use crate::uapi::ioctl::attr;
use crate::uapi::verbs::{GidEntry, QueryPortResp};
use gdsync_sys::verbs as ibv;
use softhca::card::{Card, GidKind, LIMITS, LinkLayer};
use zerocopy::{FromZeros, IntoBytes};

/// The only port.
pub(crate) const PORT: u8 = 1;
/// `IB_PORT_PHYS_STATE_LINK_UP`.
const PHYS_LINK_UP: u8 = 5;
/// `IB_WIDTH_4X`.
const WIDTH_4X: u8 = 2;
/// `IB_SPEED_HDR`: 50 Gbit/s per lane.
const SPEED_HDR: u8 = 64;
/// `IBV_LINK_LAYER_INFINIBAND`, `IBV_LINK_LAYER_ETHERNET`.
const INFINIBAND: u8 = 1;
const ETHERNET: u8 = 2;

fn check(port: u64) -> Result<()> {
    if port == u64::from(PORT) { Ok(()) } else { Err(Errno::INVALID) }
}

/// `QUERY_PORT`. The additional fields that newer libraries request stay 0, so that the fields here apply.
pub(crate) fn query(context: &Context, request: &Request) -> Result<()> {
    check(request.number(attr::QUERY_PORT_NUM)?)?;
    request.answer_with(attr::QUERY_PORT_RESP, &answer_of(context.card()))
}

fn answer_of(card: &Card) -> QueryPortResp {
    let is_ethernet = card.link_layer() == LinkLayer::Ethernet;
    QueryPortResp {
        port_cap_flags: card.link_layer().capability_flags(),
        max_msg_sz: LIMITS.max_message,
        gid_tbl_len: card.gids().len() as u32,
        bad_pkey_cntr: card.bad_pkeys(),
        pkey_tbl_len: card.pkeys().keys().len() as u16,
        lid: if is_ethernet { 0 } else { card.lid() },
        state: ibv::IBV_PORT_ACTIVE as u8,
        max_mtu: ibv::IBV_MTU_4096 as u8,
        active_mtu: ibv::IBV_MTU_4096 as u8,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_HDR,
        phys_state: PHYS_LINK_UP,
        link_layer: if is_ethernet { ETHERNET } else { INFINIBAND },
        ..QueryPortResp::new_zeroed()
    }
}

fn entry_of(card: &Card, index: usize) -> Option<GidEntry> {
    let entry = card.gids().get(index)?;
    let mut answer = GidEntry::new_zeroed();
    answer.gid.as_mut_bytes().copy_from_slice(&entry.gid);
    answer.gid_index = index as u32;
    answer.port_num = PORT.into();
    answer.gid_type = match entry.kind {
        GidKind::InfiniBand => 0,
        GidKind::RoceV1 => 1,
        GidKind::RoceV2 => 2,
    };
    Some(answer)
}

/// `QUERY_GID_ENTRY`: EINVAL for an index past the table, which has no empty entries.
pub(crate) fn query_gid_entry(context: &Context, request: &Request) -> Result<()> {
    check(request.number(attr::GID_ENTRY_PORT)?)?;
    if request.optional_number(attr::GID_ENTRY_FLAGS)?.unwrap_or(0) != 0 {
        return Err(Errno::INVALID);
    }
    let index = usize::try_from(request.number(attr::GID_ENTRY_INDEX)?).map_err(|_| Errno::INVALID)?;
    let entry = entry_of(context.card(), index).ok_or(Errno::INVALID)?;
    request.answer_with(attr::GID_ENTRY_RESP, &entry)
}

/// `QUERY_GID_TABLE`: the entries of all ports, each in the size that the program gives.
pub(crate) fn query_gid_table(context: &Context, request: &Request) -> Result<()> {
    if request.optional_number(attr::GID_TABLE_FLAGS)?.unwrap_or(0) != 0 {
        return Err(Errno::INVALID);
    }
    let size = usize::try_from(request.number(attr::GID_TABLE_ENTRY_SIZE)?).map_err(|_| Errno::INVALID)?;
    let count = context.card().gids().len();
    let room = request.len(attr::GID_TABLE_ENTRIES).checked_div(size).ok_or(Errno::INVALID)?;
    if room < count || size > size_of::<GidEntry>() * 8 {
        return Err(Errno::INVALID);
    }
    let mut table = Vec::new();
    for entry in (0..count).filter_map(|index| entry_of(context.card(), index)) {
        let mut bytes = entry.as_bytes().to_vec();
        bytes.resize(size, 0);
        table.extend(bytes);
    }
    request.answer(attr::GID_TABLE_ENTRIES, &table)?;
    request.answer_with(attr::GID_TABLE_NUM_ENTRIES, &(count as u64))
}
