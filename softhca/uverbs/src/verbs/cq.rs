//! Completion queues, and the event files of verbs.

use super::device::{COMPLETION_VECTORS, LONGEST_PERIOD};
use super::domain::file_of;
use crate::attributes::Request;
use crate::calls;
use crate::context::{Context, Object};
use crate::descriptors::{self, FdKind};
use crate::errno::{Errno, Result};
use crate::events::files::EventPipe;
use crate::events::routes::Route;
use crate::resource::Resource;
use crate::uapi::ioctl::{attr, object};
use crate::uapi::mlx5::{self, CQ_KNOWN, CQ_UAR_PAGE_INDEX, CreateCq};
use crate::uapi::queues::{CQ_IGNORE_OVERRUN, CQ_MODERATE, CQ_TIMESTAMP, ModifyCq, ResizeCq};
use softhca::card::{CqConfig, CqModeration, LIMITS, is_reachable};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};

/// Bytes of an entry: 64, or 128 for hosts with such cache lines.
pub(crate) const ENTRY_SIZES: [u32; 2] = [64, 128];
/// Alignment of a ring.
pub(crate) const ALIGNMENT: u64 = 64;
/// Bytes of a doorbell record: two words.
pub(crate) const RECORD: u64 = 8;

/// Checks memory that the card will access: mapped and writable or a GPU's, and aligned.
pub(crate) fn check_memory(addr: u64, len: u64, alignment: u64) -> Result<()> {
    if !addr.is_multiple_of(alignment) {
        tracing::warn!(addr, alignment, "memory for the card is not aligned");
        return Err(Errno::INVALID);
    }
    if is_reachable(addr, len, true) { Ok(()) } else { Err(Errno::FAULT) }
}

/// Returns the entries of a ring: libmlx5 allocates one more than the program asks for, rounded up.
fn entries_of(cqe: u32) -> Result<u32> {
    let entries = cqe.checked_add(1).filter(|count| *count <= LIMITS.max_cqe);
    Ok(entries.ok_or(Errno::INVALID)?.next_power_of_two())
}

/// Refuses unknown flags of libmlx5, as `create_cq_user` of the driver does.
fn check_driver_flags(asked: &CreateCq) -> Result<()> {
    let flags = asked.flags & !CQ_UAR_PAGE_INDEX;
    if flags == 0 && asked.cqe_comp_en == 0 {
        return Ok(());
    }
    let compressed = asked.cqe_comp_en != 0;
    let names = calls::of_bits(flags, calls::CQ_MLX5);
    tracing::warn!(flags = names, compressed, "mlx5dv_create_cq: the software card does not have this");
    Err(if flags & !CQ_KNOWN == 0 { Errno::NOT_SUPPORTED } else { Errno::INVALID })
}

pub(crate) fn create(context: &Context, request: &Request) -> Result<()> {
    let asked: CreateCq = request.structure(attr::UHW_IN)?;
    let flags = request.optional_number(attr::CQ_FLAGS)?.unwrap_or(0);
    // Every entry has a timestamp.
    let unknown = flags & !(CQ_IGNORE_OVERRUN | CQ_TIMESTAMP);
    if unknown != 0 || !ENTRY_SIZES.contains(&asked.cqe_size) {
        tracing::warn!(
            unknown,
            asked.cqe_size,
            "ibv_create_cq_ex: flags or a size of entries that no card has"
        );
        return Err(Errno::INVALID);
    }
    check_driver_flags(&asked)?;
    let vector = request.number32(attr::CQ_COMP_VECTOR)?;
    if vector >= COMPLETION_VECTORS {
        tracing::warn!(vector, COMPLETION_VECTORS, "there is no such completion vector");
        return Err(Errno::INVALID);
    }
    let cqe = request.number32(attr::CQ_CQE)?;
    let entries = entries_of(cqe)?;
    check_memory(asked.buf_addr, u64::from(entries) * u64::from(asked.cqe_size), ALIGNMENT)?;
    check_memory(asked.db_addr, RECORD, RECORD)?;
    let channel = match request.has(attr::CQ_COMP_CHANNEL) {
        true => {
            let fd = request.fd(attr::CQ_COMP_CHANNEL)?;
            Some(context.channels.completions.find(context.id, fd).ok_or(Errno::BAD_FD)?)
        }
        false => None,
    };
    let user_handle = request.number(attr::CQ_USER_HANDLE)?;
    let config = CqConfig {
        ring: asked.buf_addr as *mut u8,
        entries,
        stride: asked.cqe_size,
        dbrec: asked.db_addr as *mut u32,
        ignore_overrun: flags & CQ_IGNORE_OVERRUN != 0,
        collapsed: false,
    };
    // SAFETY: `check_memory` found ring and record mapped and aligned; libmlx5 keeps them mapped until it has
    // destroyed the queue.
    let number = unsafe { context.card().create_cq(&config) }?;
    let route = Route::new(user_handle, channel, context.async_events.clone());
    context.open.routes.add(Resource::Cq(number), route);
    let handle = context.objects.lock().add(Object::new(object::CQ, Resource::Cq(number)));
    request.answer_created(attr::HANDLE, handle)?;
    request.answer_with(attr::CQ_RESP_CQE, &(entries - 1))?;
    request.answer_with(attr::UHW_OUT, &number)
}

/// `RESIZE_CQ`: the queue continues in another ring, with entries of the same size.
pub(crate) fn resize(context: &Context, request: &Request) -> Result<()> {
    let (asked, ring): (ResizeCq, mlx5::ResizeCq) =
        (request.structure(attr::CORE_IN)?, request.structure(attr::UHW_IN)?);
    let entries = entries_of(asked.cqe)?;
    if asked.cqe == 0 || (ring.reserved0, ring.reserved1) != (0, 0) {
        return Err(Errno::INVALID);
    }
    let number = context.objects.lock().number(object::CQ, asked.cq_handle)?;
    let now = context.card().query_cq(number)?;
    if now.entries != entries {
        if u32::from(ring.cqe_size) != now.stride {
            tracing::warn!(ring.cqe_size, now.stride, "a completion queue keeps the size of its entries");
            return Err(Errno::INVALID);
        }
        check_memory(ring.buf_addr, u64::from(entries) * u64::from(now.stride), ALIGNMENT)?;
        // SAFETY: `check_memory` found the ring mapped and aligned; libmlx5 keeps it mapped until the queue
        // has moved on or is destroyed.
        unsafe { context.card().resize_cq(number, ring.buf_addr as *mut u8, entries) }?;
    }
    // `struct ib_uverbs_resize_cq_resp`: the count, and a reserved field.
    request.answer_with(attr::CORE_OUT, &[entries - 1, 0])
}

/// The extended `MODIFY_CQ`: moderation of events.
pub(crate) fn modify(context: &Context, request: &Request) -> Result<()> {
    let asked: ModifyCq = request.structure(attr::CORE_IN)?;
    if asked.attr_mask != CQ_MODERATE || asked.reserved != 0 || asked.cq_period > LONGEST_PERIOD {
        let (mask, period) = (asked.attr_mask, asked.cq_period);
        tracing::warn!(
            mask,
            period,
            LONGEST_PERIOD,
            "completion queues have moderation to change (1), nothing else"
        );
        return Err(if mask > CQ_MODERATE { Errno::NOT_SUPPORTED } else { Errno::INVALID });
    }
    let number = context.objects.lock().number(object::CQ, asked.cq_handle)?;
    let moderation = CqModeration { count: asked.cq_count, period: asked.cq_period };
    Ok(context.card().moderate_cq(number, moderation)?)
}

/// `DESTROY`: answers the counts of the queue's events that the program has read.
pub(crate) fn destroy(context: &Context, request: &Request) -> Result<()> {
    let reported = context.destroy(object::CQ, request.handle(attr::HANDLE)?)?;
    request.answer_with(attr::DESTROY_RESP, &[reported.completions, reported.asynchronous])
}

pub(crate) fn create_channel(context: &Context, request: &Request) -> Result<()> {
    let (pipe, theirs) = EventPipe::new()?;
    let fd = theirs.as_raw_fd();
    request.answer_with(attr::CORE_OUT, &(fd as u32))?;
    descriptors::add(FdKind::Card, fd)?;
    context.channels.completions.add(context.id, fd, pipe);
    // The program owns the descriptor from here on.
    let _ = theirs.into_raw_fd();
    Ok(())
}

/// Returns whether a descriptor is that of a context's asynchronous events. In the child of a fork libmlx5 names the file of
/// its parent's context, which stands for any file there.
pub(crate) fn is_async(context: &Context, fd: RawFd) -> bool {
    file_of(fd)
        .is_ok_and(|file| context.heritage.is_inherited || file_of(context.async_fd.as_raw_fd()) == Ok(file))
}

/// `ASYNC_EVENT_ALLOC`: all asynchronous event files of a context are duplicates of one.
pub(crate) fn alloc_async(context: &Context, request: &Request) -> Result<()> {
    let fd = context.async_fd.try_clone()?;
    request.answer_created(attr::ASYNC_EVENT_FD, fd.as_raw_fd() as u32)?;
    // The program owns the descriptor from here on.
    let _ = fd.into_raw_fd();
    Ok(())
}
