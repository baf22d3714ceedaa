//! Flags that streams wait for: words of pinned memory, each used again and again.

use crate::error::{Class, Failure};
use gdsync::PinnedMemory;
use gdsync::memop::Word32;
use gdsync_sys::wake;
use parking_lot::Mutex;

/// A word of pinned memory of its own, and that memory.
///
/// # Errors
/// [`Class::Memory`], of what it is for.
pub(crate) fn word(of: &str) -> Result<(PinnedMemory, Word32), Failure> {
    let failed = |error: String| Failure::new(Class::Memory, format!("{of}: {error}"));
    let memory = PinnedMemory::allocate(size_of::<u32>()).map_err(|error| failed(error.to_string()))?;
    let word = Word32::new(&memory, 0).map_err(|error| failed(error.to_string()))?;
    Ok((memory, word))
}

/// Bytes allocated at a time.
const PAGE: usize = 4096;

/// Words whose flags are set. A word counts up, and streams compare cyclically: a stream that still waits for an earlier flag of
/// the word passes, whatever the next flag is.
static FREE: Mutex<Vec<Word32>> = Mutex::new(Vec::new());

/// A flag that is set once.
#[derive(Debug)]
pub(crate) struct Flag {
    pub(crate) word: Word32,
    /// The word's value from which on the flag is set, cyclically.
    pub(crate) value: u32,
}

impl Flag {
    /// A flag that is not set.
    ///
    /// # Errors
    /// [`Class::Memory`].
    pub(crate) fn new() -> Result<Self, Failure> {
        let mut free = FREE.lock();
        if free.is_empty() {
            *free = words()?;
        }
        let none = || Failure::new(Class::Memory, "there is no memory for a flag");
        let word = free.pop().ok_or_else(none)?;
        drop(free);
        Ok(Flag { value: word.load().wrapping_add(1), word })
    }

    /// What was written before is visible to every stream and thread that sees the flag.
    pub(crate) fn set(&self) {
        if !self.is_set() {
            self.word.store(self.value);
            wake::wrote(self.word.addr().get() as usize, size_of::<u32>());
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.word.load().wrapping_sub(self.value) as i32 >= 0
    }
}

impl Drop for Flag {
    /// The word is free for the next flag.
    fn drop(&mut self) {
        self.set();
        FREE.lock().push(self.word.clone());
    }
}

/// The words of new memory.
fn words() -> Result<Vec<Word32>, Failure> {
    let failed = |error: String| Failure::new(Class::Memory, format!("{PAGE} bytes of flags: {error}"));
    let memory = PinnedMemory::allocate(PAGE).map_err(|error| failed(error.to_string()))?;
    let offsets = (0..PAGE).step_by(size_of::<u32>());
    offsets.map(|at| Word32::new(&memory, at).map_err(|error| failed(error.to_string()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_serves_one_flag_after_another() {
        let first = Flag::new().unwrap();
        assert!(!first.is_set());
        first.set();
        assert!(first.is_set());
        let (word, value) = (first.word.clone(), first.value);
        drop(first);
        // Threads of other tests may have taken the word.
        let flags: Vec<_> = (0..PAGE).map(|_| Flag::new().unwrap()).collect();
        assert!(flags.iter().all(|flag| !flag.is_set()));
        assert!(word.load().wrapping_sub(value) as i32 >= 0, "a stream that waits for the first flag passes");
    }

    #[test]
    fn the_numbers_of_a_word_may_wrap() {
        let flag = Flag::new().unwrap();
        flag.word.store(u32::MAX);
        let wrapped = Flag { word: flag.word.clone(), value: flag.word.load().wrapping_add(1) };
        assert!(!wrapped.is_set());
        wrapped.set();
        assert!(wrapped.is_set() && wrapped.word.load() == 0);
        std::mem::forget(wrapped);
    }
}
