//! Address handles, and addresses in general.

use crate::attributes::Request;
use crate::context::{Context, Object};
use crate::errno::{Errno, Result};
use crate::uapi::ioctl::attr;
use crate::uapi::mlx5::CreateAhResp;
use crate::uapi::verbs::{CreateAh, QpDest};
use softhca::card::{Address, Card, LinkLayer};
use zerocopy::FromZeros;

/// An address handle. libmlx5 puts the address itself into each work request: the card keeps nothing.
#[derive(Debug)]
pub(crate) struct Ah {
    /// The protection domain's number.
    pub(crate) pdn: u32,
}

/// Checks a global route: Ethernet needs one, and the source must be in the card's table.
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

/// A queue pair's destination. The port number of the path may be missing: there is only one.
pub(crate) fn address_of(card: &Card, dest: &QpDest) -> Result<Address> {
    check_route(card, dest.is_global, dest.sgid_index)?;
    Ok(Address { dlid: dest.dlid, gid: (dest.is_global != 0).then_some(dest.dgid) })
}

/// `CREATE_AH`; answers the destination's MAC address, too. A software card's is made of its LID, with which its GIDs end.
pub(crate) fn create(context: &Context, request: &Request) -> Result<()> {
    let asked: CreateAh = request.structure(attr::CORE_IN)?;
    if asked.attr.port_num != crate::port::PORT {
        return Err(Errno::INVALID);
    }
    check_route(context.card(), asked.attr.is_global, asked.attr.grh.sgid_index)?;
    let mut objects = context.objects.lock();
    let pdn = objects.pd(asked.pd_handle)?.number;
    let handle = objects.add(Object::Ah(Ah { pdn }));
    drop(objects);
    request.answer_with(attr::CORE_OUT, &handle)?;
    let gid = asked.attr.grh.dgid;
    let answer = CreateAhResp {
        response_length: size_of::<CreateAhResp>() as u32,
        dmac: [0x02, 0, 0, 0, gid[14], gid[15]],
        ..CreateAhResp::new_zeroed()
    };
    request.answer_with(attr::UHW_OUT, &answer)
}

pub(crate) fn destroy(context: &Context, request: &Request) -> Result<()> {
    context.destroy(request.handle(attr::HANDLE)?, |_, object, _| {
        if let Object::Ah(_) = object { Ok(()) } else { Err(Errno::INVALID) }
    })
}
