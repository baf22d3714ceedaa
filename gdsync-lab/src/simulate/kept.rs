//! Persistent requests that an end keeps, and their starts.

use super::program::KEEP;
use gdsync::persistent::{PersistentRecv, PersistentSend, Request};
use gdsync::queue::Status;
use gdsync_sys::prm::wqe::Opcode;
use std::time::Duration;

/// Those of an end, by their places.
pub(super) type Places = [Option<Kept>; 2 * KEEP];

/// A persistent request of an end, in one of its places: the first [`KEEP`] are for sends, the others for receives.
pub(super) struct Kept {
    pub(super) request: Held,
    pub(super) opcode: Opcode,
    pub(super) bytes: Vec<u8>,
    /// Where a write puts them.
    pub(super) at: usize,
    pub(super) immediate: [u8; 4],
    /// Starts whose outcome is not known.
    pub(super) open: usize,
    /// True if one has failed since the last completion.
    pub(super) has_failed: bool,
    pub(super) was_started: bool,
    /// The stream that waits for the newest start.
    pub(super) awaited_on: Option<usize>,
}

pub(super) enum Held {
    Send(PersistentSend),
    Receive(PersistentRecv),
}

impl Held {
    pub(super) fn request(&mut self) -> &mut dyn Request {
        match self {
            Held::Send(send) => send,
            Held::Receive(receive) => receive,
        }
    }

    pub(super) fn status(&self) -> Option<Status> {
        match self {
            Held::Send(send) => send.status(),
            Held::Receive(receive) => receive.status(),
        }
    }
}

/// A start whose outcome is not known.
pub(super) struct Start {
    /// Serial number of a send, index of a receive.
    pub(super) key: u64,
    pub(super) place: usize,
    pub(super) status: Status,
}

impl Kept {
    /// Completes a request whose starts have all completed.
    pub(super) fn complete(&mut self) -> Result<(), String> {
        let completion = match &mut self.request {
            Held::Send(send) => send.complete(Duration::ZERO),
            Held::Receive(receive) => receive.complete(Duration::ZERO),
        };
        let completion =
            completion.map_err(|error| format!("a persistent request that was started: {error}"))?;
        let Some(completion) = completion else {
            return Err("a persistent request has all its statuses, and does not complete".to_owned());
        };
        if completion.status.is_err() != self.has_failed {
            return Err(format!("the statuses of a persistent request tell another outcome: {completion:?}"));
        }
        (self.was_started, self.has_failed) = (false, false);
        Ok(())
    }
}
