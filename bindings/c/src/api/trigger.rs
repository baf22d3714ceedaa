//! `gdsync/ext.h`: triggers, and words that hold sends back until their receives are posted.

use super::queue_pair::create;
use crate::error::{self, non_null_mut};
use crate::handles::Named;
use crate::persistent::{self, Work};
use crate::providers::{self, ObjectKind};
use crate::types::{
    gds_qp, gds_qp_init_attr_t, gds_send_request_t, gdsync_ready_word, gdsync_request, gdsync_trigger,
};
use crate::{log, objects, requests, work};
use gdsync::qp::CardWord;
use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, Trigger};
use gdsync_sys::verbs::{ibv_context, ibv_pd};
use libc::c_int;
use std::ptr::with_exposed_provenance_mut;

/// The object of a `gdsync_trigger_t *`.
pub(crate) struct TriggerObject {
    pub(crate) trigger: Trigger,
    domain: (Device, ProtectionDomain),
    /// The program's pointers to its context and domain.
    context: usize,
    pd: usize,
}

pub(crate) static TRIGGERS: Named<gdsync_trigger, TriggerObject> =
    Named::new("the trigger", "pass what gdsync_trigger_create returned, until gdsync_trigger_free");

/// `gdsync_trigger_create`.
///
/// # Safety
/// Domain and context are null or valid, and outlive the trigger and its queue pairs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_trigger_create(
    pd: *mut ibv_pd,
    context: *mut ibv_context,
) -> *mut gdsync_trigger {
    log::start();
    error::pointer("gdsync_trigger_create", || {
        // SAFETY: the caller keeps the domain and the context alive.
        let domain = unsafe { objects::domain(context, pd) }?;
        let trigger = Trigger::new(&domain.1)?;
        let word = trigger.address() as usize;
        let (context, pd) = (context.expose_provenance(), pd.expose_provenance());
        let made = TRIGGERS.keep(TriggerObject { trigger, domain, context, pd }, |_| gdsync_trigger {
            word: with_exposed_provenance_mut(word),
        })?;
        providers::adopt(ObjectKind::Trigger, made, pd);
        Ok(made)
    })
}

/// `gdsync_trigger_create_qp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_trigger_create_qp(
    trigger: *mut gdsync_trigger,
    qp_init_attr: *mut gds_qp_init_attr_t,
    gpu_id: c_int,
    flags: c_int,
) -> *mut gds_qp {
    error::pointer("gdsync_trigger_create_qp", || {
        // SAFETY: the caller lets no other thread free the object.
        let object = unsafe { TRIGGERS.find(trigger) }?;
        let (pd, context) =
            (with_exposed_provenance_mut(object.pd), with_exposed_provenance_mut(object.context));
        // SAFETY: the caller passes attributes that are null or valid; domain and context outlive the trigger.
        unsafe {
            create((pd, context), qp_init_attr, (gpu_id, flags), Some((&object.trigger, &object.domain)))
        }
    })
}

/// `gdsync_send_ticket`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_send_ticket(request: *mut gds_send_request_t, ticket: *mut u64) -> c_int {
    error::status("gdsync_send_ticket", || {
        let (request, place) = (non_null_mut("the request", request)?, non_null_mut("ticket", ticket)?);
        // SAFETY: the caller passes a valid pointer.
        let name = unsafe { (*request).rollback_id };
        let mut last = 0;
        for send in requests::use_up_sends(name)? {
            last = send.into_ticket()?;
        }
        // SAFETY: the caller passes a place that is valid for a write.
        unsafe { place.write(last) };
        Ok(())
    })
}

/// `gdsync_trigger_release`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_trigger_release(trigger: *mut gdsync_trigger, ticket: u64) -> c_int {
    error::status("gdsync_trigger_release", || {
        // SAFETY: the caller lets no other thread free the object.
        Ok(unsafe { TRIGGERS.find(trigger) }?.trigger.release(ticket)?)
    })
}

/// `gdsync_trigger_word`.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_trigger_word(ticket: u64) -> u64 {
    Trigger::word_of(ticket)
}

/// `gdsync_trigger_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_trigger_free(trigger: *mut gdsync_trigger) -> c_int {
    error::status("gdsync_trigger_free", || {
        TRIGGERS.take(trigger)?;
        providers::forget(trigger);
        Ok(())
    })
}

/// The ready words of programs. Requests behind a word keep it alive, too.
static READY_WORDS: Named<gdsync_ready_word, CardWord> = Named::new(
    "the ready word",
    "pass what gdsync_ready_word_create returned, and no copy, until gdsync_ready_word_free",
);

/// `gdsync_ready_word_create`.
///
/// # Safety
/// Domain and context are null or valid, and outlive the word and the requests that wait for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_ready_word_create(
    pd: *mut ibv_pd,
    context: *mut ibv_context,
) -> *mut gdsync_ready_word {
    log::start();
    error::pointer("gdsync_ready_word_create", || {
        // SAFETY: the caller keeps the domain and the context alive.
        let (_, domain) = unsafe { objects::domain(context, pd) }?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let word = CardWord::in_region(&MemoryRegion::allocate(&domain, size_of::<u64>(), access)?, 0)?;
        let (address, rkey) = (word.address() as usize, word.remote().rkey);
        let made = READY_WORDS
            .keep(word, |_| gdsync_ready_word { word: with_exposed_provenance_mut(address), rkey })?;
        providers::adopt(ObjectKind::ReadyWord, made, pd.addr());
        Ok(made)
    })
}

/// `gdsync_ready_word_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_ready_word_free(word: *mut gdsync_ready_word) -> c_int {
    error::status("gdsync_ready_word_free", || {
        READY_WORDS.take(word)?;
        providers::forget(word);
        Ok(())
    })
}

/// `gdsync_send_behind`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_send_behind(
    send: *mut gdsync_request,
    word: *mut gdsync_ready_word,
) -> c_int {
    error::status("gdsync_send_behind", || {
        // SAFETY: the caller lets no other thread free the object.
        unsafe { persistent::set_behind(send, READY_WORDS.find(word)?) }
    })
}

/// `gdsync_count_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_count_init(
    qp: *mut gds_qp,
    remote_addr: u64,
    rkey: u32,
) -> *mut gdsync_request {
    error::pointer("gdsync_count_init", || {
        // SAFETY: the caller lets no other thread destroy the object.
        let object = unsafe { objects::queue_pair(qp) }?;
        let count = work::persistent_count(object, remote_addr, rkey)?;
        persistent::keep(qp.addr(), 0, Work::Send(count))
    })
}
