//! A work request's entry and buffers, as they were when the card could first have read them.

use crate::card::memory::fingerprint::Fingerprint;
use crate::card::queue::wqe::Work;
use gdsync_sys::prm::cqe::Syndrome;

/// The entry and the buffers of a work request, as they were.
#[derive(Debug)]
pub(super) struct Owned {
    /// The bytes of its blocks.
    pub(super) entry: Vec<u8>,
    /// Its source buffers. `None` as long as the card may not have read them.
    pub(super) sources: Option<Vec<Fingerprint>>,
}

impl Owned {
    pub(super) fn new(entry: &[u8]) -> Box<Self> {
        Box::new(Owned { entry: entry.to_vec(), sources: None })
    }
}

/// Describes a work request for people.
pub(super) fn describe(work: &Result<Work, Syndrome>) -> String {
    match work {
        Ok(work) => format!("{:?} of {} bytes", work.opcode, work.length),
        Err(_) => "a malformed request".to_owned(),
    }
}
