//! Words behind which the card holds sends back, that C programs have names of.

use crate::error::CallError;
use crate::named::Named;
use crate::types::gdsync_ready_word;
use gdsync::qp::CardWord;
use gdsync::{Access, MemoryRegion, ProtectionDomain};

/// What a `gdsync_ready_word_t *` stands for. Requests behind the word keep it, too.
pub(crate) struct ReadyWordObject {
    pub(crate) word: CardWord,
}

pub(crate) static READY_WORDS: Named<gdsync_ready_word, ReadyWordObject> = Named::new(
    "the ready word",
    "pass what gdsync_ready_word_create returned, and no copy, until gdsync_ready_word_free",
);

/// Makes a word in memory of its own, and a handle of it.
pub(crate) fn create(domain: &ProtectionDomain) -> Result<*mut gdsync_ready_word, CallError> {
    let region =
        MemoryRegion::allocate(domain, size_of::<u64>(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let word = CardWord::in_region(&region, 0)?;
    let (address, rkey) = (word.address() as usize, word.remote().rkey);
    READY_WORDS.keep(ReadyWordObject { word }, |_| gdsync_ready_word {
        word: std::ptr::with_exposed_provenance_mut(address),
        rkey,
    })
}
