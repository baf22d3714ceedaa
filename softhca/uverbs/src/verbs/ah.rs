//! Address handles, and checks of addresses.

use super::port::PORT;
use crate::attributes::Request;
use crate::context::{Context, Object};
use crate::errno::{Errno, Result};
use crate::uapi::ioctl::{attr, object};
use crate::uapi::mlx5::CreateAhResp;
use crate::uapi::queues::QpDest;
use crate::uapi::verbs::CreateAh;
use softhca::card::{Address, Card, LinkLayer, Transport, is_multicast};
use std::mem::offset_of;
use zerocopy::FromZeros;

/// Checks a global route: Ethernet requires one, and the source must be in the card's GID table.
fn check_route(card: &Card, is_global: u8, sgid_index: u8) -> Result<()> {
    if is_global == 0 {
        return match card.link_layer() {
            LinkLayer::InfiniBand => Ok(()),
            LinkLayer::Ethernet => {
                tracing::warn!("an address on Ethernet needs a GID (is_global and grh)");
                Err(Errno::INVALID)
            }
        };
    }
    let known = card.gids().len();
    if usize::from(sgid_index) < known {
        Ok(())
    } else {
        tracing::warn!(sgid_index, known, "there is no source GID of this index");
        Err(Errno::INVALID)
    }
}

/// Checks a static rate as `ib_rate_to_mlx5` does; 0 is the port's.
fn check_rate(static_rate: u8) -> Result<()> {
    /// `IB_RATE_2_5_GBPS` to `IB_RATE_800_GBPS`.
    const RATES: std::ops::RangeInclusive<u8> = 2..=23;
    if static_rate == 0 || RATES.contains(&static_rate) {
        return Ok(());
    }
    tracing::warn!(static_rate, "a static rate that no kernel knows");
    Err(Errno::INVALID)
}

/// Returns a queue pair's destination. `mlx5_ib_modify_dct` does not look at the rate, and NVSHMEM leaves it undefined.
pub(crate) fn address_of(card: &Card, dest: &QpDest, transport: Transport) -> Result<Address> {
    if transport != Transport::DcTarget {
        check_rate(dest.static_rate)?;
    }
    check_route(card, dest.is_global, dest.sgid_index)?;
    Ok(Address { dlid: dest.dlid, gid: (dest.is_global != 0).then_some(dest.dgid) })
}

/// Returns the destination's MAC address. A software card derives its own from its LID, the end of its GIDs;
/// that of a multicast group derives from its IP address (RFC 1112, 6.4; RFC 2464, 7).
pub(crate) fn mac_of(gid: &[u8; 16]) -> [u8; 6] {
    let [.., a, b, c, d] = *gid;
    match gid[0] {
        0xff => [0x33, 0x33, a, b, c, d],
        _ if is_multicast(gid) => [0x01, 0, 0x5e, b & 0x7f, c, d],
        _ => [0x02, 0, 0, 0, c, d],
    }
}

/// `CREATE_AH`. The answer includes the destination's MAC address.
pub(crate) fn create(context: &Context, request: &Request) -> Result<()> {
    let asked: CreateAh = request.structure(attr::CORE_IN)?;
    let is_ethernet = context.card().link_layer() == LinkLayer::Ethernet;
    let has_room = request.len(attr::UHW_OUT) >= offset_of!(CreateAhResp, reserved);
    // The driver answers the MAC address on Ethernet.
    if asked.attr.port_num != PORT || is_ethernet && !has_room {
        return Err(Errno::INVALID);
    }
    check_rate(asked.attr.static_rate)?;
    check_route(context.card(), asked.attr.is_global, asked.attr.grh.sgid_index)?;
    let mut objects = context.objects.lock();
    objects.number(object::PD, asked.pd_handle)?;
    // libmlx5 puts the address into each work request, so the card keeps nothing.
    let handle = objects.add(Object::new(object::AH, None).using([asked.pd_handle]));
    drop(objects);
    request.answer_with(attr::CORE_OUT, &handle)?;
    let answer = CreateAhResp {
        response_length: size_of::<CreateAhResp>() as u32,
        dmac: mac_of(&asked.attr.grh.dgid),
        ..CreateAhResp::new_zeroed()
    };
    request.answer_with(attr::UHW_OUT, &answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_addresses_of_their_ip_versions() {
        let mapped = |ip: [u8; 4]| std::net::Ipv4Addr::from(ip).to_ipv6_mapped().octets();
        assert_eq!(mac_of(&mapped([10, 83, 1, 2])), [2, 0, 0, 0, 1, 2]);
        assert_eq!(mac_of(&mapped([239, 0x81, 1, 2])), [1, 0, 0x5e, 1, 1, 2]);
        assert_eq!(mac_of(&[0xff; 16]), [0x33, 0x33, 0xff, 0xff, 0xff, 0xff]);
    }
}
