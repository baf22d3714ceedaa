//! The one type of a descriptor: what a batch holds, the planner reads and the lowering turns into memory operations.

use crate::memop::{Condition, WordError};

/// One step of a batch.
///
/// `S` is a send, `W` a wait for a completion, `P` the place of a word and `B` a write of bytes. A batch that can be posted
/// ([`super::Descriptor`]) holds queues and memory there; one on paper ([`super::outline::Descriptor`]), numbers; a shape
/// ([`super::shape::Kind`]), nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Descriptor<S, W, P, B> {
    /// Rings the card for a send.
    Send(S),
    /// Waits for a completion.
    WaitCq(W),
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

/// A descriptor as the planner sees it: a send's queue pair; a wait's completion queue and index, unless the wait has a word
/// of its own; the words of bytes, unless they are copied.
pub(crate) type Key = Descriptor<u64, Option<(u64, u32)>, (), Option<usize>>;

impl<S, W, P, B> Descriptor<S, W, P, B> {
    /// The same descriptor with other parts, and no place.
    #[inline(always)]
    pub(crate) fn map<T, V, C>(
        &self,
        send: impl FnOnce(&S) -> T,
        wait: impl FnOnce(&W) -> V,
        bytes: impl FnOnce(&B) -> C,
    ) -> Descriptor<T, V, (), C> {
        match self {
            Descriptor::Send(one) => Descriptor::Send(send(one)),
            Descriptor::WaitCq(one) => Descriptor::WaitCq(wait(one)),
            Descriptor::Wait32(_, condition, value) => Descriptor::Wait32((), *condition, *value),
            Descriptor::Wait64(_, condition, value) => Descriptor::Wait64((), *condition, *value),
            Descriptor::Write32(_, value) => Descriptor::Write32((), *value),
            Descriptor::Write64(_, value) => Descriptor::Write64((), *value),
            Descriptor::Bytes(one) => Descriptor::Bytes(bytes(one)),
            Descriptor::Barrier => Descriptor::Barrier,
            Descriptor::Flush => Descriptor::Flush,
        }
    }

    pub(crate) fn is_wait(&self) -> bool {
        matches!(self, Descriptor::WaitCq(_) | Descriptor::Wait32(..) | Descriptor::Wait64(..))
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
