//! DEVX: commands in the device's own format, which programs write with `mlx5dv_devx_*`.
//!
//! A kernel passes the commands to the device and tracks the objects that they create; this module does both.
//! `gdsync_sys::prm::command` has the format. A refused command is answered with a status and a syndrome, and
//! EREMOTEIO.
//!
//! Layers, each importing only modules before it: `status`, `message`, `umem`, `events`, `general`, `mkey`, `cq`, `rmp`, `dct`, `qp`, `modify`, `object`.

mod cq;
mod dct;
mod events;
mod general;
mod message;
mod mkey;
mod modify;
mod object;
mod qp;
mod rmp;
mod status;
mod umem;

use crate::attributes::Request;
use crate::context::Context;
use crate::errno::{Errno, Result};
use crate::uapi::devx::{attr, method, object as kind};
use gdsync_sys::prm::command::{header, opcode};
use message::opcode_of;

/// Commands that a kernel passes on for every program (`devx_is_whitelist_cmd`): QUERY_HCA_CAP, _HCA_VPORT_CONTEXT and
/// _ESW_VPORT_CONTEXT.
const FOR_ALL: [u16; 3] =
    [opcode::QUERY_HCA_CAP, opcode::QUERY_HCA_VPORT_CONTEXT, opcode::QUERY_ESW_VPORT_CONTEXT];

/// Checks that the program has opened the device for commands (`devx_get_uid`).
fn check_user(context: &Context) -> Result<()> {
    if context.heritage.begun() == Some(true) {
        return Ok(());
    }
    tracing::warn!("a command of a context without DEVX: open the device with MLX5DV_CONTEXT_FLAGS_DEVX");
    Err(Errno::INVALID)
}

/// Checks a command for an object: it needs DEVX, and no tunnel to another function of the device.
fn check_command(context: &Context, input: &[u8]) -> Result<()> {
    if header::VHCA_TUNNEL_ID.is_set(input) {
        return Err(Errno::INVALID);
    }
    check_general(context, input)
}

/// Checks a general command.
fn check_general(context: &Context, input: &[u8]) -> Result<()> {
    if FOR_ALL.contains(&opcode_of(input)) { Ok(()) } else { check_user(context) }
}

pub(crate) fn perform(context: &Context, request: &Request) -> Result<()> {
    match (request.object, request.method) {
        (kind::DEVX, method::OTHER) => general::perform(context, request),
        (kind::DEVX, method::QUERY_EQN) => general::query_event_queue(request),
        (kind::DEVX_OBJ, method::OBJ_CREATE) => object::create(context, request),
        (kind::DEVX_OBJ, method::OBJ_MODIFY) => object::modify(context, request),
        (kind::DEVX_OBJ, method::OBJ_QUERY) => object::query(context, request),
        (kind::DEVX_OBJ, method::OBJ_ASYNC_QUERY) => object::query_async(context, request),
        (kind::DEVX, method::SUBSCRIBE_EVENT) => events::subscribe(context, request),
        (kind::DEVX_ASYNC_CMD_FD, method::FD_ALLOC) => events::alloc_commands(context, request),
        (kind::DEVX_ASYNC_EVENT_FD, method::FD_ALLOC) => events::alloc_events(context, request),
        (kind::DEVX_UMEM, method::UMEM_REG) => umem::register(context, request),
        (kind::DEVX_OBJ, method::OBJ_DESTROY) | (kind::DEVX_UMEM, method::UMEM_DEREG) => {
            context.destroy(request.object, request.handle(attr::HANDLE)?).map(drop)
        }
        (kind::DEVX, method::QUERY_UAR) => {
            tracing::info!(
                "a doorbell page of GET_CONTEXT is asked for, of which the software card has none"
            );
            // As `bfregn_to_uar_index` for a context whose library allocates its own pages.
            Err(Errno::INVALID)
        }
        _ => Err(Errno::UNKNOWN),
    }
}
