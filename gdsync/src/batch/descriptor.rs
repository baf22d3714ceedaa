//! The one type of a descriptor: what a batch holds, the planner reads and the lowering turns into
//! memory operations.

use crate::memop::{Condition, WordError};
use std::convert::Infallible;

/// One step of a batch.
///
/// `S` is a send, `W` a wait for a completion, `P` the place of a word, `B` a write of bytes, `R`
/// receives and `T` a ticket of a trigger; the last two are in batches of persistent requests only. A batch that can be posted ([`super::Descriptor`]) holds queues and memory there; one on paper
/// ([`super::outline::Descriptor`]), numbers; a shape ([`super::shape::Kind`]), nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Descriptor<S, W, P, B, R = Infallible, T = Infallible> {
    /// Rings the card for a send.
    Send(S),
    /// Waits for a completion.
    WaitCq(W),
    /// Announces receives to the card: one write of a 32-bit word.
    Receives(R),
    /// Releases what waits for a ticket: one write of a 64-bit word.
    Ticket(T),
    /// Waits until a 32-bit word meets a condition.
    Wait32(P, Condition, u32),
    /// Waits until a 64-bit word meets a condition.
    Wait64(P, Condition, u64),
    /// Writes a 32-bit word.
    Write32(P, u32),
    /// Writes a 64-bit word.
    Write64(P, u64),
    /// Writes bytes.
    Bytes(B),
    /// Makes everything before visible before anything after.
    Barrier,
    /// Makes visible what cards wrote before the last wait was satisfied.
    Flush,
}

/// The condition of waits in a shape, whose value is 0: every word that is 0 meets it.
pub(super) const ALWAYS: Condition = Condition::Geq;

impl<S, W, P, B, R, T> Descriptor<S, W, P, B, R, T> {
    /// A descriptor of the same kind that names nothing: it writes zeroes, and its wait is for
    /// [`ALWAYS`].
    pub(crate) fn kind(&self) -> Descriptor<(), (), (), ()> {
        match self {
            Descriptor::Send(_) => Descriptor::Send(()),
            Descriptor::WaitCq(_) => Descriptor::WaitCq(()),
            Descriptor::Wait32(..) => Descriptor::Wait32((), ALWAYS, 0),
            Descriptor::Wait64(..) => Descriptor::Wait64((), ALWAYS, 0),
            Descriptor::Write32(..) | Descriptor::Receives(_) => Descriptor::Write32((), 0),
            Descriptor::Write64(..) | Descriptor::Ticket(_) => Descriptor::Write64((), 0),
            Descriptor::Bytes(_) => Descriptor::Bytes(()),
            Descriptor::Barrier => Descriptor::Barrier,
            Descriptor::Flush => Descriptor::Flush,
        }
    }

    pub(crate) fn is_wait(&self) -> bool {
        matches!(self, Descriptor::WaitCq(_) | Descriptor::Wait32(..) | Descriptor::Wait64(..))
    }

    /// It writes words or bytes of the program, which may look at the stream as soon as it sees them.
    #[inline]
    pub(crate) fn is_write(&self) -> bool {
        matches!(self, Descriptor::Write32(..) | Descriptor::Write64(..) | Descriptor::Bytes(_))
    }

    /// Refuses a wait that no value of the word satisfies.
    #[inline]
    pub(crate) fn check_satisfiable(&self) -> Result<(), WordError> {
        let (satisfier, condition, value) = match *self {
            Descriptor::Wait32(_, condition, value) => {
                (condition.satisfier32(value).map(u64::from), condition, value.into())
            }
            Descriptor::Wait64(_, condition, value) => (condition.satisfier64(value), condition, value),
            _ => return Ok(()),
        };
        if satisfier.is_none() { Err(WordError::NeverSatisfied { condition, value }) } else { Ok(()) }
    }
}
