//! Receive memory pools: shared receive queues that commands create.

use super::message::{check_length, check_pd, created};
use super::status::{Refusal, Syndrome};
use super::umem::{UmemRange, Usage, page_offset};
use crate::context::{Context, Object, Objects};
use crate::resource::Resource;
use crate::uapi::devx::object;
use gdsync_sys::prm::command::{rmp, wq};
use gdsync_sys::prm::wqe::SEGMENT;
use softhca::card::SrqConfig;

/// Bytes of a doorbell record: one word.
const RECORD: u64 = 4;

pub(super) fn create(
    context: &Context,
    objects: &Objects,
    input: &[u8],
) -> Result<(Object, Vec<u8>), Refusal> {
    check_length(input, rmp::BYTES)?;
    let asked = &input[rmp::WQ..rmp::WQ + wq::BYTES];
    for (is_set, limit) in [
        (rmp::BASIC_CYCLIC_RCV_WQE.is_set(input), "entries with a link segment (basic_cyclic_rcv_wqe 0)"),
        (wq::SIGNATURE.is_set(asked), "no signatures of work-queue entries (wq_signature 0)"),
        (wq::CD_SLAVE.is_set(asked), "no receives that another queue releases (cd_slave 0)"),
        (wq::LWM.is_set(asked), "no limit at creation (lwm 0)"),
    ] {
        if is_set {
            return Err(Refusal::parameter(Syndrome::RmpContext, 1u8, limit));
        }
    }
    let kind = wq::TYPE.get8(asked);
    if ![wq::LINKED_LIST, wq::CYCLIC].contains(&kind) {
        return Err(Refusal::parameter(Syndrome::RmpContext, kind, "a linked list (0) or cyclic (1)"));
    }
    let (entries, stride) = (1 << wq::LOG_SIZE.get32(asked), 1 << wq::LOG_STRIDE.get32(asked));
    let pdn = wq::PD.get32(asked);
    check_pd(objects, pdn)?;
    let ring = UmemRange {
        id: wq::UMEM_ID.get32(asked),
        offset: wq::UMEM_OFFSET
            .get(asked)
            .saturating_add(page_offset(wq::LOG_PAGE_SIZE.get(asked), wq::PAGE_OFFSET.get(asked))),
        len: u64::from(entries) * u64::from(stride),
        alignment: SEGMENT as u64,
        // The card only reads work-queue entries.
        usage: Usage::Reads,
    };
    let (record_id, record_at) = (wq::DBR_UMEM_ID.get32(asked), wq::DBR_ADDR.get(asked));
    let record = UmemRange { len: RECORD, alignment: RECORD, ..UmemRange::record(record_id, record_at) };
    let config = SrqConfig {
        pdn,
        ring: ring.address(objects)? as *mut u8,
        entries,
        stride,
        dbrec: record.address(objects)? as *mut u32,
        cyclic: kind == wq::CYCLIC,
        xrc: None,
    };
    // SAFETY: the addresses are from `UmemRange::address`, which documents why they stay valid.
    let number = unsafe { context.card().create_srq(&config) }?;
    let object = Object::new(object::DEVX_OBJ, Resource::Srq(number)).using([ring.id, record.id]);
    Ok((object, created(number)))
}
