//! The table of a registration cache: look-up and eviction.

use crate::verbs::Access;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Bytes of registered memory.
    pub bytes: u64,
    /// Registrations.
    pub entries: usize,
}

impl Default for CacheLimits {
    /// 4 GiB, in 1024 registrations.
    fn default() -> Self {
        CacheLimits { bytes: 4 << 30, entries: 1024 }
    }
}

/// Counters of a cache since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStatistics {
    /// Requests that an existing registration served.
    pub hits: u64,
    /// Requests that needed a new registration.
    pub misses: u64,
    /// Registrations that were evicted.
    pub evictions: u64,
    /// Registrations that were removed because their memory was, or might have been, released.
    pub invalidations: u64,
    /// Registrations that were returned without being cached, as they, or those in use, fill the limits.
    pub not_kept: u64,
    /// Current registrations.
    pub entries: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// A request, or a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Not empty.
    pub(super) addresses: Range<u64>,
    pub(super) access: Access,
    /// The driver's id of the allocation, if nothing else tells whether the memory at an address is still the same.
    pub(super) identity: Option<u64>,
}

impl Extent {
    fn covers(&self, other: &Extent) -> bool {
        self.addresses.start <= other.addresses.start
            && other.addresses.end <= self.addresses.end
            && self.access.contains(other.access)
    }

    fn len(&self) -> u64 {
        self.addresses.end - self.addresses.start
    }
}

struct Entry<T> {
    extent: Extent,
    /// Id of the memory's use count: the entry is dropped with its last user.
    memory: Option<u64>,
    region: Arc<T>,
    /// Time of the last request for it.
    used: u64,
}

/// Registrations by address. Methods return removed ones, so that the caller drops them without the table's lock.
pub(super) struct Table<T> {
    entries: BTreeMap<(u64, u64), Entry<T>>,
    limits: CacheLimits,
    pub(super) statistics: CacheStatistics,
    /// Upper bound of the entries' lengths.
    longest: u64,
    clock: u64,
}

impl<T> Table<T> {
    pub(super) fn new(limits: CacheLimits) -> Self {
        Table {
            entries: BTreeMap::new(),
            limits,
            statistics: CacheStatistics::default(),
            longest: 0,
            clock: 0,
        }
    }

    /// Returns the registration that serves a request, if any, and registrations found to be of released memory.
    pub(super) fn find(&mut self, wanted: &Extent) -> (Option<Arc<T>>, Vec<Arc<T>>) {
        let gone = self.take(&wanted.addresses, |entry| {
            entry.extent.identity.is_some() && entry.extent.identity != wanted.identity
        });
        self.statistics.invalidations += gone.len() as u64;
        (self.look_up(wanted), gone)
    }

    fn look_up(&mut self, wanted: &Extent) -> Option<Arc<T>> {
        self.clock += 1;
        let clock = self.clock;
        // An entry before `from` does not reach the end, and one after the start does not cover it.
        let from = wanted.addresses.end.saturating_sub(self.longest).min(wanted.addresses.start);
        let found = self
            .entries
            .range_mut((from, 0)..=(wanted.addresses.start, u64::MAX))
            .rev()
            .map(|(_, entry)| entry)
            .find(|entry| entry.extent.covers(wanted));
        let region = found.map(|entry| {
            entry.used = clock;
            entry.region.clone()
        });
        match region {
            Some(_) => self.statistics.hits += 1,
            None => self.statistics.misses += 1,
        }
        region
    }

    /// Adds a registration, if it fits beside those in use; evicts others, the least recently used first.
    pub(super) fn insert(&mut self, extent: Extent, memory: Option<u64>, region: Arc<T>) -> Vec<Arc<T>> {
        let len = extent.len();
        let (busy_bytes, busy_entries) = self
            .entries
            .values()
            .filter(|entry| in_use(entry))
            .fold((0u64, 0usize), |(bytes, entries), entry| (bytes + entry.extent.len(), entries + 1));
        let fits = busy_bytes.checked_add(len).is_some_and(|bytes| bytes <= self.limits.bytes)
            && busy_entries < self.limits.entries;
        if !fits {
            self.statistics.not_kept += 1;
            return Vec::new();
        }
        let mut gone = Vec::new();
        while self.statistics.bytes.saturating_add(len) > self.limits.bytes
            || self.entries.len() >= self.limits.entries
        {
            let idle = self.entries.iter().filter(|(_, entry)| !in_use(entry));
            let Some(key) = idle.min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key) else {
                // The program has begun to use the registration meanwhile.
                self.statistics.not_kept += 1;
                return gone;
            };
            self.statistics.evictions += 1;
            gone.extend(self.remove(key));
        }
        self.clock += 1;
        let key = (extent.addresses.start, self.clock);
        self.longest = self.longest.max(len);
        self.entries.insert(key, Entry { extent, memory, region, used: self.clock });
        self.statistics.bytes += len;
        self.statistics.entries = self.entries.len();
        gone
    }

    /// Removes registrations that overlap these addresses.
    pub(super) fn invalidate(&mut self, addresses: &Range<u64>) -> Vec<Arc<T>> {
        let gone = self.take(addresses, |_| true);
        self.statistics.invalidations += gone.len() as u64;
        gone
    }

    /// Removes registrations of memory that has no user left.
    pub(super) fn forget(&mut self, memory: u64) -> Vec<Arc<T>> {
        let of_memory =
            |(key, entry): (&(u64, u64), &Entry<T>)| (entry.memory == Some(memory)).then_some(*key);
        let keys: Vec<_> = self.entries.iter().filter_map(of_memory).collect();
        let gone: Vec<_> = keys.into_iter().filter_map(|key| self.remove(key)).collect();
        self.statistics.invalidations += gone.len() as u64;
        gone
    }

    pub(super) fn clear(&mut self) -> Vec<Arc<T>> {
        self.invalidate(&(0..u64::MAX))
    }

    fn take(&mut self, addresses: &Range<u64>, goes: impl Fn(&Entry<T>) -> bool) -> Vec<Arc<T>> {
        if addresses.is_empty() {
            return Vec::new();
        }
        let from = addresses.start.saturating_sub(self.longest);
        let near = self.entries.range((from, 0)..(addresses.end, 0));
        let overlap = near.filter(|(_, entry)| addresses.start < entry.extent.addresses.end && goes(entry));
        let keys: Vec<_> = overlap.map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    fn remove(&mut self, key: (u64, u64)) -> Option<Arc<T>> {
        let entry = self.entries.remove(&key)?;
        self.statistics.bytes -= entry.extent.len();
        self.statistics.entries = self.entries.len();
        if self.entries.is_empty() {
            self.longest = 0;
        }
        Some(entry.region)
    }
}

/// Returns whether a work request or the program holds the region besides the table.
fn in_use<T>(entry: &Entry<T>) -> bool {
    Arc::strong_count(&entry.region) > 1
}

#[cfg(test)]
mod tests;
