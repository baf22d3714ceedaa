//! What a queue does at a rank, with what it needs, so that it can be done again.

use gdsync::{RemoteMemory, Slice, WorkRequest};

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Writes a slice.
    Write(Slice, RemoteMemory),
    /// Sets a notification.
    Set([u8; 4], RemoteMemory),
    /// Asks whether the card answers: an empty write.
    Probe,
}

impl Action {
    pub(crate) fn request(&self) -> WorkRequest<'_> {
        match self {
            Action::Write(slice, to) => WorkRequest::write(std::slice::from_ref(slice), *to),
            Action::Set(value, to) => WorkRequest::write_inline(value, *to),
            Action::Probe => WorkRequest::write_inline(&[], RemoteMemory { addr: 0, len: 0, rkey: 0 }),
        }
    }
}
