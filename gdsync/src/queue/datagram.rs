//! Where a datagram came from: what its completion and the header before it say.

use crate::verbs::{Endpoint, Error, Gid, LinkLayer, ParseError};
use gdsync_sys::prm::cqe::{Cqe64, L3_IPV4, L3_IPV6};

/// Bytes at the start of every receive of a UD queue pair: the network header, or nothing
/// meaningful where there was none. The datagram's data follow.
pub const GRH_BYTES: usize = 40;

/// The network header of a datagram, in the first [`GRH_BYTES`] of its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NetworkHeader {
    /// InfiniBand's global route header (RoCE v1 has it, too).
    Grh,
    /// An IPv6 header (RoCE v2), which has the same fields in the same places.
    Ipv6,
    /// An IPv4 header (RoCE v2), in the last 20 of the 40 bytes.
    Ipv4,
}

/// Where a received datagram came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DatagramSource {
    /// The queue pair that sent it.
    pub qp_num: u32,
    /// The LID of its port; 0 on Ethernet.
    pub lid: u16,
    /// InfiniBand's service level; 0 on Ethernet.
    pub service_level: u8,
    /// The header in the first [`GRH_BYTES`] of the receive, where there is one.
    pub header: Option<NetworkHeader>,
}

impl DatagramSource {
    /// What a responder's entry says on a port of that kind.
    pub(crate) fn new(cqe: &Cqe64, link: LinkLayer) -> Self {
        let (path, ethernet) = (cqe.path(), link == LinkLayer::Ethernet);
        let header = path.has_grh.then_some(match path.level_or_l3_type {
            L3_IPV4 if ethernet => NetworkHeader::Ipv4,
            L3_IPV6 if ethernet => NetworkHeader::Ipv6,
            // On InfiniBand there is nothing else, and the field is the service level.
            _ => NetworkHeader::Grh,
        });
        let service_level = if ethernet { 0 } else { path.level_or_l3_type };
        DatagramSource { qp_num: cqe.remote_qpn(), lid: path.slid, service_level, header }
    }

    /// The endpoint that sent the datagram, to answer it: `own` is that of the queue pair which
    /// received it, `receive` the start of the receive. Its packet sequence number is not known,
    /// and of no concern to datagrams.
    ///
    /// # Errors
    /// [`ParseError`](crate::verbs::ParseError) where the header is shorter than [`GRH_BYTES`], or
    /// is missing where only it names the sender.
    pub fn endpoint(&self, own: &Endpoint, receive: &[u8]) -> Result<Endpoint, Error> {
        let bad = |reason: String| Error::Parse(ParseError { what: "network header of a datagram", reason });
        let header: Option<&[u8; GRH_BYTES]> = receive.first_chunk();
        let gid = match (self.header, header) {
            (Some(_), None) => {
                return Err(bad(format!("{} bytes are given, it has {GRH_BYTES}", receive.len())));
            }
            (Some(NetworkHeader::Ipv4), Some(header)) => ipv4_source(header),
            (Some(_), Some(header)) => ipv6_source(header),
            (None, _) if own.kind.link() == LinkLayer::Ethernet => {
                return Err(bad("there is none, and an Ethernet port is named by nothing else".to_owned()));
            }
            // Of the same subnet, where the LID says all.
            (None, _) => own.gid,
        };
        Ok(Endpoint { qpn: self.qp_num, psn: 0, lid: self.lid, gid, ..*own })
    }
}

/// IB specification, 8.3: the source is at byte 8. The same in RFC 8200.
fn ipv6_source(header: &[u8; GRH_BYTES]) -> Gid {
    let mut gid = [0; 16];
    gid.copy_from_slice(&header[8..24]);
    Gid(gid)
}

/// RFC 791, from byte 20 on: the source is at its byte 12. As a GID it is an IPv4-mapped IPv6
/// address.
fn ipv4_source(header: &[u8; GRH_BYTES]) -> Gid {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&header[32..36]);
    Gid(gid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::device::Mtu;
    use crate::verbs::gid::GidKind;
    use gdsync_sys::prm::cqe::{CqeOpcode, PathFields};

    fn source(link: LinkLayer, level_or_l3_type: u8, has_grh: bool) -> DatagramSource {
        let cqe = Cqe64::responder(CqeOpcode::RespSend, 1, 0x77, 0, 0, [0; 4], false);
        DatagramSource::new(&cqe.with_path(PathFields { slid: 5, level_or_l3_type, has_grh }), link)
    }

    fn own(kind: GidKind) -> Endpoint {
        Endpoint { qpn: 1, psn: 2, kind, lid: 3, gid: Gid([9; 16]), mtu: Mtu::Bytes4096 }
    }

    #[test]
    fn the_field_is_a_level_on_infiniband_and_a_header_on_ethernet() {
        let told = |link, field, grh| {
            let source = source(link, field, grh);
            (source.service_level, source.header)
        };
        assert_eq!(told(LinkLayer::InfiniBand, 2, false), (2, None));
        assert_eq!(told(LinkLayer::InfiniBand, 2, true), (2, Some(NetworkHeader::Grh)));
        assert_eq!(told(LinkLayer::Ethernet, 0, true), (0, Some(NetworkHeader::Grh)));
        assert_eq!(told(LinkLayer::Ethernet, 1, true), (0, Some(NetworkHeader::Ipv6)));
        assert_eq!(told(LinkLayer::Ethernet, 2, true), (0, Some(NetworkHeader::Ipv4)));
    }

    #[test]
    fn the_sender_is_read_from_the_header() {
        let header: Vec<u8> = (0..40).collect();
        let ib = source(LinkLayer::InfiniBand, 0, true).endpoint(&own(GidKind::InfiniBand), &header).unwrap();
        assert_eq!((ib.qpn, ib.lid, ib.gid.0), (0x77, 5, std::array::from_fn(|i| i as u8 + 8)));
        let near = source(LinkLayer::InfiniBand, 0, false).endpoint(&own(GidKind::InfiniBand), &[]).unwrap();
        assert_eq!((near.lid, near.gid), (5, Gid([9; 16])));
        let v4 = source(LinkLayer::Ethernet, 2, true).endpoint(&own(GidKind::RoceV2), &header).unwrap();
        assert_eq!(v4.gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 32, 33, 34, 35]);
        let short = source(LinkLayer::Ethernet, 1, true).endpoint(&own(GidKind::RoceV2), &header[..39]);
        assert!(short.unwrap_err().to_string().contains("39 bytes"));
        let none = source(LinkLayer::Ethernet, 1, false).endpoint(&own(GidKind::RoceV2), &header);
        assert!(none.unwrap_err().to_string().contains("there is none"));
    }
}
