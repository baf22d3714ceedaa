//! Event channels and files of asynchronous commands.

use crate::attributes::Request;
use crate::context::Context;
use crate::descriptors::{self, FdKind};
use crate::errno::{Errno, Result};
use crate::events::files::{Content, PacketFile};
use crate::events::subscriptions::{Sink, kind};
use crate::uapi::devx::{EVENTS_OMIT_DATA, attr, object};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::Arc;

/// Maximum number of events that one command subscribes to.
const MAX_EVENTS: usize = 16;

pub(super) fn alloc_commands(context: &Context, request: &Request) -> Result<()> {
    request.knows(&[attr::HANDLE])?;
    alloc(context, request, Content::Answers)
}

pub(super) fn alloc_events(context: &Context, request: &Request) -> Result<()> {
    request.knows(&[attr::HANDLE, attr::EVENT_FD_FLAGS])?;
    let content = match request.optional_number(attr::EVENT_FD_FLAGS)?.unwrap_or(0) {
        0 => Content::Entries,
        EVENTS_OMIT_DATA => Content::Cookies,
        _ => return Err(Errno::INVALID),
    };
    alloc(context, request, content)
}

fn alloc(context: &Context, request: &Request, content: Content) -> Result<()> {
    let (file, theirs) = PacketFile::new(content)?;
    let fd = theirs.as_raw_fd();
    request.answer_created(attr::HANDLE, fd as u32)?;
    descriptors::add(FdKind::Card, fd)?;
    context.channels.devx.add(fd, file);
    // The program owns the descriptor from here on.
    let _ = theirs.into_raw_fd();
    Ok(())
}

/// Returns the file of a descriptor: one of asynchronous commands, or one of events.
pub(super) fn file(
    context: &Context,
    request: &Request,
    place: u16,
    answers: bool,
) -> Result<Arc<PacketFile>> {
    let file = context.channels.devx.find(request.fd(place)?).ok_or(Errno::BAD_FD)?;
    if (file.content == Content::Answers) == answers { Ok(file) } else { Err(Errno::BAD_FD) }
}

pub(super) fn subscribe(context: &Context, request: &Request) -> Result<()> {
    request.knows(&[
        attr::SUBSCRIBE_FD,
        attr::SUBSCRIBE_OBJECT,
        attr::SUBSCRIBE_EVENTS,
        attr::SUBSCRIBE_EVENTFD,
        attr::SUBSCRIBE_COOKIE,
    ])?;
    let file = file(context, request, attr::SUBSCRIBE_FD, false)?;
    let list = request.bytes(attr::SUBSCRIBE_EVENTS)?;
    if list.is_empty() || !list.len().is_multiple_of(2) || list.len() / 2 > MAX_EVENTS {
        return Err(Errno::INVALID);
    }
    let kinds: Vec<u16> = list.chunks_exact(2).map(|kind| u16::from_ne_bytes([kind[0], kind[1]])).collect();
    let sink = match (request.has(attr::SUBSCRIBE_EVENTFD), request.optional_number(attr::SUBSCRIBE_COOKIE)?)
    {
        (true, Some(_)) => return Err(Errno::INVALID),
        (true, None) => {
            let fd = i32::try_from(request.number32(attr::SUBSCRIBE_EVENTFD)?).map_err(|_| Errno::BAD_FD)?;
            // SAFETY: a descriptor of the program, which keeps it open during the command. One that is not
            // open is EBADF.
            Sink::Counter(unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?.into())
        }
        (false, cookie) => Sink::File { file: Arc::downgrade(&file), cookie: cookie.unwrap_or(0) },
    };
    let object = match request.has(attr::SUBSCRIBE_OBJECT) {
        true => Some(request.handle(attr::SUBSCRIBE_OBJECT)?),
        false => None,
    };
    let allowed: &[u16] = if object.is_some() { &kind::OF_OBJECTS } else { &[kind::PORT_CHANGE] };
    if let Some(kind) = kinds.iter().find(|kind| !allowed.contains(kind)) {
        tracing::warn!(kind, has_object = object.is_some(), "there is no such event to subscribe to");
        return Err(Errno::INVALID);
    }
    // The port never changes.
    let Some(handle) = object else { return Ok(()) };
    // The lock keeps the object until it has the subscription.
    let objects = context.objects.lock();
    let resource = objects.resource(object::DEVX_OBJ, handle)?;
    context.open.routes.subscriptions.add(resource, &kinds, &Arc::new(sink));
    Ok(())
}
