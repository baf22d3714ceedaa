//! Turns in the order of a stream.

use crate::error::{Class, Failure};
use gdsync::PinnedMemory;
use gdsync::memop::Word32;

/// A place in the order of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    /// The stream stores the numbers of its turns here, one after the other.
    pub(crate) word: Word32,
    pub(crate) number: u32,
}

impl Turn {
    /// Whether a stream whose word has that value has reached this turn.
    pub(crate) fn is_reached_at(&self, word: u32) -> bool {
        word.wrapping_sub(self.number) as i32 >= 0
    }
}

/// The turns of a stream.
#[derive(Debug)]
pub(crate) struct Turns {
    last: Turn,
}

impl Turns {
    /// Turns of a stream that has had none.
    ///
    /// # Errors
    /// [`Class::Memory`].
    pub(crate) fn new() -> Result<Self, Failure> {
        let failed = |error: String| Failure::new(Class::Memory, format!("a stream's turns: {error}"));
        let memory = PinnedMemory::allocate(size_of::<u32>()).map_err(|error| failed(error.to_string()))?;
        let word = Word32::new(&memory, 0).map_err(|error| failed(error.to_string()))?;
        Ok(Turns { last: Turn { word, number: 0 } })
    }

    /// The turn after the last one that was [taken](Self::take).
    pub(crate) fn next(&self) -> Turn {
        Turn { word: self.last.word.clone(), number: self.last.number.wrapping_add(1) }
    }

    /// The stream was given the store of the next turn.
    pub(crate) fn take(&mut self) {
        self.last.number = self.last.number.wrapping_add(1);
    }
}
