//! Completion queues.

use crate::attributes::Request;
use crate::card::OpenCard;
use crate::context::{Context, Object};
use crate::errno::{Errno, Result};
use crate::events::{Reported, Route, Source};
use crate::uapi::ioctl::attr;
use crate::uapi::mlx5::{CQ_UAR_PAGE_INDEX, CreateCq};
use softhca::card::{CqConfig, LIMITS, is_mapped};

/// Bytes of an entry; the other size that libmlx5 knows, 128, is for hosts with such cache lines.
pub(crate) const ENTRY: u64 = 64;
/// Bytes of a doorbell record: two words.
pub(crate) const RECORD: u64 = 8;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) number: u32,
}

impl Cq {
    pub(crate) fn destroy(&self, open: &OpenCard) -> Result<Reported> {
        open.card.destroy_cq(self.number)?;
        Ok(open.routes.remove(Source::Cq(self.number)))
    }
}

/// Checks memory that a program lends to the card: mapped, writable, aligned.
pub(crate) fn check_lent(addr: u64, len: u64, alignment: u64) -> Result<()> {
    if !addr.is_multiple_of(alignment) {
        tracing::warn!(addr, alignment, "memory for the card is not aligned");
        return Err(Errno::INVALID);
    }
    if is_mapped(addr, len, true) { Ok(()) } else { Err(Errno::FAULT) }
}

/// `CREATE` of a completion queue.
pub(crate) fn create(context: &Context, request: &Request) -> Result<()> {
    request.knows(&[
        attr::HANDLE,
        attr::CQ_CQE,
        attr::CQ_USER_HANDLE,
        attr::CQ_COMP_CHANNEL,
        attr::CQ_COMP_VECTOR,
        attr::CQ_FLAGS,
        attr::CQ_RESP_CQE,
        attr::CQ_EVENT_FD,
        attr::UHW_IN,
        attr::UHW_OUT,
    ])?;
    let asked: CreateCq = request.structure(attr::UHW_IN)?;
    let more =
        asked.cqe_comp_en != 0 || asked.flags & !CQ_UAR_PAGE_INDEX != 0 || u64::from(asked.cqe_size) != ENTRY;
    if more || request.optional_number(attr::CQ_FLAGS)?.unwrap_or(0) != 0 {
        tracing::warn!(
            ?asked,
            "completion queues have entries of 64 bytes, neither compressed nor with timestamps"
        );
        return Err(Errno::NOT_SUPPORTED);
    }
    let cqe = request.number32(attr::CQ_CQE)?;
    // One entry more than asked for, rounded up: what libmlx5 has made room for.
    let entries =
        cqe.checked_add(1).filter(|count| cqe > 0 && *count <= LIMITS.max_cqe).ok_or(Errno::INVALID)?;
    let entries = entries.next_power_of_two();
    check_lent(asked.buf_addr, u64::from(entries) * ENTRY, ENTRY)?;
    check_lent(asked.db_addr, RECORD, RECORD)?;
    let channel = match request.has(attr::CQ_COMP_CHANNEL) {
        true => Some(context.channels.find(request.fd(attr::CQ_COMP_CHANNEL)?).ok_or(Errno::BAD_FD)?),
        false => None,
    };
    let user_handle = request.number(attr::CQ_USER_HANDLE)?;
    let config = CqConfig { ring: asked.buf_addr as *mut u8, entries, dbrec: asked.db_addr as *mut u32 };
    // SAFETY: mapped and aligned, as was just checked; libmlx5 keeps them until it has destroyed the queue.
    let number = unsafe { context.card().create_cq(&config) }?;
    context
        .open
        .routes
        .add(Source::Cq(number), Route::new(user_handle, channel, context.async_events.clone()));
    let handle = context.objects.lock().add(Object::Cq(Cq { number }));
    request.answer_made(attr::HANDLE, handle)?;
    request.answer_with(attr::CQ_RESP_CQE, &(entries - 1))?;
    request.answer_with(attr::UHW_OUT, &number)
}

/// `DESTROY`: answers how many events of the queue the program has read.
pub(crate) fn destroy(context: &Context, request: &Request) -> Result<()> {
    let reported = context.destroy(request.handle(attr::HANDLE)?, |_, object, card| {
        if let Object::Cq(cq) = object { cq.destroy(card) } else { Err(Errno::INVALID) }
    })?;
    request.answer_with(attr::DESTROY_RESP, &[reported.completions, reported.asynchronous])
}
