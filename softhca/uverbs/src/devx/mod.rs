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
use crate::calls;
use crate::context::Context;
use crate::errno::{Errno, Result};
use crate::uapi::devx::{attr, method, object as kind};

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
            Err(Errno::NOT_SUPPORTED)
        }
        (object, method) => {
            let call = calls::of_method(object, method);
            tracing::info!(call, "the software card does not have this");
            Err(Errno::UNKNOWN)
        }
    }
}
