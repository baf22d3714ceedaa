//! `INVOKE_WRITE`: the commands that were once written to the device, and have no method of their own.

use crate::attributes::Request;
use crate::context::Context;
use crate::errno::{Errno, Result};
use crate::uapi::ioctl::attr;
use crate::uapi::verbs::{EXTENDED, command};
use crate::{ah, channel, device, mr, pd, qp};

pub(crate) fn invoke(context: &Context, request: &Request) -> Result<()> {
    let number = request.number32(attr::WRITE_CMD)?;
    let (number, is_extended) = (number & !EXTENDED, number & EXTENDED != 0);
    match (number, is_extended) {
        (command::QUERY_DEVICE, false) => device::query(context, request),
        (command::QUERY_DEVICE, true) => device::query_extended(context, request),
        (command::ALLOC_PD, false) => pd::alloc(context, request),
        (command::REG_MR, false) => mr::register(context, request),
        (command::CREATE_COMP_CHANNEL, false) => channel::create(context, request),
        (command::CREATE_AH, false) => ah::create(context, request),
        (command::MODIFY_QP, _) => qp::modify(context, request, is_extended),
        (command::QUERY_QP, false) => qp::query(context, request),
        _ => {
            tracing::info!(number, is_extended, "a write command that the software card does not have");
            Err(Errno::NOT_SUPPORTED)
        }
    }
}
