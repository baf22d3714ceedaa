//! Event files: completion channels, and the file of asynchronous events.

use crate::attributes::Request;
use crate::context::Context;
use crate::descriptors::{self, Kind};
use crate::errno::Result;
use crate::events::pipe::EventPipe;
use crate::uapi::ioctl::attr;
use std::os::fd::{AsRawFd, IntoRawFd};

/// `CREATE_COMP_CHANNEL`.
pub(crate) fn create(context: &Context, request: &Request) -> Result<()> {
    let (pipe, theirs) = EventPipe::new()?;
    let fd = theirs.as_raw_fd();
    request.answer_with(attr::CORE_OUT, &(fd as u32))?;
    descriptors::add(Kind::Card, fd)?;
    context.channels.completions.add(fd, pipe);
    // The program owns the descriptor from here on.
    let _ = theirs.into_raw_fd();
    Ok(())
}

/// `ASYNC_EVENT_ALLOC`: all asynchronous event files of a context are duplicates of one.
pub(crate) fn alloc_async(context: &Context, request: &Request) -> Result<()> {
    let fd = context.async_fd.try_clone()?;
    request.answer_created(attr::ASYNC_EVENT_FD, fd.as_raw_fd() as u32)?;
    // The program owns the descriptor from here on.
    let _ = fd.into_raw_fd();
    Ok(())
}
