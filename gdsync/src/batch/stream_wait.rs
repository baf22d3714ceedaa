//! Waits for words that the CPU can cancel.

use super::Descriptor;
use crate::memop::{Condition, Word32, Word64, WordError};

/// A wait for a word that no card writes, and that the CPU can cancel: a stream that waits for it
/// then continues.
///
/// (To end a wait for a completion, call [`crate::QueuePair::abort`].)
#[derive(Clone, Debug)]
pub struct StreamWait {
    word: Word,
    condition: Condition,
}

#[derive(Clone, Debug)]
enum Word {
    Short { word: Word32, value: u32, satisfier: u32 },
    Long { word: Word64, value: u64, satisfier: u64 },
}

impl StreamWait {
    /// A wait until a 32-bit word meets a condition.
    ///
    /// # Errors
    /// [`WordError::NeverSatisfied`](crate::memop::WordError::NeverSatisfied) where no value does.
    pub fn on32(word: &Word32, condition: Condition, value: u32) -> Result<Self, WordError> {
        let never = WordError::NeverSatisfied { condition, value: value.into() };
        let satisfier = condition.satisfier32(value).ok_or(never)?;
        Ok(StreamWait { word: Word::Short { word: word.clone(), value, satisfier }, condition })
    }

    /// A wait until a 64-bit word meets a condition.
    ///
    /// # Errors
    /// [`WordError::NeverSatisfied`](crate::memop::WordError::NeverSatisfied) where no value does.
    pub fn on64(word: &Word64, condition: Condition, value: u64) -> Result<Self, WordError> {
        let never = WordError::NeverSatisfied { condition, value };
        let satisfier = condition.satisfier64(value).ok_or(never)?;
        Ok(StreamWait { word: Word::Long { word: word.clone(), value, satisfier }, condition })
    }

    /// Writes a value that meets the condition. Every stream that waits for it continues, unless
    /// the word is overwritten before the stream reads it.
    pub fn cancel(&self) {
        match &self.word {
            Word::Short { word, satisfier, .. } => word.store(*satisfier),
            Word::Long { word, satisfier, .. } => word.store(*satisfier),
        }
    }

    pub(super) fn descriptor(&self) -> Descriptor {
        match &self.word {
            Word::Short { word, value, .. } => {
                Descriptor::Wait32(word.clone().into(), self.condition, *value)
            }
            Word::Long { word, value, .. } => Descriptor::Wait64(word.clone().into(), self.condition, *value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PinnedMemory;
    use crate::{Batch, SoftStream, Stream};
    use proptest::prelude::*;
    use std::time::Duration;

    fn condition() -> impl Strategy<Value = Condition> {
        prop_oneof![Just(Condition::Geq), Just(Condition::Eq), Just(Condition::And), Just(Condition::Nor)]
    }

    #[test]
    fn a_cancelled_wait_lets_the_stream_go_on() {
        let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
        let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
        let wait = StreamWait::on32(&word, Condition::Eq, 77).unwrap();
        stream.post(Batch::new().wait_for(&wait)).unwrap();
        assert!(!stream.synchronize_timeout(Duration::from_millis(10)).unwrap());
        assert!(stream.oldest_wait().is_some());
        wait.cancel();
        assert!(stream.synchronize_timeout(Duration::from_secs(30)).unwrap());
        assert!(stream.oldest_wait().is_none());
    }

    #[test]
    fn a_wait_that_nothing_satisfies_is_refused() {
        let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
        assert!(StreamWait::on32(&word, Condition::And, 0).is_err());
        assert!(StreamWait::on32(&word, Condition::Nor, u32::MAX).is_err());
        let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
        let error = stream.post(Batch::new().wait_value32(&word, Condition::And, 0)).unwrap_err();
        assert!(error.to_string().contains("never goes on") && error.batch.len() == 1, "{error}");
    }

    proptest! {
        #[test]
        fn a_satisfier_satisfies(condition in condition(), short: u32, long: u64, edge in prop::sample::select(vec![0, u64::MAX])) {
            for value in [short, edge as u32] {
                let met = condition.satisfier32(value).map(|word| condition.holds32(word, value));
                prop_assert!(met != Some(false));
            }
            for value in [long, edge] {
                let met = condition.satisfier64(value).map(|word| condition.holds64(word, value));
                prop_assert!(met != Some(false));
            }
        }
    }
}
