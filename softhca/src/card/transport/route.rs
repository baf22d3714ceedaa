//! Routes of datagrams: their destination, and the network header before their payload.

use crate::card::context::Context;
use crate::card::port::{GidEntry, GidKind, LinkLayer, MULTICAST_LIDS, Port, is_multicast};
use crate::card::queue::WqeError;
use crate::card::queue::wqe::Work;
use crate::fabric::{MULTICAST, Node};
use crate::packet::{GLOBAL, Header};
use gdsync_sys::prm::cqe::{L3_GRH, L3_IPV4, L3_IPV6, Syndrome};
use gdsync_sys::prm::wqe::{AddressVector, GrhFields};
use zerocopy::byteorder::big_endian::{U32, U64};

/// Bytes at the start of a receive that hold a datagram's network header.
pub(super) const GRH_BYTES: u32 = 40;
/// Top bit of a Q_Key in a work request: use the queue pair's own Q_Key (IB specification, 10.2.5).
const OWN_QKEY: u32 = 1 << 31;
/// Bytes of an IPv4 header: the last 20 of the 40.
const IPV4_BYTES: usize = 20;
/// Next header of a GRH: InfiniBand's transport (IB specification, 8.3.5).
const NEXT_TRANSPORT: u8 = 0x1b;
const NEXT_UDP: u8 = 17;
/// Bytes around a datagram's data: base and datagram transport headers, and the invariant checksum.
const TRANSPORT_BYTES: u16 = 12 + 8 + 4;
const UDP_BYTES: u16 = 8;

/// Returns the destination of a datagram: the node of the queue pair at the LID of its address vector, on Ethernet at
/// its GID, or the multicast node for a multicast address.
pub(super) fn destination(vector: &AddressVector, port: Port) -> Node {
    match port.link {
        LinkLayer::InfiniBand => match vector.fields() {
            to if MULTICAST_LIDS.contains(&to.dlid) => MULTICAST,
            to => port.node_of(to.dlid, None, to.qpn),
        },
        LinkLayer::Ethernet => match vector.route().gid {
            gid if is_multicast(&gid) => MULTICAST,
            gid => port.node_of(0, Some(&gid), vector.fields().qpn),
        },
    }
}

/// Returns the global route of a datagram and its source GID. It is optional on InfiniBand; on Ethernet every datagram
/// has one.
///
/// # Errors
/// The source is not in the port's GID table.
fn route(vector: &AddressVector, port: Port) -> Result<Option<(GrhFields, GidEntry)>, String> {
    if port.link == LinkLayer::InfiniBand && vector.fields().grh.is_none() {
        return Ok(None);
    }
    let route = vector.route();
    match port.gid(route.gid_index) {
        Some(source) => Ok(Some((route, source))),
        None => Err(format!("the port's table has no GID {}", route.gid_index)),
    }
}

/// Checks that the port has the source GID of a datagram.
pub(super) fn check(work: Work, port: Port) -> Result<Work, WqeError> {
    let routed = work.to.as_ref().map_or(Ok(None), |vector| route(vector, port));
    let unroutable =
        |message| WqeError { syndrome: Syndrome::LocalQpOperation, field: "grh_gid_fl", message };
    routed.map_err(unroutable)?;
    Ok(work)
}

/// Returns the network header that the receiver gets: 40 bytes; an IPv4 header takes the last 20 of them.
fn network_header(route: &GrhFields, source: &GidEntry, length: u32) -> [u8; GRH_BYTES as usize] {
    let mut header = [0; GRH_BYTES as usize];
    // A datagram has at most 4096 bytes.
    let inside = length.next_multiple_of(4) as u16 + TRANSPORT_BYTES;
    if source.is_ipv4() {
        ipv4_header(route, source, inside + UDP_BYTES, &mut header);
        return header;
    }
    let (inside, next) = match source.kind {
        GidKind::RoceV2 => (inside + UDP_BYTES, NEXT_UDP),
        GidKind::InfiniBand | GidKind::RoceV1 => (inside, NEXT_TRANSPORT),
    };
    let first = 6 << 28 | u32::from(route.traffic_class) << 20 | route.flow_label & 0xf_ffff;
    header[..4].copy_from_slice(&first.to_be_bytes());
    header[4..6].copy_from_slice(&inside.to_be_bytes());
    header[6] = next;
    header[7] = route.hop_limit;
    header[8..24].copy_from_slice(&source.gid);
    header[24..].copy_from_slice(&route.gid);
    header
}

fn ipv4_header(route: &GrhFields, source: &GidEntry, inside: u16, header: &mut [u8; GRH_BYTES as usize]) {
    let ip = &mut header[GRH_BYTES as usize - IPV4_BYTES..];
    let total = inside + IPV4_BYTES as u16;
    ip[0] = 4 << 4 | (IPV4_BYTES / 4) as u8;
    ip[1] = route.traffic_class;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    // Do not fragment.
    ip[6] = 0x40;
    ip[8] = route.hop_limit;
    ip[9] = NEXT_UDP;
    ip[12..16].copy_from_slice(&source.gid[12..]);
    ip[16..20].copy_from_slice(&route.gid[12..]);
    let words = ip.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Returns a field of the completion entry: the type of the network header on Ethernet, the service level on
/// InfiniBand.
fn level_or_l3_type(vector: &AddressVector, source: Option<&GidEntry>) -> u8 {
    match source {
        Some(source) if source.is_ipv4() => L3_IPV4,
        Some(GidEntry { kind: GidKind::RoceV2, .. }) => L3_IPV6,
        Some(GidEntry { kind: GidKind::RoceV1, .. }) => L3_GRH,
        Some(GidEntry { kind: GidKind::InfiniBand, .. }) | None => vector.fields().service_level,
    }
}

/// Fills in the header of a datagram, and puts the network header before its payload.
pub(super) fn address(vector: &AddressVector, header: &mut Header, own_qkey: u32, context: &mut Context<'_>) {
    let fields = vector.fields();
    header.dest_qpn = U32::new(fields.qpn);
    let qkey = if fields.qkey & OWN_QKEY != 0 { own_qkey } else { fields.qkey };
    header.rkey = U32::new(qkey);
    header.addr = U64::new(context.port.lid.into());
    // An unknown source was refused when the request was fetched.
    let route = route(vector, context.port).ok().flatten();
    let level = level_or_l3_type(vector, route.as_ref().map(|(_, source)| source));
    header.srqn_or_level = U32::new(level.into());
    if let Some((route, source)) = route {
        header.flags |= GLOBAL;
        if is_multicast(&route.gid) {
            header.set_group(route.gid);
        }
        context.payload.push_prefix(&network_header(&route, &source, header.length.get()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync_sys::prm::wqe::AddressFields;

    fn vector(gid_index: u8, has_bit: bool) -> AddressVector {
        let grh = GrhFields { traffic_class: 3, hop_limit: 64, gid_index, flow_label: 0x12345, gid: [9; 16] };
        let fields = AddressFields { dlid: 0x77, grh: Some(grh), ..AddressFields::default() };
        let mut bytes: [u8; 48] = zerocopy::transmute!(AddressVector::new(&fields));
        bytes[28] &= if has_bit { 0xff } else { 0xbf };
        zerocopy::transmute!(bytes)
    }

    #[test]
    fn the_route_follows_the_bit_on_infiniband_and_is_always_there_on_ethernet() {
        let port = |link| Port::new(0, link, 7, None);
        let (infiniband, ethernet) = (port(LinkLayer::InfiniBand), port(LinkLayer::Ethernet));
        assert_eq!(route(&vector(0, false), infiniband), Ok(None));
        assert!(route(&vector(0, true), infiniband).is_ok_and(|route| route.is_some()));
        assert!(route(&vector(3, false), ethernet).is_ok_and(|route| route.is_some()));
        assert!(route(&vector(1, true), infiniband).is_err());
        assert!(route(&vector(4, false), ethernet).is_err());
        assert_eq!([infiniband, ethernet].map(|port| destination(&vector(0, false), port)), [0; 2]);
        let to = |dlid, gid| {
            AddressVector::new(&AddressFields {
                dlid,
                qpn: ethernet.qpn(0x1234),
                grh: Some(GrhFields { gid, ..GrhFields::default() }),
                ..AddressFields::default()
            })
        };
        let (group, mut mapped) = ([0xff; 16], ethernet.gid(3).unwrap().gid);
        assert_eq!(destination(&to(0x77, mapped), ethernet), 7);
        mapped[12] = 239;
        for gid in [group, mapped] {
            assert_eq!(destination(&to(0x77, gid), ethernet), MULTICAST);
            assert_eq!(destination(&to(infiniband.lid, gid), infiniband), 7);
            assert_eq!(destination(&to(0xc000, gid), infiniband), MULTICAST);
            assert_eq!(destination(&to(0xffff, gid), infiniband), 0);
        }
    }

    #[test]
    fn network_headers_of_every_kind() {
        let port = Port::new(0, LinkLayer::Ethernet, 7, None);
        let header = |index| {
            let (route, source) = route(&vector(index, false), port).unwrap().unwrap();
            (network_header(&route, &source, 5), source)
        };
        // IB specification, 8.3: version, class, flow; length after this header; next header; hops; source;
        // destination.
        let (grh, source) = header(0);
        assert_eq!(grh[..8], [0x60, 0x31, 0x23, 0x45, 0, 32, 0x1b, 64]);
        assert_eq!((&grh[8..24], &grh[24..]), (&source.gid[..], &[9; 16][..]));
        // RoCE v2: UDP inside.
        assert_eq!(header(1).0[4..8], [0, 40, 17, 64]);
        let (ipv4, source) = header(3);
        assert_eq!(ipv4[..20], [0; 20]);
        assert_eq!(ipv4[20..30], [0x45, 3, 0, 60, 0, 0, 0x40, 0, 64, 17]);
        assert_eq!((&ipv4[32..36], &ipv4[36..]), (&source.gid[12..], &[9; 4][..]));
        let words = ipv4[20..].chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        let sum = words.sum::<u32>();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum of RFC 791");
    }
}
