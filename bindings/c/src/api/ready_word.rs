//! `gdsync/ext.h`: sends that the card holds back until their receives are posted.

use crate::error;
use crate::named::Named;
use crate::persistent::{self, Work};
use crate::types::{gds_qp, gdsync_ready_word, gdsync_request};
use crate::{log, objects, work};
use gdsync::qp::CardWord;
use gdsync::{Access, MemoryRegion};
use gdsync_sys::verbs::{ibv_context, ibv_pd};
use libc::c_int;

/// Requests behind a word keep it, too.
static READY_WORDS: Named<gdsync_ready_word, CardWord> = Named::new(
    "the ready word",
    "pass what gdsync_ready_word_create returned, and no copy, until gdsync_ready_word_free",
);

/// `gdsync_ready_word_create`.
///
/// # Safety
/// Domain and context are null or valid, and outlive the word and the requests behind it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_ready_word_create(
    pd: *mut ibv_pd,
    context: *mut ibv_context,
) -> *mut gdsync_ready_word {
    log::start();
    error::pointer("gdsync_ready_word_create", || {
        // SAFETY: the caller's.
        let (_, domain) = unsafe { objects::domain(context, pd) }?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let word = CardWord::in_region(&MemoryRegion::allocate(&domain, size_of::<u64>(), access)?, 0)?;
        let (address, rkey) = (word.address() as usize, word.remote().rkey);
        READY_WORDS
            .keep(word, |_| gdsync_ready_word { word: std::ptr::with_exposed_provenance_mut(address), rkey })
    })
}

/// `gdsync_ready_word_free`.
///
/// # Safety
/// No other thread uses the word.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_ready_word_free(word: *mut gdsync_ready_word) -> c_int {
    error::status("gdsync_ready_word_free", || READY_WORDS.take(word).map(drop))
}

/// `gdsync_send_behind`.
///
/// # Safety
/// No other thread frees the request or the word.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_send_behind(
    send: *mut gdsync_request,
    word: *mut gdsync_ready_word,
) -> c_int {
    error::status("gdsync_send_behind", || {
        // SAFETY: the caller's.
        unsafe { persistent::set_behind(send, READY_WORDS.find(word)?) }
    })
}

/// `gdsync_count_init`.
///
/// # Safety
/// No other thread destroys the queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_count_init(
    qp: *mut gds_qp,
    remote_addr: u64,
    rkey: u32,
) -> *mut gdsync_request {
    error::pointer("gdsync_count_init", || {
        // SAFETY: the caller's.
        let object = unsafe { objects::queue_pair(qp) }?;
        let count = work::persistent_count(object, remote_addr, rkey)?;
        persistent::keep(qp.addr(), 0, Work::Send(count))
    })
}
