//! Completion queues.

use super::message::{EVENT_QUEUE, check_length, check_uar, created};
use super::status::{Refusal, Syndrome};
use super::umem::{UmemRange, Usage, page_offset};
use crate::context::{Context, Object, Objects};
use crate::resource::Resource;
use crate::uapi::devx::object;
use crate::verbs::cq::{ALIGNMENT, ENTRY_SIZES};
use gdsync_sys::prm::command::{cq, cqc, header};
use softhca::card::{CqAttributes, CqConfig, LIMITS};

/// The state of a completion queue that a command has created.
pub(super) struct Cq {
    /// `cqc` of the command.
    context: Vec<u8>,
}

pub(super) fn create(
    context: &Context,
    objects: &Objects,
    input: &[u8],
) -> Result<(Object, Vec<u8>), Refusal> {
    check_length(input, cq::BYTES)?;
    let asked = &input[cq::CONTEXT..cq::CONTEXT + cqc::BYTES];
    if cqc::CQE_COMPRESSION_EN.is_set(asked) {
        let limit = "no compressed entries (cqe_compression_en 0)";
        return Err(Refusal::parameter(Syndrome::CqContext, 1u8, limit));
    }
    if cqc::CC.is_set(asked) && !cqc::OI.is_set(asked) {
        let limit = "collapsed queues that ignore overruns (cc 1 with oi 1)";
        return Err(Refusal::parameter(Syndrome::CqContext, 1u8, limit));
    }
    let stride = *ENTRY_SIZES.get(cqc::CQE_SZ.get(asked) as usize).ok_or_else(|| {
        let limit = "entries of 64 or 128 bytes (cqe_sz 0 or 1)";
        Refusal::parameter(Syndrome::CqContext, cqc::CQE_SZ.get(asked), limit)
    })?;
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
    let ring = UmemRange {
        id: cq::UMEM_ID.get32(input),
        offset: cq::UMEM_OFFSET.get(input).saturating_add(lead),
        len: u64::from(entries) * u64::from(stride),
        alignment: ALIGNMENT,
        usage: Usage::Writes,
    };
    let record = UmemRange::record(cqc::DBR_UMEM_ID.get32(asked), cqc::DBR_ADDR.get(asked));
    let config = CqConfig {
        ring: ring.address(objects)? as *mut u8,
        entries,
        stride,
        dbrec: record.address(objects)? as *mut u32,
        ignore_overrun: cqc::OI.is_set(asked),
        collapsed: cqc::CC.is_set(asked),
    };
    // SAFETY: the addresses are from `UmemRange::address`, which documents why they stay valid.
    let number = unsafe { context.card().create_cq(&config) }?;
    let object = Object::new(object::DEVX_OBJ, Resource::Cq(number)).using([ring.id, record.id]);
    Ok((object.with(Cq { context: asked.to_vec() }), created(number)))
}

/// `QUERY_CQ`. `created` is the queue if a command has created it; a queue of verbs has no `cqc`.
pub(super) fn query(context: &Context, number: u32, created: Option<&Cq>) -> Result<Vec<u8>, Refusal> {
    let now = context.card().query_cq(number)?;
    let mut output = vec![0; cq::BYTES];
    let place = &mut output[cq::CONTEXT..cq::CONTEXT + cqc::BYTES];
    if let Some(cq) = created {
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
    cqc::CQE_SZ.put(place, now.stride == ENTRY_SIZES[1]);
    cqc::ST.put(place, state);
    cqc::LOG_CQ_SIZE.put(place, now.entries.ilog2());
    cqc::C_EQN.put(place, EVENT_QUEUE);
    cqc::CONSUMER_COUNTER.put(place, now.consumed);
    cqc::PRODUCER_COUNTER.put(place, now.produced);
}
