//! Targets of dynamically connected transport.

use super::message::{check_cq, check_length, check_pd, check_srq, created};
use super::modify::data_ordering;
use super::status::{Refusal, Syndrome};
use crate::context::{Context, Object, Objects};
use crate::resource::Resource;
use crate::uapi::devx::object;
use crate::verbs::port::PORT;
use gdsync_sys::prm::command::{dct, dctc};
use softhca::card::{Access, Address, LinkLayer, QpChange, QpConfig, QpState, Transport};

/// `CREATE_DCT`: a target serves as soon as it exists.
pub(super) fn create(
    context: &Context,
    objects: &Objects,
    input: &[u8],
) -> Result<(Object, Vec<u8>), Refusal> {
    check_length(input, dct::BYTES)?;
    let asked = &input[dct::CONTEXT..dct::CONTEXT + dctc::BYTES];
    if dctc::OFFLOAD_TYPE.is_set(asked) {
        let limit = "no offloads (offload_type 0)";
        return Err(Refusal::parameter(Syndrome::DctContext, dctc::OFFLOAD_TYPE.get(asked), limit));
    }
    let (pdn, cqn, srqn) = (dctc::PD.get32(asked), dctc::CQN.get32(asked), dctc::SRQN.get32(asked));
    check_pd(objects, pdn)?;
    check_cq(objects, cqn)?;
    check_srq(objects, srqn)?;
    let (card, source) = (context.card(), dctc::MY_ADDR_INDEX.get8(asked));
    let gid = card.gids().get(usize::from(source)).map(|entry| entry.gid);
    let is_ethernet = card.link_layer() == LinkLayer::Ethernet;
    if is_ethernet && gid.is_none() {
        let limit = "an index of the port's table of GIDs (my_addr_index)";
        return Err(Refusal::parameter(Syndrome::AddressPath, source, limit));
    }
    let config = QpConfig {
        pdn: Some(pdn),
        recv_cq: Some(cqn),
        srq: Some(srqn),
        dc_key: dctc::DC_ACCESS_KEY.get(asked),
        user_index: Some(dctc::USER_INDEX.get32(asked)),
        ..QpConfig::new(Transport::DcTarget)
    };
    let mut access = Access::empty();
    for (field, right) in [
        (dctc::RRE, Access::REMOTE_READ),
        (dctc::RWE, Access::REMOTE_WRITE),
        (dctc::RAE, Access::REMOTE_ATOMIC),
    ] {
        access.set(right, field.is_set(asked));
    }
    let bits = [dctc::DP_ORDERING_1, dctc::DP_ORDERING_0].map(|field| field.get8(asked));
    let ordering = data_ordering(bits, dctc::DP_ORDERING_FORCE.is_set(asked), Syndrome::DctContext)?;
    let init = QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(dctc::PKEY_INDEX.get(asked) as u16),
        // Cards with one port also accept 0 for it.
        port: Some(dctc::PORT.get8(asked).max(PORT)),
        access: Some(access),
        ordering,
        ..QpChange::default()
    };
    // A target has no destination: only the source of its address matters, which must exist.
    let ready = QpChange {
        state: Some(QpState::Rtr),
        address: Some(Address { dlid: 0, gid: gid.filter(|_| is_ethernet) }),
        path_mtu: Some(dctc::MTU.get8(asked).into()),
        min_rnr_timer: Some(dctc::MIN_RNR_NAK.get8(asked)),
        ..QpChange::default()
    };
    // SAFETY: it has no memory.
    let number = unsafe { card.create_qp(&config) }?;
    if let Err(error) = card.modify_qp(number, &init).and_then(|()| card.modify_qp(number, &ready)) {
        card.destroy_qp(number)?;
        return Err(error.into());
    }
    Ok((Object::new(object::DEVX_OBJ, Resource::Qp(number)), created(number)))
}
