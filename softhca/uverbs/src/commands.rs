//! Dispatch: from a command's numbers to its function.

use crate::attributes::{Request, fd_of, handle_of};
use crate::calls;
use crate::context::Context;
use crate::devx;
use crate::errno::{Errno, Result};
use crate::events::packets::Content;
use crate::uapi::devx::object as kind;
use crate::uapi::ioctl::{attr, method, object};
use crate::uapi::methods::{File, Value, attributes_of};
use crate::uapi::verbs::{EXTENDED, command};
use crate::verbs::{ah, cq, device, domain, mcast, modify, mr, pages, port, qp, srq};

/// Performs the command at `address`.
pub(crate) fn perform(context: &Context, address: u64) -> Result<()> {
    let request = Request::read(address, |object, method| attributes_of(object, method).is_some())?;
    let specs = attributes_of(request.object, request.method).ok_or(Errno::UNKNOWN)?;
    request.check(specs, |value, data| resolve(context, value, data))?;
    let needs_context = !matches!(request.method, method::GET_CONTEXT | method::INVOKE_WRITE);
    if request.object != object::DEVICE || needs_context {
        context.check_begun()?;
    }
    dispatch(context, &request)
}

/// Checks that a command's object or file is there, and of the right kind.
fn resolve(context: &Context, value: Value, data: u64) -> Result<()> {
    match value {
        Value::Input { .. } | Value::Flags | Value::Output { .. } => Ok(()),
        Value::New => context.check_begun(),
        Value::Object(kind) => context.objects.lock().check(kind, handle_of(data)?),
        Value::Descriptor => fd_of(data).map(drop),
        Value::File(kind) => {
            let fd = fd_of(data)?;
            let devx = || context.channels.devx.find(context.id, fd);
            let is_it = match kind {
                File::Completions => context.channels.completions.find(context.id, fd).is_some(),
                File::Asynchronous => cq::is_async(context, fd),
                File::DevxAnswers => devx().is_some_and(|file| file.content == Content::Answers),
                File::DevxEvents => devx().is_some_and(|file| file.content != Content::Answers),
            };
            if is_it { Ok(()) } else { Err(Errno::BAD_FD) }
        }
    }
}

fn dispatch(context: &Context, request: &Request) -> Result<()> {
    match (request.object, request.method) {
        (object::DEVICE, method::INVOKE_WRITE) => invoke_write(context, request),
        (object::DEVICE, method::GET_CONTEXT) => device::get_context(context, request),
        (object::DEVICE, method::QUERY_CONTEXT) => device::query_context(context, request),
        (object::DEVICE, method::QUERY_PORT) => port::query(context, request),
        (object::DEVICE, method::QUERY_GID_TABLE) => port::query_gid_table(context, request),
        (object::DEVICE, method::QUERY_GID_ENTRY) => port::query_gid_entry(context, request),
        (object::ASYNC_EVENT, method::ASYNC_EVENT_ALLOC) => cq::alloc_async(context, request),
        (object::PD, method::PD_QUERY) => domain::query(context, request),
        (object::MR, method::MR_QUERY) => mr::query(context, request),
        (object::MR, method::MR_REG) => mr::register_any(context, request),
        (object::MR, method::MR_ADVISE) => mr::advise(context, request),
        (object::MR, method::MR_DM_REG) => pages::register_memory(context, request),
        (object::DM, method::DM_ALLOC) => pages::alloc_memory(context, request),
        (object::DM, method::DM_QUERY) => pages::query_memory(context, request),
        (object::DM, method::DM_MAP_OP_ADDR) => {
            tracing::warn!("the software card's device memory has no operations (mlx5dv_dm_map_op_addr)");
            Err(Errno::NOT_SUPPORTED)
        }
        (object::MR, method::MR_REG_DMABUF) => mr::register_dmabuf(context, request),
        (object::UAR, method::UAR_ALLOC) => pages::alloc_registers(context, request),
        (object::CQ, method::CREATE) => cq::create(context, request),
        (object::CQ, method::DESTROY) => cq::destroy(context, request),
        (object::QP, method::CREATE) => qp::create(context, request),
        (object::QP, method::DESTROY) => qp::destroy(context, request),
        (object::SRQ, method::CREATE) => srq::create(context, request),
        (object::SRQ, method::DESTROY) => srq::destroy(context, request),
        (object::PD | object::AH | object::MW | object::XRCD, method::ONLY_DESTROY)
        | (object::MR, method::MR_DESTROY)
        | (object::DM, method::DM_FREE) => {
            context.destroy(request.object, request.handle(attr::HANDLE)?).map(drop)
        }
        (object::UAR, method::UAR_DESTROY) => pages::destroy_registers(context, request),
        (
            kind::DEVX
            | kind::DEVX_OBJ
            | kind::DEVX_UMEM
            | kind::DEVX_ASYNC_CMD_FD
            | kind::DEVX_ASYNC_EVENT_FD,
            _,
        ) => devx::perform(context, request),
        _ => Err(Errno::UNKNOWN),
    }
}

/// `INVOKE_WRITE`: commands of the older write(2) interface without their own method.
fn invoke_write(context: &Context, request: &Request) -> Result<()> {
    let number = request.number32(attr::WRITE_CMD)?;
    // libibverbs asks for a device's properties without room for them to learn whether there is this method.
    if number & !EXTENDED != command::QUERY_DEVICE {
        context.check_begun()?;
    }
    let (number, is_extended) = (number & !EXTENDED, number & EXTENDED != 0);
    // These look their first handle up to replace or destroy its object.
    let is_destruction = matches!(number, command::REREG_MR | command::CLOSE_XRCD);
    let outcome = match (number, is_extended) {
        (command::QUERY_DEVICE, false) => device::query(context, request),
        (command::QUERY_DEVICE, true) => device::query_extended(context, request),
        (command::ALLOC_PD, false) => domain::alloc(context, request),
        (command::REG_MR, false) => mr::register(context, request),
        (command::REREG_MR, false) => mr::reregister(context, request),
        (command::ALLOC_MW, false) => mr::alloc_window(context, request),
        (command::CREATE_COMP_CHANNEL, false) => cq::create_channel(context, request),
        (command::CREATE_AH, false) => ah::create(context, request),
        (command::MODIFY_QP, _) => modify::modify(context, request, is_extended),
        (command::QUERY_QP, false) => modify::query(context, request),
        (command::RESIZE_CQ, false) => cq::resize(context, request),
        (command::MODIFY_CQ, true) => cq::modify(context, request),
        (command::OPEN_XRCD, false) => domain::open_xrcd(context, request),
        (command::CLOSE_XRCD, false) => domain::close_xrcd(context, request),
        (command::OPEN_QP, false) => qp::open(context, request),
        (command::ATTACH_MCAST, false) => mcast::attach(context, request),
        (command::DETACH_MCAST, false) => mcast::detach(context, request),
        (command::MODIFY_SRQ, false) => srq::modify(context, request),
        (command::QUERY_SRQ, false) => srq::query(context, request),
        _ => {
            let call = calls::of_write(number);
            tracing::info!(call, is_extended, "the software card does not have this");
            Err(Errno::NOT_SUPPORTED)
        }
    };
    // In the others a handle without an object is EINVAL (`uobj_get_obj_read`), not ENOENT as in methods.
    outcome.map_err(|errno| match errno {
        Errno::NO_ENTRY if !is_destruction => Errno::INVALID,
        errno => errno,
    })
}
