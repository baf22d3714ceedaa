//! Posting one send: little more than the driver's call, as programs that send from a loop do little else.

use super::flight::{Held, InFlight, Past};
use super::post::{State, Stream};
use super::post_error::{PostError, PostFailure, Posted};
use super::{MemOp, MemOpStream};
use crate::batch::Batch;
use crate::prepared::PreparedSend;
use parking_lot::MutexGuard;
use tracing::level_filters::LevelFilter;

impl<B: MemOpStream> Stream<B> {
    /// Posts a prepared send: what [`Self::post`] does with a batch of it alone, for less of the CPU's time.
    ///
    /// # Errors
    /// As [`Self::post`].
    pub fn post_send(&self, send: PreparedSend) -> Result<Posted, PostError> {
        let mut state = self.lock();
        let plain = state.plain.get();
        if plain == 0 || LevelFilter::current() >= LevelFilter::TRACE {
            return self.post_send_with_care(state, send);
        }
        // What was remembered of the last ones serves: their pages, their order.
        state.translations.refresh(&self.backend);
        let end = state.issued.next();
        let doorbell = send.doorbell();
        let known = |addr| state.translations.known(addr);
        let (Some(record), Some(register)) = (known(doorbell.record_at), known(doorbell.register)) else {
            return self.post_send_with_care(state, send);
        };
        let Some(before) = send.commit_next(&self.lane, end) else {
            return self.post_send_with_care(state, send);
        };
        let ops = [
            MemOp::Write32 { addr: record, value: doorbell.record },
            MemOp::Write64 { addr: register, value: doorbell.value },
        ];
        // SAFETY: as in `submit_lowered`: both addresses were translated by this backend, and belong to the queue pair, which the
        // submission in flight holds; the lock on the state keeps others from submitting.
        if let Err(error) = unsafe { self.backend.submit(&ops) } {
            send.undo_next(before);
            return Err(self.refuse(state, Batch::new().send(send), 0, error.into()));
        }
        state.issued = end;
        state.unwritten += 1;
        state.weight += 1;
        state.plain.set(plain - 1);
        state.in_flight.push_back(InFlight { end, weight: 1, held: Held::Send(send.into_queue_pair()) });
        Ok(Posted { operations: ops.len(), submissions: 1 })
    }

    /// The same, whatever has to be looked after.
    #[cold]
    #[inline(never)]
    fn post_send_with_care(
        &self,
        mut state: MutexGuard<'_, State>,
        mut send: PreparedSend,
    ) -> Result<Posted, PostError> {
        // Dropped after the lock: anything may hang on it.
        let past = if state.is_long(&self.caps) { self.reap(&mut state) } else { Past::default() };
        let tickets = state.next_ticket();
        let end = tickets.end;
        let lowered = self.submit_lowered(&mut state, tickets, |state, ops, rings| {
            match send.commit(&self.lane, end)? {
                Some(doorbell) => Ok(self.lower_send(state, &send, doorbell, ops, rings)?),
                None => Ok::<(), PostFailure>(()),
            }
        });
        match lowered {
            Ok((tickets, operations)) => {
                state.accept(tickets, Held::Send(send.into_queue_pair()), 1, &self.caps);
                drop(state);
                drop(past);
                Ok(Posted { operations, submissions: 1 })
            }
            Err(source) => {
                send.undo();
                Err(self.refuse(state, Batch::new().send(send), 0, source))
            }
        }
    }
}
