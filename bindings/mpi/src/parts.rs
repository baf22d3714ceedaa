//! Persistent requests that are started, waited for and completed together.

use crate::channel::Channel;
use crate::error::{Class, Failure};
use crate::memory::Region;
use gdsync::persistent::{PersistentError, PersistentRecv, PersistentSend, Request};
use gdsync::qp::CardWord;
use gdsync::queue::{Syndrome, WorkError};
use gdsync::{Completion, RemoteMemory};
use std::ops::Range;
use std::time::Duration;

#[derive(Debug)]
pub(crate) enum Part {
    Send(PersistentSend),
    Receive(PersistentRecv),
    /// Tells the sending side that the receives of a start are posted. No stream waits for it.
    Ready(PersistentSend),
}

/// By what the card of the sending side knows that the receives of a start are posted.
#[derive(Debug)]
pub(crate) enum Readiness {
    /// Of the sending side: its word, which the other side counts up.
    Word(CardWord),
    /// Of the receiving side: the other side's word.
    Remote(RemoteMemory),
    /// The sending side's card waits for no words: it repeats a message until its receive is there.
    Unknown,
}

impl Part {
    /// The stream's view of it.
    pub(crate) fn request(&mut self) -> &mut dyn Request {
        match self {
            Part::Send(send) | Part::Ready(send) => send,
            Part::Receive(receive) => receive,
        }
    }

    /// A stream has to wait for it.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_active() && !matches!(self, Part::Ready(_))
    }

    pub(crate) fn is_active(&self) -> bool {
        match self {
            Part::Send(send) | Part::Ready(send) => send.is_active(),
            Part::Receive(receive) => receive.is_active(),
        }
    }

    /// `None` while it is active.
    fn complete(&mut self) -> Option<Completion> {
        let result = match self {
            Part::Send(send) | Part::Ready(send) => send.complete(Duration::ZERO),
            Part::Receive(receive) => receive.complete(Duration::ZERO),
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

/// All parts of a request.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) all: Vec<Part>,
    /// Bytes received since the last outcome.
    bytes: u64,
    /// The first failure since then.
    failed: Option<Failure>,
}

impl Parts {
    pub(crate) fn new(all: Vec<Part>) -> Self {
        Parts { all, bytes: 0, failed: None }
    }

    /// The parts of a message, each of at most `part` bytes: one of none where the message has none. A receive may
    /// have more bytes than its message.
    pub(crate) fn of_message(
        channel: &Channel,
        (sends, readiness): (bool, &Readiness),
        region: &Region,
        (message, capacity): (u64, u64),
        part: u64,
    ) -> Result<Self, Failure> {
        let last = if sends { message } else { capacity };
        let parts = ranges(message, part).map(|start| {
            let range = start as usize..last.min(start.saturating_add(part)) as usize;
            let slices = region.slices(range)?;
            if !sends {
                return Ok(Part::Receive(PersistentRecv::new(&channel.queue_pair, &slices)?));
            }
            let send = PersistentSend::send(&channel.queue_pair, &slices)?;
            // The others come behind the first one.
            Ok(Part::Send(match readiness {
                Readiness::Word(word) if start == 0 => send.behind(word)?,
                _ => send,
            }))
        });
        let mut all = parts.collect::<Result<Vec<_>, Failure>>()?;
        if let Readiness::Remote(word) = readiness {
            all.push(Part::Ready(PersistentSend::count(&channel.queue_pair, *word)?));
        }
        Ok(Parts::new(all))
    }

    pub(crate) fn is_active(&self) -> bool {
        self.all.iter().any(Part::is_active)
    }

    /// Where all parts have completed: the bytes received since the last outcome, or the first failure.
    pub(crate) fn outcome(&mut self) -> Option<Result<u64, Failure>> {
        for part in &mut self.all {
            let Some(completion) = part.complete() else { continue };
            if matches!(part, Part::Receive(_)) {
                self.bytes += u64::from(completion.byte_len);
            }
            if let Err(error) = completion.status {
                self.failed.get_or_insert(failure_of(error));
            }
        }
        if self.is_active() {
            return None;
        }
        let bytes = std::mem::take(&mut self.bytes);
        Some(self.failed.take().map_or(Ok(bytes), Err))
    }

    /// A new start: bytes of earlier ones do not count.
    pub(crate) fn restart(&mut self) {
        self.bytes = 0;
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

/// How many parts a message has.
pub(crate) fn number_of(message: u64, part: u64) -> u64 {
    message.div_ceil(part).max(1)
}

/// Where the parts of a message start.
pub(crate) fn ranges(message: u64, part: u64) -> impl Iterator<Item = u64> {
    let numbers: Range<u64> = 0..number_of(message, part);
    numbers.map(move |number| number * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_at_least_one_part_and_no_empty_one_besides() {
        let starts = |message, part| ranges(message, part).collect::<Vec<_>>();
        assert_eq!(starts(0, 4), [0]);
        assert_eq!(starts(4, 4), [0]);
        assert_eq!(starts(9, 4), [0, 4, 8]);
        assert_eq!(number_of(5 << 30, 1 << 30), 5);
    }
}
