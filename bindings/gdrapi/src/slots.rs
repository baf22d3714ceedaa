//! Places for what has handles, found without a lock that all share: a copy of a few bytes takes little longer than the lookup.

use crate::fault::Fault;
use parking_lot::{Mutex, RwLock};
use std::sync::OnceLock;

/// Bits of a handle that say where its place is. The others are its number, which never comes again.
const INDEX_BITS: u32 = 24;
/// Places of the first chunk; each further one has twice as many as the one before.
const FIRST: usize = 64;
const CHUNKS: usize = (INDEX_BITS - FIRST.ilog2()) as usize;
/// So many there can be at a time.
const MOST: usize = (FIRST << CHUNKS) - FIRST;

/// A place, which has one thing after the other.
struct Slot<T> {
    /// 0 where there is none.
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
    /// Those from here on never had anything.
    unused: usize,
}

/// The places. They stay where they are, and go with the whole.
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

/// The chunk of an index, and the place in it.
fn place(index: usize) -> (usize, usize) {
    let from_first = index + FIRST;
    let chunk = (from_first.ilog2() - FIRST.ilog2()) as usize;
    (chunk, from_first - (FIRST << chunk))
}

fn unknown(handle: u64) -> Fault {
    Fault::Unknown { what: "memory handle", value: handle }
}

impl<T> Slots<T> {
    fn slot(&self, index: usize) -> Option<&RwLock<Slot<T>>> {
        let (chunk, at) = place(index);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// That of a handle, or of what had the place before or has it now.
    fn slot_of(&self, handle: u64) -> Result<&RwLock<Slot<T>>, Fault> {
        self.slot((handle & ((1 << INDEX_BITS) - 1)) as usize).ok_or_else(|| unknown(handle))
    }

    /// Adds something: its handle. The number was never given before, is not 0, and has at most 40 bits.
    pub(crate) fn add(&self, number: u64, content: T) -> Result<u64, Fault> {
        let index = {
            let mut free = self.free.lock();
            match free.indices.pop() {
                Some(index) => index,
                None if free.unused == MOST => return Err(Fault::Full { most: MOST }),
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

    /// Does something with what has this handle, at the same time as others may.
    #[inline]
    pub(crate) fn read<R>(&self, handle: u64, body: impl FnOnce(&T) -> Result<R, Fault>) -> Result<R, Fault> {
        let slot = self.slot_of(handle)?.read();
        body(slot.content(handle).ok_or_else(|| unknown(handle))?)
    }

    /// Does something with what has this handle, alone with it.
    pub(crate) fn write<R>(
        &self,
        handle: u64,
        body: impl FnOnce(&mut T) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let mut slot = self.slot_of(handle)?.write();
        let slot = &mut *slot;
        let content = slot.content.as_mut().filter(|_| slot.handle == handle);
        body(content.ok_or_else(|| unknown(handle))?)
    }

    /// Takes out what has this handle, if it may go.
    pub(crate) fn remove(
        &self,
        handle: u64,
        may_go: impl FnOnce(&T) -> Result<(), Fault>,
    ) -> Result<T, Fault> {
        let mut slot = self.slot_of(handle)?.write();
        may_go(slot.content(handle).ok_or_else(|| unknown(handle))?)?;
        self.empty(&mut slot).ok_or_else(|| unknown(handle))
    }

    /// Takes out all that are such.
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
        // Under the place's lock; nobody who has this one waits for a place.
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
            let handle = slots.add(number, number).unwrap_or_else(|fault| panic!("{fault}"));
            assert_eq!(model.insert(handle, number), None);
            if !(random >> 33).is_multiple_of(3) {
                let at = (random >> 40) as usize % model.len();
                let Some((&handle, &number)) = model.iter().nth(at) else { panic!("there are some") };
                assert!(slots.remove(handle, |_| Err(Fault::NotMapped)).is_err());
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
