//! `QUERY_HCA_CAP`: the device's capabilities. Maximum and current values are the same here.

use super::status::{Refusal, Syndrome};
use crate::context::Context;
use gdsync_sys::prm::command::{cap, header};

pub(super) fn query(context: &Context, input: &[u8]) -> Result<Vec<u8>, Refusal> {
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
