//! Persistent requests of gdsync that are started, waited for and completed together.

use crate::connection::{ClearToSend, Connection};
use crate::error::{Class, Failure};
use crate::memory::Region;
use gdsync::Completion;
use gdsync::persistent::{PersistentError, PersistentRecv, PersistentSend, Request};
use gdsync::queue::{Syndrome, WorkError};
use std::time::Duration;

#[derive(Debug)]
pub(crate) enum Persistent {
    Send(PersistentSend),
    Receive(PersistentRecv),
    /// Counts up the sending side's clear-to-send word. No stream waits for it.
    ClearToSend(PersistentSend),
}

impl Persistent {
    pub(crate) fn request(&mut self) -> &mut dyn Request {
        match self {
            Persistent::Send(send) | Persistent::ClearToSend(send) => send,
            Persistent::Receive(receive) => receive,
        }
    }

    fn is_active(&self) -> bool {
        match self {
            Persistent::Send(send) | Persistent::ClearToSend(send) => send.is_active(),
            Persistent::Receive(receive) => receive.is_active(),
        }
    }

    /// Returns `None` while the request is active, and when it was not started.
    fn complete(&mut self) -> Option<Completion> {
        let result = match self {
            Persistent::Send(send) | Persistent::ClearToSend(send) => send.complete(Duration::ZERO),
            Persistent::Receive(receive) => receive.complete(Duration::ZERO),
        };
        match result {
            Ok(completion) => completion,
            Err(PersistentError::Inactive) => None,
            Err(error) => {
                tracing::error!(%error, "a part does not complete");
                None
            }
        }
    }
}

/// The persistent requests of a transfer, a collective or a message of a link.
#[derive(Debug)]
pub(crate) struct PersistentGroup {
    pub(crate) all: Vec<Persistent>,
    /// Bytes received since the last outcome.
    bytes: u64,
    /// The first failure since the last outcome.
    failed: Option<Failure>,
}

impl PersistentGroup {
    pub(crate) fn new(all: Vec<Persistent>) -> Self {
        PersistentGroup { all, bytes: 0, failed: None }
    }

    /// The fragments of a message, each of at most `fragment_bytes` bytes; an empty message has one empty fragment. A receive
    /// may have more bytes than its message.
    pub(crate) fn of_message(
        connection: &Connection,
        (sends, clear): (bool, &ClearToSend),
        region: &Region,
        (message, capacity): (u64, u64),
        fragment_bytes: u64,
    ) -> Result<Self, Failure> {
        let end = if sends { message } else { capacity };
        let fragments = fragment_offsets(message, fragment_bytes).map(|start| {
            let range = start as usize..end.min(start.saturating_add(fragment_bytes)) as usize;
            let slices = region.slices(range)?;
            if !sends {
                return Ok(Persistent::Receive(PersistentRecv::new(&connection.queue_pair, &slices)?));
            }
            let send = PersistentSend::send(&connection.queue_pair, &slices)?;
            // The queue pair's order holds back the other fragments with the first one.
            Ok(Persistent::Send(match clear {
                ClearToSend::Await(word) if start == 0 => send.card_wait(word)?,
                _ => send,
            }))
        });
        let mut all = fragments.collect::<Result<Vec<_>, Failure>>()?;
        if let ClearToSend::Notify(word) = clear {
            let write = PersistentSend::write_start_count(&connection.queue_pair, *word)?;
            all.push(Persistent::ClearToSend(write));
        }
        Ok(PersistentGroup::new(all))
    }

    /// Prepares a new start, whose outcome has no bytes of earlier ones. Returns the requests to start.
    pub(crate) fn restart(&mut self) -> impl Iterator<Item = &mut dyn Request> {
        self.bytes = 0;
        self.all.iter_mut().map(Persistent::request)
    }

    /// The active requests for which a stream has to wait.
    pub(crate) fn awaited(&mut self) -> impl Iterator<Item = &mut dyn Request> {
        let is_awaited =
            |each: &&mut Persistent| each.is_active() && !matches!(each, Persistent::ClearToSend(_));
        self.all.iter_mut().filter(is_awaited).map(Persistent::request)
    }

    /// Once all requests have completed, returns the bytes received since the last outcome, or the first failure.
    pub(crate) fn outcome(&mut self) -> Option<Result<u64, Failure>> {
        for each in &mut self.all {
            let Some(completion) = each.complete() else { continue };
            if matches!(each, Persistent::Receive(_)) {
                self.bytes += u64::from(completion.byte_len);
            }
            if let Err(error) = completion.status {
                self.failed.get_or_insert(failure_of(error));
            }
        }
        if self.all.iter().any(Persistent::is_active) {
            return None;
        }
        let bytes = std::mem::take(&mut self.bytes);
        Some(self.failed.take().map_or(Ok(bytes), Err))
    }
}

fn failure_of(error: WorkError) -> Failure {
    match error.kind() {
        Some(Syndrome::LocalLength | Syndrome::RemoteInvalidRequest) => {
            let text = "the message is longer than its receive: make that longer, or the message shorter";
            Failure::new(Class::Truncate, text)
        }
        _ => Failure::new(Class::Peer, format!("the transfer failed, and the peer may have: {error}")),
    }
}

pub(crate) fn fragment_count(message: u64, fragment_bytes: u64) -> u64 {
    message.div_ceil(fragment_bytes).max(1)
}

pub(crate) fn fragment_offsets(message: u64, fragment_bytes: u64) -> impl Iterator<Item = u64> {
    (0..fragment_count(message, fragment_bytes)).map(move |number| number * fragment_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_at_least_one_fragment_and_no_empty_one_besides() {
        let starts = |message, bytes| fragment_offsets(message, bytes).collect::<Vec<_>>();
        assert_eq!(starts(0, 4), [0]);
        assert_eq!(starts(4, 4), [0]);
        assert_eq!(starts(9, 4), [0, 4, 8]);
        assert_eq!(fragment_count(5 << 30, 1 << 30), 5);
    }
}
