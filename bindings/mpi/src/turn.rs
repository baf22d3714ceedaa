//! Turns in the order of a stream.

use crate::error::Failure;
use crate::flag::word;
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
    /// [`word`]'s.
    pub(crate) fn new() -> Result<Self, Failure> {
        let (_, word) = word("a stream's turns")?;
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
