//! `QUERY_HCA_CAP`: the device's capabilities. Maximum and current values are the same here.

use super::status::{Refusal, Syndrome};
use crate::context::Context;
use gdsync_sys::prm::command::{cap, header};

pub(super) fn query(context: &Context, input: &[u8]) -> Result<Vec<u8>, Refusal> {
    let modifier = header::OP_MOD.get(input);
    let kind = modifier >> 1;
    let Some(mut output) = context.card().capabilities(kind) else {
        let limit = "general (0 and 0x20), ODP (2), atomic (3), RoCE (4) or QoS (0xc) capabilities, times 2";
        return Err(Refusal::parameter(Syndrome::CapabilityType, modifier, limit));
    };
    if kind == cap::TYPE_GENERAL {
        cap::VHCA_ID.put(&mut output, context.open.index as u32);
    }
    Ok(output)
}
