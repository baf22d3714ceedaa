//! The keys of a card, and their targets.

use super::copy::{Location, MemoryFailure, Target};
use super::indirect::{self, ChangeError, Indirect, KeyChange};
use super::registered::Memory;
use super::translation::{KeyRange, Pieces, Refusal};
use crate::card::config::{Access, NULL_KEY};
use crate::faults::{Faults, Side};
use crate::os::memory::KeptPages;
use crate::peer_memory::{PeerMapping, PeerMemoryError, PeerRegion};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first index of keys: 0x100 is the key that ends scatter lists, and 0x400 marks a strided translation.
const FIRST_INDEX: u32 = 8;

#[derive(Debug)]
pub(crate) enum KeyTarget {
    Memory(Memory),
    /// In a lock, as work requests change it while others use the table.
    Indirect(Mutex<Indirect>),
}

#[derive(Debug)]
struct Region {
    /// The key as registered; an indirect key keeps its current last 8 bits elsewhere.
    key: u32,
    pdn: u32,
    target: KeyTarget,
    /// True after a write to memory of the region that was gone.
    has_lost: AtomicBool,
}

impl Region {
    fn has_key(&self, key: u32) -> bool {
        match &self.target {
            KeyTarget::Memory(_) => self.key == key,
            KeyTarget::Indirect(indirect) => indirect.lock().tag() == key as u8,
        }
    }

    /// Returns the memory, if it has that address of the program.
    fn memory_at(&self, addr: u64) -> Option<&Memory> {
        match &self.target {
            KeyTarget::Memory(memory) if memory.has(addr) => Some(memory),
            _ => None,
        }
    }
}

/// Maximum depth of keys that refer to keys.
pub(crate) const MAX_DEPTH: usize = 4;

/// All memory regions of a card. A key consists of an index and a tag that changes when the index is reused, so a stale
/// key names no region.
#[derive(Debug)]
pub(crate) struct Regions {
    table: Vec<Option<Region>>,
    tags: Vec<u8>,
    free: Vec<usize>,
    null: Arc<PeerMapping>,
    /// `None` in tests without a card.
    faults: Option<Faults>,
    pub(crate) used: Arc<UsedPages>,
}

/// The pages of the program's own mappings that the regions of a card use, by key.
#[derive(Debug, Default)]
pub(crate) struct UsedPages(Mutex<HashMap<u32, Vec<Range<u64>>>>);

impl UsedPages {
    /// Returns the parts of a range that regions use. They may overlap.
    pub(crate) fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let used = self.0.lock();
        let parts = used.values().flatten().map(|used| used.start.max(range.start)..used.end.min(range.end));
        parts.filter(|part| part.start < part.end).collect()
    }

    fn set(&self, key: u32, target: &KeyTarget) {
        if let KeyTarget::Memory(memory) = target {
            self.0.lock().insert(key, memory.ranges().collect());
        }
    }

    fn remove(&self, key: u32) {
        self.0.lock().remove(&key);
    }
}

impl Default for Regions {
    fn default() -> Self {
        let null = Arc::new(PeerMapping::new("the null region", Arc::new(Null)));
        Regions {
            table: Vec::new(),
            tags: Vec::new(),
            free: Vec::new(),
            null,
            faults: None,
            used: Arc::default(),
        }
    }
}

impl Regions {
    /// Registers a target. The last 8 bits of its key are `tag`, if given. Returns `None` if there are `limit` keys
    /// already.
    pub(crate) fn register(
        &mut self,
        pdn: u32,
        mut target: KeyTarget,
        tag: Option<u8>,
        limit: u32,
    ) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.table.len() >= limit as usize => return None,
            None => {
                self.table.push(None);
                self.tags.push(0x10);
                self.table.len() - 1
            }
        };
        if let Some(tag) = tag {
            self.tags[index] = tag;
        }
        if let KeyTarget::Indirect(indirect) = &mut target {
            indirect.get_mut().set_tag(self.tags[index]);
        }
        let key = (index as u32 + FIRST_INDEX) << 8 | u32::from(self.tags[index]);
        self.used.set(key, &target);
        self.table[index] = Some(Region { key, pdn, target, has_lost: AtomicBool::new(false) });
        Some(key)
    }

    fn index_of(key: u32) -> Option<usize> {
        usize::try_from((key >> 8).checked_sub(FIRST_INDEX)?).ok()
    }

    fn find(&self, key: u32) -> Result<&Region, Refusal> {
        let region = Self::index_of(key).and_then(|index| self.table.get(index)?.as_ref());
        region.filter(|region| region.has_key(key)).ok_or(Refusal::Key { key })
    }

    fn find_in(&self, key: u32, pdn: u32) -> Result<&Region, Refusal> {
        let region = self.find(key)?;
        if region.pdn == pdn { Ok(region) } else { Err(Refusal::Domain { region: region.pdn, wanted: pdn }) }
    }

    /// Removes a key. Returns its domain and target; `None` if it does not exist. The last 8 bits of an indirect key
    /// are ignored, as work requests change them.
    pub(crate) fn deregister(&mut self, key: u32) -> Option<(u32, KeyTarget)> {
        let index = Self::index_of(key)?;
        let is_it = |region: &mut Region| match region.target {
            KeyTarget::Memory(_) => region.key == key,
            KeyTarget::Indirect(_) => true,
        };
        let region = self.table.get_mut(index)?.take_if(is_it)?;
        self.used.remove(region.key);
        self.tags[index] = self.tags[index].wrapping_add(1);
        self.free.push(index);
        Some((region.pdn, region.target))
    }

    /// Replaces the memory and the domain of a region. Returns the former ones; `None` if the key names no memory.
    pub(crate) fn replace(&mut self, key: u32, pdn: u32, memory: Memory) -> Option<(u32, Memory)> {
        let region = self.table.get_mut(Self::index_of(key)?)?.as_mut()?;
        match &mut region.target {
            KeyTarget::Memory(old) if region.key == key => {
                let domain = std::mem::replace(&mut region.pdn, pdn);
                let former = std::mem::replace(old, memory);
                self.used.set(key, &region.target);
                Some((domain, former))
            }
            _ => None,
        }
    }

    /// Follows the pages of the program's mappings in a range to another address.
    pub(crate) fn moved(&mut self, from: &Range<u64>, to: u64, kept: Option<&Arc<KeptPages>>) {
        for region in self.table.iter_mut().flatten() {
            if let KeyTarget::Memory(memory) = &mut region.target
                && memory.moved(from, to, kept)
            {
                self.used.set(region.key, &region.target);
            }
        }
    }

    /// Creates the regions of a card with these faults.
    pub(crate) fn with(faults: Faults) -> Self {
        Regions { faults: Some(faults), ..Regions::default() }
    }

    /// Refuses a key that faults have removed.
    pub(crate) fn check_faults(&self, key: u32, wanted: Access) -> Result<(), Refusal> {
        let faults = self.faults.as_ref().filter(|faults| faults.is_on());
        match faults.is_some_and(|faults| faults.is_gone(key, side_of(wanted))) {
            true => Err(Refusal::Key { key }),
            false => Ok(()),
        }
    }

    /// Returns the memory that a key of a domain names, if the key allows that access.
    pub(crate) fn resolve(&self, range: KeyRange, pdn: u32, wanted: Access) -> Result<Pieces<'_>, Refusal> {
        self.check_faults(range.key, wanted)?;
        self.pieces(range, pdn, wanted)
    }

    /// As [`Self::resolve`], without asking faults.
    pub(crate) fn pieces(&self, range: KeyRange, pdn: u32, wanted: Access) -> Result<Pieces<'_>, Refusal> {
        let KeyRange { key, addr, len } = range;
        if key == NULL_KEY && side_of(wanted) == Side::Local {
            return Ok(Pieces::one(Location::Peer(&self.null, addr), len));
        }
        if let KeyTarget::Memory(memory) = &self.find_in(key, pdn)?.target {
            return memory.pieces(addr, len, wanted);
        }
        let mut pieces = Vec::new();
        self.follow(range, pdn, wanted, 0, &mut pieces)?;
        Ok(Pieces::Many(pieces.into_iter()))
    }

    /// Collects the pieces of memory behind a key.
    fn follow<'a>(
        &'a self,
        KeyRange { key, addr, len }: KeyRange,
        pdn: u32,
        wanted: Access,
        depth: usize,
        pieces: &mut Vec<Target<'a>>,
    ) -> Result<(), Refusal> {
        let opened = match &self.find_in(key, pdn)?.target {
            KeyTarget::Memory(memory) => {
                pieces.extend(memory.pieces(addr, len, wanted)?);
                return Ok(());
            }
            KeyTarget::Indirect(_) if depth == MAX_DEPTH => {
                return Err(Refusal::Depth { key, limit: MAX_DEPTH });
            }
            KeyTarget::Indirect(indirect) => indirect.lock().open(key, addr, len, wanted)?,
        };
        let wanted = indirect::behind(wanted);
        let missing = opened
            .translation
            .each(opened.offset, len, |range| self.follow(range, pdn, wanted, depth + 1, pieces))?;
        if missing == 0 { Ok(()) } else { Err(Refusal::Translation { key, missing }) }
    }

    /// Checks that a peer's request which arrives at a queue pair may access a range. Its pieces may still be refused.
    pub(crate) fn check_remote(
        &self,
        KeyRange { key, addr, len }: KeyRange,
        (pdn, qpn): (u32, u32),
        wanted: Access,
    ) -> Result<(), Refusal> {
        match &self.find_in(key, pdn)?.target {
            KeyTarget::Memory(memory) => memory.location(addr, len, wanted).map(drop),
            KeyTarget::Indirect(indirect) => {
                let indirect = indirect.lock();
                indirect.check_owner(key, qpn)?;
                indirect.open(key, addr, len, wanted).map(drop)
            }
        }
    }

    /// Changes a key on behalf of a queue pair's work request.
    pub(crate) fn change(&self, change: &KeyChange, (pdn, qpn): (u32, u32)) -> Result<(), ChangeError> {
        let key = change.key;
        let region = Self::index_of(key).and_then(|index| self.table.get(index)?.as_ref());
        let region = region.ok_or(Refusal::Key { key })?;
        if region.pdn != pdn {
            return Err(Refusal::Domain { region: region.pdn, wanted: pdn }.into());
        }
        let KeyTarget::Indirect(indirect) = &region.target else { return Err(ChangeError::Fixed { key }) };
        let mut indirect = indirect.lock();
        let next = indirect.changed(change, qpn)?;
        self.check_binding(key, &next, pdn)?;
        *indirect = next;
        Ok(())
    }

    /// Checks that the region behind a bound window has its range and its rights.
    fn check_binding(&self, key: u32, window: &Indirect, pdn: u32) -> Result<(), ChangeError> {
        let Some((wanted, translation, len)) = window.binding() else { return Ok(()) };
        let missing = translation.each(0, len, |KeyRange { key, addr, len }| {
            // Not a window: the one that is being bound is locked.
            let KeyTarget::Memory(memory) = &self.find_in(key, pdn)?.target else {
                return Err(ChangeError::from(Refusal::Key { key }));
            };
            if !memory.access.contains(Access::MW_BIND) {
                return Err(ChangeError::NoBind { key });
            }
            memory.location(addr, len, wanted)?;
            Ok(())
        })?;
        if missing == 0 { Ok(()) } else { Err(Refusal::Translation { key, missing }.into()) }
    }

    /// Describes a failure. Names the region of host memory that is gone.
    pub(crate) fn describe(&self, failure: &MemoryFailure) -> String {
        let MemoryFailure::Host(gone) = failure else { return failure.to_string() };
        match self.regions_at(gone.addr).next() {
            Some((region, memory)) => format!("{gone}. They belong to key {:#x}: {memory}", region.key),
            None => gone.to_string(),
        }
    }

    fn regions_at(&self, addr: u64) -> impl Iterator<Item = (&Region, &Memory)> {
        self.table.iter().flatten().filter_map(move |region| Some((region, region.memory_at(addr)?)))
    }

    /// Returns whether no memory of a region with that address was gone before.
    pub(crate) fn is_first_loss(&self, addr: u64) -> bool {
        !self.regions_at(addr).any(|(region, _)| region.has_lost.swap(true, Ordering::Relaxed))
    }

    /// Returns whether writes to a region may pass earlier ones. An indirect key orders them.
    pub(crate) fn is_relaxed(&self, key: u32) -> bool {
        let target = self.find(key).map(|region| &region.target);
        matches!(target, Ok(KeyTarget::Memory(memory)) if memory.access.contains(Access::RELAXED_ORDERING))
    }

    /// Closes a key on behalf of a send that arrives at a queue pair.
    pub(crate) fn invalidate(&self, key: u32, (pdn, qpn): (u32, u32)) -> Result<(), ChangeError> {
        match &self.find_in(key, pdn)?.target {
            KeyTarget::Memory(_) => Err(ChangeError::Fixed { key }),
            KeyTarget::Indirect(indirect) => indirect.lock().invalidate(key, qpn),
        }
    }
}

/// Returns the accessing side: only requests of a peer need remote rights.
fn side_of(wanted: Access) -> Side {
    let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if wanted.intersects(remote) { Side::Remote } else { Side::Local }
}

/// The memory behind [`NULL_KEY`].
#[derive(Debug)]
pub(super) struct Null;

impl PeerRegion for Null {
    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), PeerMemoryError> {
        into.fill(0);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), PeerMemoryError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::config::{InvalidValue, RegionConfig};
    use crate::card::memory::registered::RegionError;

    fn register(
        regions: &mut Regions,
        pdn: u32,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<u32, RegionError> {
        let memory = Memory::acquire(&RegionConfig::new(pdn, addr, len, access))?;
        Ok(regions.register(pdn, KeyTarget::Memory(memory), None, u32::MAX).expect("the table is not full"))
    }

    fn resolve(
        regions: &Regions,
        key: u32,
        pdn: u32,
        addr: u64,
        len: u64,
        wanted: Access,
    ) -> Result<Pieces<'_>, Refusal> {
        regions.resolve(KeyRange { key, addr, len }, pdn, wanted)
    }

    #[test]
    fn keys_open_what_was_registered_and_nothing_else() {
        let bytes = [0u8; 64];
        let addr = bytes.as_ptr() as u64;
        let mut regions = Regions::default();
        let key = register(&mut regions, 1, addr, 64, Access::REMOTE_READ).unwrap();
        let read = Access::REMOTE_READ;
        assert!(
            resolve(&regions, key, 1, addr, 64, read).is_ok()
                && resolve(&regions, key, 1, addr + 63, 1, read).is_ok()
        );
        assert!(matches!(resolve(&regions, key, 1, addr, 65, read), Err(Refusal::Bounds { .. })));
        assert!(matches!(resolve(&regions, key, 1, addr - 1, 2, read), Err(Refusal::Bounds { .. })));
        assert!(matches!(resolve(&regions, key, 1, u64::MAX, 2, read), Err(Refusal::Bounds { .. })));
        assert!(matches!(
            resolve(&regions, key, 2, addr, 1, read),
            Err(Refusal::Domain { region: 1, wanted: 2 })
        ));
        let write = Access::REMOTE_WRITE;
        assert!(matches!(resolve(&regions, key, 1, addr, 1, write), Err(Refusal::Access { .. })));
        assert_eq!(regions.deregister(key).unwrap().0, 1);
        assert!(regions.deregister(key).is_none());
        let again = register(&mut regions, 1, addr, 64, read).unwrap();
        assert_ne!(again, key, "a stale key opens nothing");
        assert!(matches!(resolve(&regions, key, 1, addr, 1, read), Err(Refusal::Key { .. })));
        for stale in [0, 0x100, 0x400, 0x800, NULL_KEY, u32::MAX] {
            assert!(resolve(&regions, stale, 1, addr, 1, read).is_err());
        }
    }

    #[test]
    fn a_region_is_known_by_the_address_that_it_was_given() {
        let bytes = [0u8; 64];
        let addr = bytes.as_ptr() as u64;
        let mut regions = Regions::default();
        let read = Access::REMOTE_READ;
        let config = RegionConfig::new(1, addr, 64, read);
        for iova in [0, 0x1000, u64::MAX - 64] {
            let memory = Memory::acquire(&RegionConfig { iova, ..config }).unwrap();
            let key = regions.register(1, KeyTarget::Memory(memory), Some(0xab), u32::MAX).unwrap();
            assert_eq!(key & 0xff, 0xab);
            let location = resolve(&regions, key, 1, iova + 60, 4, read).unwrap().single();
            assert!(matches!(location, Some(Location::Host(at)) if at as u64 == addr + 60));
            assert!(matches!(resolve(&regions, key, 1, iova + 60, 5, read), Err(Refusal::Bounds { .. })));
            assert!(matches!(resolve(&regions, key, 1, addr, 1, read), Err(Refusal::Bounds { .. })));
        }
        let beyond = Memory::acquire(&RegionConfig { iova: u64::MAX - 10, ..config });
        assert!(matches!(beyond, Err(RegionError::Invalid(InvalidValue { what: "I/O address", .. }))));
    }
}
