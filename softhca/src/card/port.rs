//! The port of a card: its link layer, its addresses and its GID table.

use crate::fabric::{Group, MAX_PAYLOAD, Node, OWN_QPN_BITS, address_of, is_unicast, node};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

/// Maximum payload of a packet in bytes. It is larger than any path MTU, which programs cannot observe.
pub(crate) const MTU: u32 = MAX_PAYLOAD as u32;

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand: packets are addressed by LID or by GID.
    InfiniBand,
    /// Ethernet (RoCE): packets are addressed by GID; the reported LID is 0.
    Ethernet,
}

/// `IB_UVERBS_PCF_IP_BASED_GIDS`: the GIDs may be IP addresses.
const IP_BASED_GIDS: u32 = 1 << 26;

impl LinkLayer {
    /// Returns the capabilities of a port (`enum ib_uverbs_query_port_cap_flags`).
    pub fn capability_flags(self) -> u32 {
        match self {
            LinkLayer::InfiniBand => 0,
            LinkLayer::Ethernet => IP_BASED_GIDS,
        }
    }
}

/// Kind of a GID (`enum ib_uverbs_gid_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// GID of an InfiniBand port.
    InfiniBand,
    /// RoCE v1: InfiniBand's network header in an Ethernet frame.
    RoceV1,
    /// RoCE v2: UDP over IPv6, or over IPv4 if the GID is an IPv4-mapped address.
    RoceV2,
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID. It ends with the port's LID or IPv4 address.
    pub gid: [u8; 16],
    /// Its kind.
    pub kind: GidKind,
}

impl GidEntry {
    /// Returns whether packets with this source GID have an IPv4 header.
    pub(crate) fn is_ipv4(&self) -> bool {
        self.kind == GidKind::RoceV2 && self.gid.starts_with(&IPV4_MAPPED)
    }
}

/// First bytes of IPv4-mapped IPv6 addresses (RFC 4291, 2.5.5.2).
pub(crate) const IPV4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// LIDs of multicast groups (IB specification, 4.1.3).
pub const MULTICAST_LIDS: RangeInclusive<u16> = 0xc000..=0xfffe;

/// Returns whether a GID is a multicast GID: an IPv6 multicast address, or an IPv4-mapped one.
pub fn is_multicast(gid: &[u8; 16]) -> bool {
    gid[0] == 0xff || gid.starts_with(&IPV4_MAPPED) && gid[12] >> 4 == 0xe
}

/// The prefix of link-local addresses (RFC 4291, 2.5.6).
const LINK_LOCAL: u64 = 0xfe80_0000_0000_0000;
/// First bytes of interface identifiers made of IPv4 addresses.
const ISATAP: u64 = 0x0200_5efe_0000_0000;

/// Maximum number of devices of a process.
pub const MAX_DEVICES: usize = 8;

/// The LID of a host's first device. Those of further devices follow.
const FIRST_LID: u16 = 1;
/// The LIDs of a host's devices.
const LIDS: RangeInclusive<u16> = FIRST_LID..=FIRST_LID + MAX_DEVICES as u16 - 1;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) link: LinkLayer,
    /// On the fabric of one host: its LID, the same for every process that opens the device. 0 on the fabric of several.
    pub(crate) lid: u16,
    /// The card's number, by which those of its queue pairs begin.
    pub(crate) number: u16,
    /// On the fabric of several hosts: its IPv4 address, the same for every process that opens the device.
    pub(crate) ipv4: Option<Ipv4Addr>,
    /// Maximum payload of a packet in bytes, the same for all cards of the fabric.
    pub(crate) mtu: u32,
}

impl Port {
    /// The port of device `device` of this host.
    pub(crate) fn new(device: usize, link: LinkLayer, number: u16, ipv4: Option<Ipv4Addr>) -> Self {
        let lid = if ipv4.is_some() { 0 } else { FIRST_LID + device.min(MAX_DEVICES - 1) as u16 };
        Port { link, lid, number, ipv4, mtu: MTU }
    }

    /// Returns an EUI-64 of the locally administered range that ends with the LID, or an interface identifier of the
    /// IPv4 address (RFC 5214, 6.1).
    pub(crate) fn guid(&self) -> u64 {
        match self.ipv4 {
            Some(address) => ISATAP | u64::from(u32::from(address)),
            None => 0x0200_00ff_fe00_0000 | u64::from(self.lid),
        }
    }

    /// Returns the number of packets of a message of `length` bytes. An empty message has one packet.
    pub(crate) fn packets_of(&self, length: u32) -> u32 {
        length.div_ceil(self.mtu).max(1)
    }

    pub(crate) fn node(&self) -> Node {
        node(self.ipv4, self.number)
    }

    /// Returns the number of a queue pair whose own part is `own`.
    pub(crate) fn qpn(&self, own: u32) -> u32 {
        u32::from(self.number) << OWN_QPN_BITS | own & ((1 << OWN_QPN_BITS) - 1)
    }

    /// Returns the node of queue pair `qpn` at an address: a LID, or a GID if there is one. 0 if no card is there.
    pub(crate) fn node_of(&self, dlid: u16, gid: Option<&[u8; 16]>, qpn: u32) -> Node {
        let number = (qpn >> OWN_QPN_BITS) as u16;
        match (self.ipv4, gid) {
            (Some(_), Some(gid)) => ipv4_in(gid).map_or(0, |address| node(Some(address), number)),
            (None, _) if LIDS.contains(&gid.map_or(dlid, lid_of)) => node(None, number),
            _ => 0,
        }
    }

    /// Returns whether the port has an IP address, IPv4 as an IPv4-mapped one, among its GIDs or, on InfiniBand, among
    /// those that it would have on Ethernet.
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        let gid = gid_at(address);
        Port { link: LinkLayer::Ethernet, ..*self }.gids().iter().any(|entry| entry.gid == gid)
    }

    /// Returns the IPv4 address of the cards that have an IP address among their GIDs, on the fabric of several hosts.
    pub(crate) fn ipv4_of(&self, address: IpAddr) -> Option<Ipv4Addr> {
        self.ipv4?;
        ipv4_in(&gid_at(address))
    }

    /// Returns the GID by which a connection reaches the card at a node: as on real cards IPv4-mapped on Ethernet, the
    /// port's GUID on InfiniBand. On the fabric of one host, cards of this port's device are reached by its own.
    pub(crate) fn gid_of(&self, node: Node) -> Option<[u8; 16]> {
        let gids = self.of_node(node)?.gids();
        gids.last().map(|entry| entry.gid)
    }

    /// Returns the port of the card at a node of this fabric; `None` if no card is there.
    fn of_node(&self, node: Node) -> Option<Port> {
        let ipv4 = address_of(node);
        (node != 0 && ipv4.is_some() == self.ipv4.is_some()).then_some(Port {
            number: node as u16,
            ipv4,
            ..*self
        })
    }

    /// Returns a LID as completion entries have it: 0 on Ethernet.
    pub(crate) fn reported(&self, lid: u16) -> u16 {
        match self.link {
            LinkLayer::InfiniBand => lid,
            LinkLayer::Ethernet => 0,
        }
    }

    pub(crate) fn gids(&self) -> Vec<GidEntry> {
        (0..).map_while(|index| self.gid(index)).collect()
    }

    pub(crate) fn gid(&self, index: u8) -> Option<GidEntry> {
        let local = (u128::from(LINK_LOCAL) << 64 | u128::from(self.guid())).to_be_bytes();
        let mut mapped = [0; 16];
        mapped[..12].copy_from_slice(&IPV4_MAPPED);
        let [high, low] = self.lid.to_be_bytes();
        let address = self.ipv4.unwrap_or(Ipv4Addr::new(10, 83, high, low));
        mapped[12..].copy_from_slice(&address.octets());
        let (gid, kind) = match (self.link, index) {
            (LinkLayer::InfiniBand, 0) => (local, GidKind::InfiniBand),
            (LinkLayer::Ethernet, 0) => (local, GidKind::RoceV1),
            (LinkLayer::Ethernet, 1) => (local, GidKind::RoceV2),
            (LinkLayer::Ethernet, 2) => (mapped, GidKind::RoceV1),
            (LinkLayer::Ethernet, 3) => (mapped, GidKind::RoceV2),
            _ => return None,
        };
        Some(GidEntry { gid, kind })
    }
}

/// Returns the IPv4 address that a GID ends with on the fabric of several hosts; `None` for a GID that is no card's.
fn ipv4_in(gid: &[u8; 16]) -> Option<Ipv4Addr> {
    let [.., a, b, c, d] = *gid;
    let is_card = gid.starts_with(&IPV4_MAPPED)
        || gid.starts_with(&LINK_LOCAL.to_be_bytes()) && gid[8..12] == ISATAP.to_be_bytes()[..4];
    Some(Ipv4Addr::new(a, b, c, d)).filter(|address| is_card && is_unicast(*address))
}

fn gid_at(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns the LID that a card's GID ends with on the fabric of one host.
pub(crate) fn lid_of(gid: &[u8; 16]) -> u16 {
    u16::from_be_bytes([gid[14], gid[15]])
}

/// Queue pairs by the group that they are attached to.
#[derive(Debug, Default)]
pub(crate) struct GroupMembers {
    by_group: BTreeMap<Group, BTreeSet<u32>>,
}

impl GroupMembers {
    pub(crate) fn groups(&self) -> usize {
        self.by_group.len()
    }

    pub(crate) fn of(&self, group: &Group) -> impl ExactSizeIterator<Item = u32> {
        static NONE: BTreeSet<u32> = BTreeSet::new();
        self.by_group.get(group).unwrap_or(&NONE).iter().copied()
    }

    pub(crate) fn has(&self, group: &Group, qpn: u32) -> bool {
        self.by_group.get(group).is_some_and(|members| members.contains(&qpn))
    }

    pub(crate) fn add(&mut self, group: &Group, qpn: u32) {
        self.by_group.entry(*group).or_default().insert(qpn);
    }

    /// Detaches a queue pair. Returns true if the group has no member left.
    pub(crate) fn remove(&mut self, group: &Group, qpn: u32) -> bool {
        let Some(members) = self.by_group.get_mut(group) else { return false };
        members.remove(&qpn);
        let is_empty = members.is_empty();
        if is_empty {
            self.by_group.remove(group);
        }
        is_empty
    }

    pub(crate) fn groups_of(&self, qpn: u32) -> Vec<Group> {
        let is_member = |members: &BTreeSet<u32>| members.contains(&qpn);
        self.by_group.iter().filter(|(_, members)| is_member(members)).map(|(group, _)| *group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::MULTICAST_QPN;

    const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);

    #[test]
    fn every_process_of_a_host_sees_the_same_addresses() {
        for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
            let [one, other, second] =
                [(0, 5), (0, 510), (1, 6)].map(|(device, number)| Port::new(device, link, number, None));
            assert_eq!((one.lid, second.lid, one.gids()), (1, 2, other.gids()));
            assert!(
                [one, second]
                    .iter()
                    .all(|port| port.gids().iter().all(|entry| lid_of(&entry.gid) == port.lid))
            );
            assert_ne!(one.guid(), second.guid());
            assert_eq!(one.gid_of(510), one.gids().last().map(|entry| entry.gid));
            assert_eq!((one.gid_of(0), one.gid_of(0x7f00_0001_0005)), (None, None));
        }
    }

    #[test]
    fn the_number_of_a_queue_pair_tells_its_card() {
        let [one, other] = [5, 510].map(|number| Port::new(0, LinkLayer::InfiniBand, number, None));
        let [far, near] = [5, 510].map(|number| Port::new(0, LinkLayer::Ethernet, number, Some(HOST)));
        let (gid, of_several) = (one.gids()[0].gid, far.gids()[0].gid);
        for own in [0x40, 0x7fff, 0x8040, 0xff_ffff] {
            for (dlid, gid) in [(1, None), (8, None), (0, Some(&gid))] {
                assert_eq!(one.node_of(dlid, gid, other.qpn(own)), 510);
                assert_eq!(other.node_of(dlid, gid, one.qpn(own)), 5);
            }
            assert_eq!(far.node_of(0, Some(&of_several), near.qpn(own)), near.node());
            assert_eq!(near.node_of(0, Some(&of_several), far.qpn(own)), 0xc000_0207_0005);
            assert_ne!(other.qpn(own), MULTICAST_QPN);
        }
        for lid in [0, 9, 0xbfff] {
            assert_eq!(one.node_of(lid, None, other.qpn(0x40)), 0, "no device of the host has it");
        }
        for impossible in [0x7fff, MULTICAST_QPN] {
            assert_eq!(
                (one.node_of(1, None, impossible), far.node_of(0, Some(&of_several), impossible)),
                (0, 0)
            );
        }
    }

    #[test]
    fn a_port_of_several_hosts_is_found_by_each_of_its_gids_and_by_no_other() {
        let port = Port::new(0, LinkLayer::Ethernet, 7, Some(HOST));
        assert_eq!((port.node(), port.lid, port.qpn(0x40)), (0xc000_0207_0007, 0, 7 << 15 | 0x40));
        assert_eq!((port.gids().len(), port.gids()), (4, Port { number: 8, ..port }.gids()));
        assert!(
            port.gids().iter().all(|entry| port.node_of(0, Some(&entry.gid), port.qpn(7)) == port.node())
        );
        assert_eq!(port.gids()[3].gid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7]);
        let mut other = port.gids()[0].gid;
        other[8] = 1;
        assert_eq!([Some(&other), Some(&[7; 16]), None].map(|gid| port.node_of(5, gid, port.qpn(7))), [0; 3]);
    }

    #[test]
    fn ip_addresses_lead_to_the_cards_that_have_them() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
            let port = Port::new(1, link, 7, None);
            for own in ["10.83.0.2", "fe80::200:ff:fe00:2", "::ffff:10.83.0.2"] {
                assert!(port.has_address(ip(own)), "{own}");
                assert_eq!(port.ipv4_of(ip(own)), None, "{own}");
            }
            for other in ["10.83.0.1", "10.84.0.2", "127.0.0.1", "::1", "fe80::201:ff:fe00:2"] {
                assert!(!port.has_address(ip(other)), "{other}");
            }
        }
        let hosts = Port::new(0, LinkLayer::Ethernet, 7, Some(HOST));
        assert!(hosts.has_address(HOST.into()) && !hosts.has_address(ip("192.0.2.9")));
        for other in ["192.0.2.9", "::ffff:192.0.2.9", "fe80::200:5efe:c000:209"] {
            assert_eq!(hosts.ipv4_of(ip(other)), Some(Ipv4Addr::new(192, 0, 2, 9)), "{other}");
        }
        for none in ["::1", "0.0.0.0", "239.1.1.1"] {
            assert_eq!(hosts.ipv4_of(ip(none)), None, "{none}");
        }
        assert_eq!(hosts.gid_of(5), None);
        assert_eq!(hosts.gid_of(0xc000_0209_0003).unwrap()[12..], [192, 0, 2, 9]);
    }

    #[test]
    fn an_ethernet_port_has_link_local_and_ipv4_gids_of_both_versions() {
        let gids = Port { lid: 0x1234, ..Port::new(0, LinkLayer::Ethernet, 7, None) }.gids();
        let kinds: Vec<GidKind> = gids.iter().map(|entry| entry.kind).collect();
        assert_eq!(kinds, [GidKind::RoceV1, GidKind::RoceV2, GidKind::RoceV1, GidKind::RoceV2]);
        assert_eq!((gids[0].gid, gids[2].gid), (gids[1].gid, gids[3].gid));
        assert_eq!(gids[0].gid[..2], [0xfe, 0x80]);
        assert_eq!(gids[3].gid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 83, 0x12, 0x34]);
        assert_eq!(gids.iter().map(GidEntry::is_ipv4).collect::<Vec<_>>(), [false, false, false, true]);
        let infiniband = Port::new(0, LinkLayer::InfiniBand, 7, None).gids();
        assert_eq!((infiniband.len(), infiniband[0].kind), (1, GidKind::InfiniBand));
    }
}
