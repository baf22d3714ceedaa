//! General commands: queries of the device.

use super::message::{EVENT_QUEUE, answer, done, opcode_of};
use super::status::{Failure, Refusal, Status, Syndrome};
use crate::attributes::Request;
use crate::context::Context;
use crate::errno::{Errno, Result};
use crate::uapi::devx::attr;
use crate::verbs::ah::mac_of;
use crate::verbs::device::COMPLETION_VECTORS;
use gdsync_sys::prm::command::{cap, header, opcode, roce_address, vport};
use softhca::card::{GidKind, LinkLayer};
use softhca::sysfs;

pub(super) fn query_event_queue(request: &Request) -> Result<()> {
    let vector = request.number32(attr::EQN_VECTOR)?;
    if vector >= COMPLETION_VECTORS {
        tracing::warn!(vector, COMPLETION_VECTORS, "there is no such completion vector");
        return Err(Errno::INVALID);
    }
    request.answer_with(attr::EQN_NUMBER, &u32::from(EVENT_QUEUE))
}

/// `MLX5_IB_METHOD_DEVX_OTHER`. Opcodes that a kernel does not pass to the device are EINVAL, without an answer.
pub(super) fn perform(context: &Context, request: &Request) -> Result<()> {
    let input = request.bytes(attr::OTHER_IN)?;
    super::check_general(context, &input)?;
    answer(request, attr::OTHER_OUT, command(context, &input))
}

fn command(context: &Context, input: &[u8]) -> std::result::Result<Vec<u8>, Failure> {
    match opcode_of(input) {
        opcode::QUERY_HCA_CAP => Ok(query_capabilities(context, input)?),
        opcode::QUERY_HCA_VPORT_CONTEXT => Ok(query_vport(context)),
        opcode::QUERY_ROCE_ADDRESS if context.card().link_layer() == LinkLayer::Ethernet => {
            Ok(query_roce_address(context, input)?)
        }
        // A LAG context of zeros: the port is not bonded.
        opcode::NOP | opcode::QUERY_LAG => Ok(done()),
        opcode if opcode::GENERAL.contains(&opcode) || opcode::GENERAL_RANGE.contains(&opcode) => {
            let limit =
                "QUERY_HCA_CAP, QUERY_HCA_VPORT_CONTEXT, QUERY_LAG, NOP, or on Ethernet QUERY_ROCE_ADDRESS";
            Err(Refusal::new(Status::BadOpcode, Syndrome::Opcode, opcode.into(), limit).into())
        }
        opcode => {
            tracing::warn!(opcode, "not a general command: the kernel does not pass it to the device");
            Err(Errno::INVALID.into())
        }
    }
}

/// `QUERY_HCA_CAP`. Maximum and current values are the same here.
fn query_capabilities(context: &Context, input: &[u8]) -> std::result::Result<Vec<u8>, Refusal> {
    let modifier = header::OP_MOD.get(input);
    let kind = modifier >> 1;
    let Some(mut output) = context.card().capabilities(kind) else {
        let limit = "a type of capabilities of mlx5_ifc.h, times 2";
        return Err(Refusal::parameter(Syndrome::CapabilityType, modifier, limit));
    };
    if kind == cap::TYPE_GENERAL {
        cap::VHCA_ID.put(&mut output, context.open.index as u32);
    }
    Ok(output)
}

/// Returns the state and the GUIDs of the port. On Ethernet the LID is 0.
fn query_vport(context: &Context) -> Vec<u8> {
    /// `LinkUp` of the physical state, and `Active` of the logical one (InfiniBand specification, 14.2.5.6).
    const LINK_UP: u8 = 5;
    const ACTIVE: u8 = 4;
    let card = context.card();
    let node = sysfs::node_guid(context.open.index);
    let mut output = vec![0; vport::BYTES];
    vport::PORT_PHYSICAL_STATE.put(&mut output, LINK_UP);
    vport::PORT_STATE.put(&mut output, ACTIVE);
    // `VPORT_STATE_UP`.
    vport::VPORT_STATE.put(&mut output, 1u8);
    vport::SYSTEM_IMAGE_GUID.put(&mut output, node);
    vport::NODE_GUID.put(&mut output, node);
    vport::PORT_GUID.put(&mut output, card.guid());
    let is_infiniband = card.link_layer() == LinkLayer::InfiniBand;
    vport::LID.put(&mut output, if is_infiniband { card.lid() } else { 0 });
    vport::PKEY_VIOLATION_COUNTER.put(&mut output, card.bad_pkeys() as u16);
    output
}

/// `QUERY_ROCE_ADDRESS`: an entry of the GID table.
fn query_roce_address(context: &Context, input: &[u8]) -> std::result::Result<Vec<u8>, Refusal> {
    let index = roce_address::INDEX.get(input);
    let Some(entry) = context.card().gids().get(index as usize) else {
        let limit = "an index of the port's table of GIDs (roce_address_index)";
        return Err(Refusal::parameter(Syndrome::AddressPath, index, limit));
    };
    let mut output = vec![0; roce_address::BYTES];
    let ipv4 = std::net::Ipv6Addr::from(entry.gid).to_ipv4_mapped();
    let l3_type = ipv4.map_or(roce_address::L3_IPV6, |_| roce_address::L3_IPV4);
    let is_second = entry.kind == GidKind::RoceV2;
    let version = if is_second { roce_address::VERSION_2 } else { roce_address::VERSION_1 };
    let (gid, [mac @ .., a, b, c, d]) = (u128::from_be_bytes(entry.gid), mac_of(&entry.gid));
    for (field, value) in [
        (roce_address::NUM, 1),
        (roce_address::SOURCE_L3_ADDRESS[0], (gid >> 64) as u64),
        (roce_address::SOURCE_L3_ADDRESS[1], gid as u64),
        (roce_address::SOURCE_MAC[0], u16::from_be_bytes(mac).into()),
        (roce_address::SOURCE_MAC[1], u32::from_be_bytes([a, b, c, d]).into()),
        (roce_address::L3_TYPE, l3_type.into()),
        (roce_address::ROCE_VERSION, version.into()),
    ] {
        field.put(&mut output, value);
    }
    Ok(output)
}
