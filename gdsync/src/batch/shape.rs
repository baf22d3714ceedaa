//! Descriptors, the parts of a batch, and shapes of batches: the kinds of their descriptors.

use crate::batch::Batch;
use crate::memop::{Condition, WordError};
use std::convert::Infallible;
use std::fmt;

/// The kinds of a batch's descriptors. A graph node keeps its shape; each launch fills it with a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[must_use]
pub struct BatchShape {
    kinds: Vec<DescriptorKind>,
}

/// A descriptor without content.
pub(crate) type DescriptorKind = Descriptor<(), (), (), ()>;

impl BatchShape {
    /// Makes the shape of an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the shape of a batch. A send that a trigger releases is a write of a 64-bit word.
    pub fn of(batch: &Batch) -> Self {
        let kind = |one: &super::Descriptor| match one {
            Descriptor::Send(send) if send.ticket().is_some() => DescriptorKind::Write64((), 0),
            other => other.kind(),
        };
        BatchShape { kinds: batch.descriptors.iter().map(kind).collect() }
    }

    fn with(mut self, kind: DescriptorKind) -> Self {
        self.kinds.push(kind);
        self
    }

    /// Adds what [`Batch::send`] adds.
    pub fn send(self) -> Self {
        self.with(DescriptorKind::Send(()))
    }

    /// Adds what [`Batch::wait`] adds.
    pub fn wait(self) -> Self {
        self.with(DescriptorKind::WaitCq(()))
    }

    /// Adds what [`Batch::wait_value32`] adds.
    pub fn wait_value32(self) -> Self {
        self.with(DescriptorKind::Wait32((), ALWAYS, 0))
    }

    /// Adds what [`Batch::wait_value64`] adds.
    pub fn wait_value64(self) -> Self {
        self.with(DescriptorKind::Wait64((), ALWAYS, 0))
    }

    /// Adds what [`Batch::write_value32`] adds.
    pub fn write_value32(self) -> Self {
        self.with(DescriptorKind::Write32((), 0))
    }

    /// Adds what [`Batch::write_value64`] adds.
    pub fn write_value64(self) -> Self {
        self.with(DescriptorKind::Write64((), 0))
    }

    /// Adds what [`Batch::barrier`] adds.
    pub fn barrier(self) -> Self {
        self.with(DescriptorKind::Barrier)
    }

    /// Adds what [`Batch::flush`] adds.
    pub fn flush(self) -> Self {
        self.with(DescriptorKind::Flush)
    }

    /// Returns the number of descriptors.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = DescriptorKind> {
        self.kinds.iter().copied()
    }

    pub(crate) fn ends_with_wait(&self) -> bool {
        matches!(self.kinds.last(), Some(DescriptorKind::WaitCq(())))
    }
}

impl DescriptorKind {
    fn name(&self) -> &'static str {
        match self {
            DescriptorKind::Send(_) => "send",
            DescriptorKind::WaitCq(_) => "wait",
            DescriptorKind::Wait32(..) => "wait_value32",
            DescriptorKind::Wait64(..) => "wait_value64",
            DescriptorKind::Write32(..) | DescriptorKind::Receives(_) => "write_value32",
            DescriptorKind::Write64(..) | DescriptorKind::Ticket(_) => "write_value64",
            DescriptorKind::Bytes(_) => "write_memory",
            DescriptorKind::Barrier => "barrier",
            DescriptorKind::Flush => "flush",
        }
    }
}

impl fmt::Display for BatchShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.kinds.iter().map(|kind| kind.name()).collect();
        write!(f, "[{}]", names.join(", "))
    }
}

/// One step of a batch.
///
/// `S` is a send, `W` a wait for a completion, `P` the place of a word, `B` a write of bytes, `R` receives and `T`
/// a ticket of a trigger; only batches of persistent requests have the last two. They are queues and memory in a
/// batch that can be posted ([`super::Descriptor`]), numbers in one on paper ([`super::outline::Descriptor`]), and
/// nothing in a shape ([`super::shape::DescriptorKind`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Descriptor<S, W, P, B, R = Infallible, T = Infallible> {
    /// Rings the card for a send.
    Send(S),
    WaitCq(W),
    /// Announces receives to the card: one write of a 32-bit word.
    Receives(R),
    /// Releases the work that waits for a ticket: one write of a 64-bit word.
    Ticket(T),
    Wait32(P, Condition, u32),
    Wait64(P, Condition, u64),
    Write32(P, u32),
    Write64(P, u64),
    Bytes(B),
    /// Makes everything before visible before anything after.
    Barrier,
    /// Makes cards' writes from before the last wait was satisfied visible.
    Flush,
}

/// The condition of waits in a shape, with value 0: a word that is 0 meets it.
pub(super) const ALWAYS: Condition = Condition::Geq;

impl<S, W, P, B, R, T> Descriptor<S, W, P, B, R, T> {
    /// Returns a descriptor of the same kind without content: it writes zeroes, or waits for [`ALWAYS`].
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

    /// Returns true for a write of the program's words or bytes, after which the program may query the stream.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memop::{Condition, Word32, Word64};
    use crate::memory::PinnedMemory;

    #[test]
    fn a_batch_has_the_shape_that_names_its_parts() {
        let memory = PinnedMemory::allocate(16).unwrap();
        let (short, long) = (Word32::new(&memory, 0).unwrap(), Word64::new(&memory, 8).unwrap());
        let batch = Batch::new()
            .wait_value32(&short, Condition::Eq, 1)
            .write_value64(&long, 2)
            .write_value32(&short, 3)
            .wait_value64(&long, Condition::Geq, 4);
        let shape = BatchShape::new().wait_value32().write_value64().write_value32().wait_value64();
        assert_eq!(BatchShape::of(&batch), shape);
        assert_eq!(shape.to_string(), "[wait_value32, write_value64, write_value32, wait_value64]");
        assert!(!shape.ends_with_wait() && shape.send().wait().ends_with_wait());
        assert_eq!((BatchShape::new().len(), BatchShape::new().is_empty()), (0, true));
    }
}
