//! Shapes of batches: the kinds of their descriptors.

use super::Batch;
use super::descriptor::{ALWAYS, Descriptor};
use std::fmt;

/// What a batch consists of. A node of a graph keeps its shape; each launch fills it with a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[must_use]
pub struct BatchShape {
    kinds: Vec<Kind>,
}

/// A descriptor that names nothing.
pub(crate) type Kind = Descriptor<(), (), (), ()>;

impl BatchShape {
    /// The shape of an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// The shape of a batch. A send that a trigger releases is a write of a 64-bit word there.
    pub fn of(batch: &Batch) -> Self {
        let kind = |one: &super::Descriptor| match one {
            Descriptor::Send(send) if send.ticket().is_some() => Kind::Write64((), 0),
            other => other.kind(),
        };
        BatchShape { kinds: batch.descriptors.iter().map(kind).collect() }
    }

    fn with(mut self, kind: Kind) -> Self {
        self.kinds.push(kind);
        self
    }

    /// Adds what [`Batch::send`] adds.
    pub fn send(self) -> Self {
        self.with(Kind::Send(()))
    }

    /// Adds what [`Batch::wait`] adds.
    pub fn wait(self) -> Self {
        self.with(Kind::WaitCq(()))
    }

    /// Adds what [`Batch::wait_value32`] adds.
    pub fn wait_value32(self) -> Self {
        self.with(Kind::Wait32((), ALWAYS, 0))
    }

    /// Adds what [`Batch::wait_value64`] adds.
    pub fn wait_value64(self) -> Self {
        self.with(Kind::Wait64((), ALWAYS, 0))
    }

    /// Adds what [`Batch::write_value32`] adds.
    pub fn write_value32(self) -> Self {
        self.with(Kind::Write32((), 0))
    }

    /// Adds what [`Batch::write_value64`] adds.
    pub fn write_value64(self) -> Self {
        self.with(Kind::Write64((), 0))
    }

    /// Adds what [`Batch::barrier`] adds.
    pub fn barrier(self) -> Self {
        self.with(Kind::Barrier)
    }

    /// Adds what [`Batch::flush`] adds.
    pub fn flush(self) -> Self {
        self.with(Kind::Flush)
    }

    /// Number of descriptors.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = Kind> {
        self.kinds.iter().copied()
    }

    /// True if the last descriptor is a wait for a completion: the stream writes its point after
    /// that anyway.
    pub(crate) fn ends_with_wait(&self) -> bool {
        matches!(self.kinds.last(), Some(Kind::WaitCq(())))
    }
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Kind::Send(_) => "send",
            Kind::WaitCq(_) => "wait",
            Kind::Wait32(..) => "wait_value32",
            Kind::Wait64(..) => "wait_value64",
            Kind::Write32(..) | Kind::Receives(_) => "write_value32",
            Kind::Write64(..) | Kind::Ticket(_) => "write_value64",
            Kind::Bytes(_) => "write_memory",
            Kind::Barrier => "barrier",
            Kind::Flush => "flush",
        }
    }
}

impl fmt::Display for BatchShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.kinds.iter().map(|kind| kind.name()).collect();
        write!(f, "[{}]", names.join(", "))
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
