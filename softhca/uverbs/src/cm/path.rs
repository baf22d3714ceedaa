//! Paths between cards, and the addresses of peers and of multicast groups.

use super::address::Address;
use super::connection::ACK_TIMEOUT;
use super::id::Id;
use super::message::Gids;
use crate::card::OpenCard;
use crate::errno::{Errno, Result};
use crate::uapi::ucm::{AhAttr, PathRecData, UserPathRec, space};
use crate::verbs::port::PORT;
use softhca::card::{FULL_MEMBER, GidEntry, GidKind, LinkLayer, MULTICAST_LIDS};
use std::sync::Arc;
use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, FromZeros};

/// `IBV_MTU_4096`, the path MTU of every fabric.
pub(crate) const PATH_MTU: u8 = 5;
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

/// Returns the LID of the card, which is its peers', too, on InfiniBand; 0 on Ethernet.
fn lid(open: &OpenCard) -> u16 {
    if is_ethernet(open) { 0 } else { open.card.lid() }
}

/// Returns the address of a peer for queue pairs and address handles; `None` if the source is not the card's.
pub(crate) fn address_handle(open: &OpenCard, gids: &Gids) -> Option<AhAttr> {
    let is_source = |entry: &GidEntry| {
        entry.gid == gids.source && matches!(entry.kind, GidKind::RoceV2 | GidKind::InfiniBand)
    };
    let index = open.card.gids().iter().position(is_source)?;
    Some(AhAttr {
        dgid: gids.destination,
        sgid_index: index as u8,
        hop_limit: if is_ethernet(open) { HOP_LIMIT } else { 0 },
        dlid: lid(open),
        is_global: is_ethernet(open).into(),
        port_num: PORT,
        ..AhAttr::new_zeroed()
    })
}

/// Returns the index of the partition key of an address: that which an InfiniBand address names, or else the first of the
/// table, which an interface of IPoIB has. `None` if the table lacks it. Ethernet ports have one key.
pub(crate) fn pkey_index(open: &OpenCard, address: Option<&Address>) -> Option<u16> {
    match address {
        Some(Address::Ib(address)) if !is_ethernet(open) && address.pkey != 0 => {
            open.card.pkeys().index_of(address.pkey)
        }
        _ => Some(0),
    }
}

/// Returns the index of the partition key of an identifier's packets.
pub(crate) fn own_pkey_index(id: &Id) -> Option<u16> {
    match &id.route {
        Some(route) => Some(route.pkey_index),
        None => pkey_index(id.card.as_ref()?, id.source.as_ref()),
    }
}

/// Returns the partition key of an identifier; 0 before it has a card. That of an interface of IPoIB names a full member,
/// whatever the card is (`ipoib_intf_init`).
pub(crate) fn pkey(id: &Id) -> u16 {
    let key = |open: &Arc<OpenCard>| {
        let key = *open.card.pkeys().keys().get(usize::from(own_pkey_index(id)?))?;
        Some(if matches!(id.source, Some(Address::Ib(_))) { key } else { key | FULL_MEMBER })
    };
    id.card.as_ref().and_then(key).unwrap_or(0)
}

pub(crate) fn path(id: &Id) -> Option<UserPathRec> {
    let route = id.route.as_ref()?;
    let open = &route.card;
    Some(UserPathRec {
        dgid: route.gids.destination,
        sgid: route.gids.source,
        dlid: U16::new(lid(open)),
        slid: U16::new(lid(open)),
        reversible: 1,
        mtu: PATH_MTU.into(),
        pkey: U16::new(pkey(id)),
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

/// Returns whether an IPv6 address is a group GID as a subnet administrator chooses it: `ff1x:a01b`, x any.
fn is_chosen_gid(ip: [u8; 16]) -> bool {
    ip[0] == 0xff && ip[1] & 0xf0 == 0x10 && ip[2..4] == [0xa0, 0x1b]
}

/// Returns the GID of an address's group, as the kernel derives it: on InfiniBand as IPoIB does (RFC 4391,
/// 4), with a separate signature for programs of the port space UDP (`cma_set_mgid`), on Ethernet the IP
/// address itself (`cma_iboe_set_mgid`). All members of the partition derive the same.
pub(crate) fn group_gid(open: &OpenCard, port_space: u16, address: &Address) -> [u8; 16] {
    let first = open.card.pkeys().keys().first().copied().unwrap_or(0);
    gid_of(open.card.link_layer(), first | FULL_MEMBER, port_space, address)
}

fn gid_of(link: LinkLayer, pkey: u16, port_space: u16, address: &Address) -> [u8; 16] {
    let [high, low] = pkey.to_be_bytes();
    // Link-local scope.
    let of_ip = |signature: [u8; 2]| {
        let mut gid = [0; 16];
        gid[..6].copy_from_slice(&[0xff, 0x12, signature[0], signature[1], high, low]);
        if port_space == space::UDP {
            gid[3] = 0x01;
        }
        gid
    };
    match (link, address) {
        (_, Address::Ib(address)) => address.gid,
        (LinkLayer::Ethernet, Address::V4(address)) => address.ip().to_ipv6_mapped().octets(),
        (LinkLayer::Ethernet, Address::V6(address)) => address.ip().octets(),
        (LinkLayer::InfiniBand, Address::V4(address)) => {
            let mut gid = of_ip([0x40, 0x1b]);
            gid[12..].copy_from_slice(&address.ip().octets());
            gid[12] &= 0x0f;
            gid
        }
        (LinkLayer::InfiniBand, Address::V6(address)) if is_chosen_gid(address.ip().octets()) => {
            address.ip().octets()
        }
        (LinkLayer::InfiniBand, Address::V6(address)) => {
            let mut gid = of_ip([0x60, 0x1b]);
            gid[6..].copy_from_slice(&address.ip().octets()[6..]);
            gid
        }
    }
}

/// Returns the LID of a group. A subnet manager chooses one; here it is derived from the GID, so that all cards agree.
fn group_lid(gid: &[u8; 16]) -> u16 {
    let sum = gid.iter().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
    let (first, last) = (*MULTICAST_LIDS.start(), *MULTICAST_LIDS.end());
    first + (sum % u32::from(last - first + 1)) as u16
}

/// Returns the address of a group, for address handles; `None` for a card without a GID.
pub(crate) fn group_handle(open: &OpenCard, gid: [u8; 16]) -> Option<AhAttr> {
    let node = open.card.node();
    let gids = super::message::Gids { source: open.card.gid_of(node)?, destination: gid };
    let handle = address_handle(open, &gids)?;
    let dlid = if open.card.link_layer() == LinkLayer::Ethernet { 0 } else { group_lid(&gid) };
    Some(AhAttr { dlid, is_global: 1, ..handle })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    #[test]
    fn addresses_become_gids_as_the_kernel_makes_them() {
        use LinkLayer::{Ethernet, InfiniBand};
        let gid = |link, space, ip: &str| {
            Ipv6Addr::from(gid_of(link, 0xffff, space, &Address::of(ip.parse().unwrap(), 7)))
        };
        let expect = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        assert_eq!(gid(InfiniBand, space::UDP, "239.1.2.3"), expect("ff12:4001:ffff::f01:203"));
        assert_eq!(gid(InfiniBand, space::IPOIB, "239.1.2.3"), expect("ff12:401b:ffff::f01:203"));
        assert_eq!(gid(InfiniBand, space::UDP, "ff0e:1::9"), expect("ff12:6001:ffff::9"));
        assert_eq!(gid(InfiniBand, space::UDP, "ff12:a01b:fe80::9"), expect("ff12:a01b:fe80::9"));
        let other = gid_of(InfiniBand, 0x8001, space::IPOIB, &Address::of("239.1.2.3".parse().unwrap(), 7));
        assert_eq!(Ipv6Addr::from(other), expect("ff12:401b:8001::f01:203"));
        assert_eq!(gid(Ethernet, space::UDP, "239.1.2.3"), expect("::ffff:239.1.2.3"));
        assert_eq!(gid(Ethernet, space::UDP, "ff0e::9"), expect("ff0e::9"));
        for last in 0..=255 {
            assert!(MULTICAST_LIDS.contains(&group_lid(&[last; 16])));
        }
    }
}
