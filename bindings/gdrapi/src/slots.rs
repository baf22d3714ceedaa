//! A table of objects by handle, without a lock that all lookups share: a copy of a few bytes takes little longer than the lookup.

use crate::error::CallError;
use parking_lot::{Mutex, RwLock};
use std::sync::OnceLock;

/// The bits of a handle that are the index of its slot. The other bits are a number that is never reused.
const INDEX_BITS: u32 = 24;
/// Slots of the first chunk; each further chunk has twice as many as the one before.
const FIRST: usize = 64;
const CHUNKS: usize = (INDEX_BITS - FIRST.ilog2()) as usize;
/// The maximum number of slots.
const MOST: usize = (FIRST << CHUNKS) - FIRST;

/// A slot, which holds objects in turn.
struct Slot<T> {
    /// The object's handle; 0 while the slot is empty.
    handle: u64,
    content: Option<T>,
}

impl<T> Slot<T> {
    fn content(&self, handle: u64) -> Option<&T> {
        self.content.as_ref().filter(|_| self.handle == handle)
    }
}

type Chunk<T> = Box<[RwLock<Slot<T>>]>;

struct Free {
    indices: Vec<usize>,
    /// The first slot that never held an object.
    unused: usize,
}

/// All slots. They do not move, and are freed together.
pub(crate) struct Slots<T> {
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
    free: Mutex<Free>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        let free = Free { indices: Vec::new(), unused: 0 };
        Slots { chunks: [const { OnceLock::new() }; CHUNKS], free: Mutex::new(free) }
    }
}

/// Returns the chunk of an index, and the position in the chunk.
fn place(index: usize) -> (usize, usize) {
    let from_first = index + FIRST;
    let chunk = (from_first.ilog2() - FIRST.ilog2()) as usize;
    (chunk, from_first - (FIRST << chunk))
}

fn unknown(handle: u64) -> CallError {
    CallError::Unknown { what: "memory handle", value: handle }
}

impl<T> Slots<T> {
    fn slot(&self, index: usize) -> Option<&RwLock<Slot<T>>> {
        let (chunk, at) = place(index);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// Returns the slot of a handle, which may hold another object by now.
    fn slot_of(&self, handle: u64) -> Result<&RwLock<Slot<T>>, CallError> {
        self.slot((handle & ((1 << INDEX_BITS) - 1)) as usize).ok_or_else(|| unknown(handle))
    }

    /// Adds an object. Returns its handle. The number was never used before, is not 0, and has at most 40 bits.
    pub(crate) fn add(&self, number: u64, content: T) -> Result<u64, CallError> {
        let index = {
            let mut free = self.free.lock();
            match free.indices.pop() {
                Some(index) => index,
                None if free.unused == MOST => return Err(CallError::Full { most: MOST }),
                None => {
                    free.unused += 1;
                    free.unused - 1
                }
            }
        };
        let (chunk, at) = place(index);
        let handle = number << INDEX_BITS | index as u64;
        let empty = || RwLock::new(Slot { handle: 0, content: None });
        let chunk = self.chunks[chunk].get_or_init(|| (0..FIRST << chunk).map(|_| empty()).collect());
        *chunk[at].write() = Slot { handle, content: Some(content) };
        Ok(handle)
    }

    /// Calls `body` with the object of this handle, concurrently with other readers.
    #[inline]
    pub(crate) fn read<R>(
        &self,
        handle: u64,
        body: impl FnOnce(&T) -> Result<R, CallError>,
    ) -> Result<R, CallError> {
        let slot = self.slot_of(handle)?.read();
        body(slot.content(handle).ok_or_else(|| unknown(handle))?)
    }

    /// Calls `body` with the object of this handle, exclusively.
    pub(crate) fn write<R>(
        &self,
        handle: u64,
        body: impl FnOnce(&mut T) -> Result<R, CallError>,
    ) -> Result<R, CallError> {
        let mut slot = self.slot_of(handle)?.write();
        let slot = &mut *slot;
        let content = slot.content.as_mut().filter(|_| slot.handle == handle);
        body(content.ok_or_else(|| unknown(handle))?)
    }

    /// Removes the object of this handle, if `may_go` allows it.
    pub(crate) fn remove(
        &self,
        handle: u64,
        may_go: impl FnOnce(&T) -> Result<(), CallError>,
    ) -> Result<T, CallError> {
        let mut slot = self.slot_of(handle)?.write();
        may_go(slot.content(handle).ok_or_else(|| unknown(handle))?)?;
        self.empty(&mut slot).ok_or_else(|| unknown(handle))
    }

    /// Removes all objects for which `such` is true.
    pub(crate) fn remove_all(&self, such: impl Fn(&T) -> bool) -> Vec<T> {
        let unused = self.free.lock().unused;
        let taken = (0..unused).filter_map(|index| {
            let mut slot = self.slot(index)?.write();
            if !slot.content.as_ref().is_some_and(&such) {
                return None;
            }
            self.empty(&mut slot)
        });
        taken.collect()
    }

    fn empty(&self, slot: &mut Slot<T>) -> Option<T> {
        let index = slot.handle & ((1 << INDEX_BITS) - 1);
        slot.handle = 0;
        let content = slot.content.take();
        // The slot's lock is held; holders of this lock do not wait for a slot.
        self.free.lock().indices.push(index as usize);
        content
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_index_has_a_place_of_its_own() {
        assert_eq!(
            (place(0), place(63), place(64), place(191), place(192)),
            ((0, 0), (0, 63), (1, 0), (1, 127), (2, 0))
        );
        let (chunk, at) = place(MOST - 1);
        assert_eq!((chunk, at), (CHUNKS - 1, (FIRST << (CHUNKS - 1)) - 1));
        const { assert!(MOST <= 1 << INDEX_BITS) };
    }

    #[test]
    fn handles_find_their_own_and_never_anothers() {
        let slots = Slots::default();
        let mut model = BTreeMap::new();
        let mut gone = Vec::new();
        let mut random = 1u64;
        for number in 1..3000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let handle = slots.add(number, number).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(model.insert(handle, number), None);
            if !(random >> 33).is_multiple_of(3) {
                let at = (random >> 40) as usize % model.len();
                let Some((&handle, &number)) = model.iter().nth(at) else { panic!("there are some") };
                assert!(slots.remove(handle, |_| Err(CallError::NotMapped)).is_err());
                assert_eq!(slots.remove(handle, |_| Ok(())).ok(), Some(number));
                model.remove(&handle);
                gone.push(handle);
            }
        }
        for (&handle, &number) in &model {
            assert_eq!(slots.read(handle, |content| Ok(*content)).ok(), Some(number));
        }
        for handle in gone.into_iter().chain([0, 1, u64::MAX, MOST as u64]) {
            assert!(slots.read(handle, |_| Ok(())).is_err());
            assert!(slots.write(handle, |_| Ok(())).is_err());
            assert!(slots.remove(handle, |_| Ok(())).is_err());
        }
        let (odd, all) = (slots.remove_all(|number| number % 2 == 1), model.len());
        assert!(odd.iter().all(|number| number % 2 == 1));
        let even = slots.remove_all(|_| true);
        assert!(even.iter().all(|number| number % 2 == 0));
        assert_eq!(odd.len() + even.len(), all);
    }
}
