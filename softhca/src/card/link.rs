//! What a port is on: its link layer and its table of GIDs.

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID, or by GID.
    InfiniBand,
    /// Ethernet (RoCE): addressed by GID only; fronts report LID 0.
    Ethernet,
}

/// What a GID is good for (`enum ib_uverbs_gid_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// Of an InfiniBand port.
    InfiniBand,
    /// RoCE v1: InfiniBand's network header in an Ethernet frame.
    RoceV1,
    /// RoCE v2: UDP over IPv6, or over IPv4 where the GID is an IPv4-mapped address.
    RoceV2,
}

/// An entry of a port's table of GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID. It ends with the port's LID.
    pub gid: [u8; 16],
    /// What it is good for.
    pub kind: GidKind,
}

impl GidEntry {
    /// Whether packets with this source GID have an IPv4 header.
    pub(super) fn is_ipv4(&self) -> bool {
        self.kind == GidKind::RoceV2 && self.gid.starts_with(&IPV4_MAPPED)
    }
}

/// What IPv4-mapped IPv6 addresses begin with (RFC 4291, 2.5.5.2).
pub(super) const IPV4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// A port's identity.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    pub(super) link: LinkLayer,
    /// Where the fabric delivers its packets, on either link layer.
    pub(super) lid: u16,
}

impl Port {
    /// An EUI-64 of the locally administered range that ends with the LID.
    pub(super) fn guid(&self) -> u64 {
        0x0200_00ff_fe00_0000 | u64::from(self.lid)
    }

    /// The table of GIDs.
    pub(super) fn gids(&self) -> Vec<GidEntry> {
        (0..).map_while(|index| self.gid(index)).collect()
    }

    /// An entry of that table.
    pub(super) fn gid(&self, index: u8) -> Option<GidEntry> {
        let prefix = 0xfe80_0000_0000_0000_u64;
        let local = (u128::from(prefix) << 64 | u128::from(self.guid())).to_be_bytes();
        let mut mapped = [0; 16];
        mapped[..12].copy_from_slice(&IPV4_MAPPED);
        mapped[12..14].copy_from_slice(&[10, 83]);
        mapped[14..].copy_from_slice(&self.lid.to_be_bytes());
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

/// The LID that a software card's GID ends with.
pub(super) fn lid_of(gid: &[u8; 16]) -> u16 {
    u16::from_be_bytes([gid[14], gid[15]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gid_ends_with_the_lid() {
        for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
            let gids = Port { link, lid: 0x1234 }.gids();
            assert!(gids.iter().all(|entry| lid_of(&entry.gid) == 0x1234));
        }
    }

    #[test]
    fn an_ethernet_port_has_link_local_and_ipv4_gids_of_both_versions() {
        let gids = Port { link: LinkLayer::Ethernet, lid: 0x1234 }.gids();
        let kinds: Vec<GidKind> = gids.iter().map(|entry| entry.kind).collect();
        assert_eq!(kinds, [GidKind::RoceV1, GidKind::RoceV2, GidKind::RoceV1, GidKind::RoceV2]);
        assert_eq!((gids[0].gid, gids[2].gid), (gids[1].gid, gids[3].gid));
        assert_eq!(gids[0].gid[..2], [0xfe, 0x80]);
        assert_eq!(gids[3].gid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 83, 0x12, 0x34]);
        assert_eq!(gids.iter().map(GidEntry::is_ipv4).collect::<Vec<_>>(), [false, false, false, true]);
        let infiniband = Port { link: LinkLayer::InfiniBand, lid: 7 }.gids();
        assert_eq!((infiniband.len(), infiniband[0].kind), (1, GidKind::InfiniBand));
    }
}
