//! Completion queues.

use super::status::{Refusal, Status, Syndrome};
use super::umem::Part;
use super::{EVENT_QUEUE, made};
use crate::context::{Context, Objects};
use crate::cq::{ENTRY, RECORD};
use gdsync_sys::prm::command::{cq, cqc, header};
use softhca::card::{CqAttributes, CqConfig, LIMITS};

/// A completion queue that a command made.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(super) number: u32,
    pub(super) umems: [u32; 2],
    /// `cqc` as it was given.
    context: Vec<u8>,
}

/// Bytes of a context's page offset, which counts sixty-fourths of its page size: 4096 << `log_page_size`.
pub(super) fn page_offset(log_page_size: u64, offset: u64) -> u64 {
    offset << (12 + log_page_size) >> 6
}

/// A command must have at least its fixed part.
pub(super) fn check_length(input: &[u8], len: usize) -> Result<(), Refusal> {
    if input.len() >= len {
        return Ok(());
    }
    let limit = "at least the fixed part of the command: 272 bytes";
    Err(Refusal::new(Status::BadInputLength, Syndrome::InputLength, input.len() as u64, limit))
}

/// `CREATE_CQ`.
pub(super) fn create(context: &Context, objects: &Objects, input: &[u8]) -> Result<(Cq, Vec<u8>), Refusal> {
    check_length(input, cq::BYTES)?;
    let asked = &input[cq::CONTEXT..cq::CONTEXT + cqc::BYTES];
    for (field, limit) in [
        (cqc::CQE_SZ, "entries of 64 bytes (cqe_sz 0)"),
        (cqc::CC, "no collapsed queues (cc 0)"),
        (cqc::OI, "no overrun without an error (oi 0)"),
        (cqc::CQE_COMPRESSION_EN, "no compressed entries (cqe_compression_en 0)"),
    ] {
        if field.is_set(asked) {
            return Err(Refusal::parameter(Syndrome::CqContext, field.get(asked), limit));
        }
    }
    let log_size = cqc::LOG_CQ_SIZE.get32(asked);
    if log_size > LIMITS.max_cqe.ilog2() {
        return Err(Refusal::parameter(Syndrome::CqContext, log_size, "at most 2^22 entries"));
    }
    if cqc::C_EQN.get8(asked) != EVENT_QUEUE {
        let limit = "the event queue that mlx5dv_devx_query_eqn names";
        return Err(Refusal::resource(Syndrome::EventQueue, cqc::C_EQN.get32(asked), limit));
    }
    check_uar(objects, cqc::UAR_PAGE.get32(asked))?;
    let entries = 1 << log_size;
    let lead = page_offset(cqc::LOG_PAGE_SIZE.get(asked), cqc::PAGE_OFFSET.get(asked));
    let ring = Part {
        id: cq::UMEM_ID.get32(input),
        offset: cq::UMEM_OFFSET.get(input).saturating_add(lead),
        len: u64::from(entries) * ENTRY,
        alignment: ENTRY,
        writes: true,
    };
    let record = Part {
        id: cqc::DBR_UMEM_ID.get32(asked),
        offset: cqc::DBR_ADDR.get(asked),
        len: RECORD,
        alignment: RECORD,
        writes: true,
    };
    let config = CqConfig {
        ring: ring.address(objects)? as *mut u8,
        entries,
        dbrec: record.address(objects)? as *mut u32,
    };
    // SAFETY: inside registered user memory, mapped and aligned, as was just checked. The program keeps that memory mapped
    // while it is registered, and it stays registered until the queue is gone (`umem::deregister`).
    let number = unsafe { context.card().create_cq(&config) }?;
    let umems = [ring.id, record.id];
    Ok((Cq { number, umems, context: asked.to_vec() }, made(number)))
}

/// A page of doorbell registers must be the context's.
pub(super) fn check_uar(objects: &Objects, page: u32) -> Result<(), Refusal> {
    let refused = |_| Refusal::resource(Syndrome::UarPage, page, "a UAR page of this context");
    objects.uar(page).map(|_| ()).map_err(refused)
}

/// `QUERY_CQ`, of a queue that a command made or of one of verbs, whose context is not known.
pub(super) fn query(context: &Context, number: u32, made: Option<&Cq>) -> Result<Vec<u8>, Refusal> {
    let now = context.card().query_cq(number)?;
    let mut output = vec![0; cq::BYTES];
    let place = &mut output[cq::CONTEXT..cq::CONTEXT + cqc::BYTES];
    if let Some(cq) = made {
        place.copy_from_slice(&cq.context);
        cqc::DBR_UMEM_VALID.put(place, 1u8);
    }
    describe(&now, place);
    header::NUMBER.put(&mut output, number);
    Ok(output)
}

fn describe(now: &CqAttributes, place: &mut [u8]) {
    let status = if now.overrun { cqc::STATUS_OVERFLOW } else { 0 };
    let state = match now.armed {
        Some(false) => cqc::ST_ARMED,
        Some(true) => cqc::ST_SOLICITED_ARMED,
        None => cqc::ST_FIRED,
    };
    cqc::STATUS.put(place, status);
    cqc::ST.put(place, state);
    cqc::LOG_CQ_SIZE.put(place, now.entries.ilog2());
    cqc::C_EQN.put(place, EVENT_QUEUE);
    cqc::CONSUMER_COUNTER.put(place, now.consumed);
    cqc::PRODUCER_COUNTER.put(place, now.produced);
}
