//! Connections that have not proven the key yet.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Limits on number and time of unproven connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections.
    pub most: usize,
    /// Most connections from one source.
    pub of_source: usize,
    /// Time within which a connection must prove itself.
    pub time: Duration,
    /// Time for which a connection cannot be displaced by a new one. The job's processes prove themselves faster.
    pub grace: Duration,
}

impl Default for Limits {
    /// 64 connections, 16 from one source, 10 s, and 20 ms.
    fn default() -> Self {
        Limits { most: 64, of_source: 16, time: Duration::from_secs(10), grace: Duration::from_millis(20) }
    }
}

struct Pending<S, T> {
    source: S,
    since: Instant,
    connection: T,
}

/// Connections that have not proven the key yet, numbered in the order of arrival.
///
/// When a source reaches its limit, its oldest connection makes room for the next; when the total limit is reached,
/// the oldest connection of the source with the most connections does. Silent connections therefore delay others by
/// at most [`Limits::grace`]; a rejected process tries again.
pub struct Unproven<S, T> {
    limits: Limits,
    pending: BTreeMap<u64, Pending<S, T>>,
    next: u64,
}

impl<S, T> fmt::Debug for Unproven<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unproven({} of {})", self.pending.len(), self.limits.most)
    }
}

impl<S: Copy + Eq, T> Unproven<S, T> {
    /// Creates an empty table with these limits.
    pub fn new(limits: Limits) -> Self {
        Unproven { limits, pending: BTreeMap::new(), next: 0 }
    }

    /// Adds a connection, and returns its number. May drop another connection.
    ///
    /// # Errors
    /// The connection, if the connections to displace are younger than [`Limits::grace`].
    pub fn admit(&mut self, source: S, connection: T, now: Instant) -> Result<u64, T> {
        self.expire(now);
        if let Some(number) = self.to_displace(source) {
            let since = self.pending.get(&number).map(|pending| pending.since);
            if since.is_some_and(|since| now.saturating_duration_since(since) < self.limits.grace) {
                return Err(connection);
            }
            self.pending.remove(&number);
        }
        let number = self.next;
        self.next += 1;
        self.pending.insert(number, Pending { source, since: now, connection });
        Ok(number)
    }

    /// Returns the connection that has to make room for a new one of a source.
    fn to_displace(&self, source: S) -> Option<u64> {
        let count = |of: S| self.pending.values().filter(|pending| pending.source == of).count();
        let oldest = |of: &dyn Fn(S) -> bool| {
            self.pending.iter().find(|(_, pending)| of(pending.source)).map(|(number, _)| *number)
        };
        if count(source) >= self.limits.of_source {
            return oldest(&|one| one == source);
        }
        if self.pending.len() < self.limits.most {
            return None;
        }
        let most = self.pending.values().map(|pending| count(pending.source)).max()?;
        oldest(&|one| count(one) == most)
    }

    /// Drops expired connections. Returns their number.
    pub fn expire(&mut self, now: Instant) -> usize {
        let before = self.pending.len();
        self.pending.retain(|_, pending| now.saturating_duration_since(pending.since) < self.limits.time);
        before - self.pending.len()
    }

    /// Returns the time at which the next connection expires.
    pub fn next_end(&self) -> Option<Instant> {
        self.pending.first_key_value().map(|(_, pending)| pending.since + self.limits.time)
    }

    /// Iterates over the connections with their numbers, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.pending.iter().map(|(number, pending)| (*number, &pending.connection))
    }

    /// Returns the connection with a number.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.pending.get_mut(&number).map(|pending| &mut pending.connection)
    }

    /// Removes a connection that has proven itself or failed.
    pub fn take(&mut self, number: u64) -> Option<T> {
        self.pending.remove(&number).map(|pending| pending.connection)
    }

    /// Drops all connections.
    pub fn clear(&mut self) {
        self.pending.clear();
    }

    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_millis(20);

    fn unproven(most: usize, of_source: usize) -> Unproven<u8, u32> {
        Unproven::new(Limits { most, of_source, time: Duration::from_secs(10), grace: GRACE })
    }

    fn all(unproven: &Unproven<u8, u32>) -> Vec<u32> {
        unproven.iter().map(|(_, connection)| *connection).collect()
    }

    #[test]
    fn silent_connections_make_room_for_the_next_and_young_ones_do_not() {
        let (mut table, start) = (unproven(4, 4), Instant::now());
        (0..4).for_each(|i| assert!(table.admit(i as u8, i, start).is_ok()));
        assert_eq!(table.admit(9, 4, start + GRACE / 2), Err(4), "all are younger than the grace");
        assert!(table.admit(9, 5, start + GRACE).is_ok());
        assert_eq!(all(&table), [1, 2, 3, 5]);
    }

    #[test]
    fn a_source_with_many_gives_way_to_those_with_few() {
        let (mut table, start) = (unproven(4, 4), Instant::now());
        table.admit(7, 70, start).unwrap();
        (0..3).for_each(|i| _ = table.admit(1, i, start + GRACE / 4).unwrap());
        // The oldest connection belongs to a source with only one.
        table.admit(8, 80, start + GRACE * 2).unwrap();
        assert_eq!(all(&table), [70, 1, 2, 80]);
    }

    #[test]
    fn no_source_has_more_than_its_share() {
        let (mut table, start) = (unproven(10, 2), Instant::now());
        table.admit(1, 0, start).unwrap();
        table.admit(1, 1, start).unwrap();
        assert_eq!(table.admit(1, 2, start), Err(2));
        assert!(table.admit(2, 3, start).is_ok(), "another source has its own");
        assert!(table.admit(1, 4, start + GRACE).is_ok());
        assert_eq!(all(&table), [1, 3, 4]);
    }

    #[test]
    fn time_ends_and_numbers_stay() {
        let (mut table, start) = (unproven(4, 4), Instant::now());
        let first = table.admit(1, 10, start).unwrap();
        let second = table.admit(1, 11, start + Duration::from_secs(5)).unwrap();
        assert_eq!(table.next_end(), Some(start + Duration::from_secs(10)));
        assert_eq!(table.expire(start + Duration::from_secs(10)), 1);
        assert!(table.get_mut(first).is_none() && table.get_mut(second).is_some());
        assert_eq!((table.len(), table.take(second), table.is_empty()), (1, Some(11), true));
        assert!(table.next_end().is_none());
        table.admit(1, 12, start).unwrap();
        table.clear();
        assert!(table.is_empty());
    }
}
