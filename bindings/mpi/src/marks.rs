//! Marks of partitions that kernels write and read: words of pinned memory, `struct gdsync_mpix_marks` of `mpi-acx.h`.

use crate::error::{Class, Failure};
use crate::memory;
use gdsync::cuda;
use gdsync::cudarc::driver::sys;
use gdsync::{PinnedMemory, memop::Word32};

/// The words before the marks: how many partitions there are, and the number of the round.
const HEAD: usize = 2;
const ROUND: usize = 1;

/// The marks of a request. A partition is marked where its word has the number of the round: kernels mark what is ready,
/// and the library what has arrived.
#[derive(Debug)]
pub(crate) struct Marks {
    memory: PinnedMemory,
    words: Vec<Word32>,
}

impl Marks {
    /// Marks of a request that has had no round.
    ///
    /// # Errors
    /// [`Class::Memory`].
    pub(crate) fn new(partitions: u32) -> Result<Self, Failure> {
        let number = HEAD + partitions as usize;
        let failed = |error: String| Failure::new(Class::Memory, format!("{number} words of marks: {error}"));
        let memory =
            PinnedMemory::allocate(number * size_of::<u32>()).map_err(|error| failed(error.to_string()))?;
        let word = |index| Word32::new(&memory, index * size_of::<u32>());
        let words: Vec<_> =
            (0..number).map(word).collect::<Result<_, _>>().map_err(|error| failed(error.to_string()))?;
        words[0].store(partitions);
        Ok(Marks { memory, words })
    }

    /// Their address: for kernels of the GPU whose context is current, or for the CPU where there is none.
    ///
    /// # Errors
    /// [`Class::Memory`] where the GPU cannot reach them.
    pub(crate) fn address(&self) -> Result<u64, Failure> {
        let mut ordinal = 0;
        let has_context = cuda::device_count().is_ok_and(|count| count > 0) && {
            // SAFETY: the driver is initialised (`device_count`); `ordinal` is a valid place.
            unsafe { sys::cuCtxGetDevice(&mut ordinal) == sys::CUresult::CUDA_SUCCESS }
        };
        if !has_context {
            return Ok(self.memory.addr().get());
        }
        let context = memory::context(u32::try_from(ordinal).unwrap_or(0))?;
        cuda::pin(&context, &self.memory).map_err(|error| Failure::new(Class::Memory, error))
    }

    /// A round begins: nothing is marked.
    pub(crate) fn next_round(&self) {
        let round = self.words[ROUND].load().wrapping_add(1);
        self.words[HEAD..].iter().for_each(|mark| mark.store(round.wrapping_sub(1)));
        self.words[ROUND].store(round);
    }

    /// Marks a partition. What was written before is visible to who sees the mark.
    pub(crate) fn mark(&self, index: usize) {
        self.words[HEAD + index].store(self.words[ROUND].load());
    }

    pub(crate) fn is_marked(&self, index: usize) -> bool {
        self.words[HEAD + index].load() == self.words[ROUND].load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_of_one_round() {
        let marks = Marks::new(3).unwrap();
        marks.next_round();
        marks.mark(1);
        assert_eq!([0, 1, 2].map(|index| marks.is_marked(index)), [false, true, false]);
        marks.words[ROUND].store(u32::MAX);
        marks.mark(2);
        assert!(marks.is_marked(2));
        marks.next_round();
        assert_eq!([0, 1, 2].map(|index| marks.is_marked(index)), [false; 3], "the numbers wrap");
        assert_eq!(marks.words[0].load(), 3);
    }
}
