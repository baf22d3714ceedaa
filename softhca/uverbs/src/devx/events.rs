//! Event channels and files of asynchronous commands.

use crate::attributes::Request;
use crate::context::Context;
use crate::descriptors::{self, FdKind};
use crate::errno::{Errno, Result};
use crate::events::packets::{Content, PacketFile};
use crate::events::subscriptions::{Sink, kind};
use crate::uapi::devx::{EVENTS_OMIT_DATA, attr, object};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::Arc;

/// Maximum number of events that one command subscribes to.
const MAX_EVENTS: usize = 16;

pub(super) fn alloc_commands(context: &Context, request: &Request) -> Result<()> {
    alloc(context, request, Content::Answers)
}

pub(super) fn alloc_events(context: &Context, request: &Request) -> Result<()> {
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
    context.channels.devx.add(context.id, fd, file);
    // The program owns the descriptor from here on.
    let _ = theirs.into_raw_fd();
    Ok(())
}

/// Returns the file of a descriptor.
pub(super) fn file(context: &Context, request: &Request, place: u16) -> Result<Arc<PacketFile>> {
    context.channels.devx.find(context.id, request.fd(place)?).ok_or(Errno::BAD_FD)
}

/// Returns the program's eventfd(2); EBADF for a descriptor that is not open, EINVAL for one of another file
/// (`eventfd_ctx_fdget`).
fn counter_of(fd: i32) -> Result<File> {
    const EVENTFD: &[u8] = b"anon_inode:[eventfd]";
    // SAFETY: a descriptor of the program, which keeps it open during the command. One that is not open is EBADF.
    let counter = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
    let path = format!("/proc/self/fd/{}\0", counter.as_raw_fd());
    let mut name = [0; EVENTFD.len() + 1];
    // SAFETY: a C string, and room of that length. A system call, as the hook serves the program's paths.
    let length = unsafe {
        let (path, place) = (path.as_ptr(), name.as_mut_ptr());
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path, place, name.len())
    };
    if name.get(..length as usize) == Some(EVENTFD) { Ok(counter.into()) } else { Err(Errno::INVALID) }
}

pub(super) fn subscribe(context: &Context, request: &Request) -> Result<()> {
    super::check_user(context)?;
    let cookie = request.optional_number(attr::SUBSCRIBE_COOKIE)?;
    if cookie.is_some() && request.has(attr::SUBSCRIBE_EVENTFD) {
        return Err(Errno::INVALID);
    }
    let list = request.bytes(attr::SUBSCRIBE_EVENTS)?;
    if !list.len().is_multiple_of(2) || list.len() / 2 > MAX_EVENTS {
        return Err(Errno::INVALID);
    }
    let kinds: Vec<u16> = list.chunks_exact(2).map(|kind| u16::from_ne_bytes([kind[0], kind[1]])).collect();
    let object = match request.has(attr::SUBSCRIBE_OBJECT) {
        true => Some(request.handle(attr::SUBSCRIBE_OBJECT)?),
        false => None,
    };
    let allowed: &[u16] = if object.is_some() { &kind::OF_OBJECTS } else { &[kind::PORT_CHANGE] };
    if let Some(kind) = kinds.iter().find(|kind| !allowed.contains(kind)) {
        tracing::warn!(kind, has_object = object.is_some(), "there is no such event to subscribe to");
        return Err(Errno::INVALID);
    }
    let sink = match request.has(attr::SUBSCRIBE_EVENTFD) {
        true => Sink::Counter(counter_of(request.number32(attr::SUBSCRIBE_EVENTFD)? as i32)?),
        false => Sink::of_file(&file(context, request, attr::SUBSCRIBE_FD)?, cookie.unwrap_or(0)),
    };
    // The port never changes.
    let Some(handle) = object else { return Ok(()) };
    // The lock keeps the object until it has the subscription.
    let objects = context.objects.lock();
    let resource = objects.resource(object::DEVX_OBJ, handle)?;
    context.open.routes.subscriptions.add(resource, &kinds, &Arc::new(sink));
    Ok(())
}
