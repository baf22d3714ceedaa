use super::*;
use proptest::prelude::*;

fn extent(start: u64, len: u64, access: Access, identity: Option<u64>) -> Extent {
    Extent { addresses: start..start + len, access, identity }
}

fn plain(start: u64, len: u64) -> Extent {
    extent(start, len, Access::empty(), None)
}

#[test]
fn a_request_is_served_by_more_bytes_and_more_access() {
    let mut table = Table::new(CacheLimits::default());
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ;
    table.insert(extent(100, 50, rights, None), None, Arc::new("wide"));
    let mut served = |wanted| table.find(&wanted).0.is_some();
    assert!(served(extent(100, 50, rights, None)) && served(extent(149, 1, Access::LOCAL_WRITE, None)));
    assert!(!served(extent(99, 2, rights, None)) && !served(extent(149, 2, rights, None)));
    assert!(!served(extent(100, 50, Access::REMOTE_WRITE, None)) && !served(plain(0, 1000)));
}

#[test]
fn the_longest_unused_makes_way() {
    let mut table = Table::new(CacheLimits { bytes: 30, entries: 10 });
    for start in [0, 100, 200] {
        table.insert(plain(start, 10), None, Arc::new(start));
    }
    assert!(table.find(&plain(0, 10)).0.is_some());
    let gone = table.insert(plain(300, 15), None, Arc::new(300));
    assert_eq!(gone.iter().map(|region| **region).collect::<Vec<_>>(), [100, 200]);
    assert_eq!((table.statistics.evictions, table.statistics.bytes), (2, 25));
}

#[test]
fn what_is_in_use_stays_and_what_does_not_fit_beside_it_is_not_kept() {
    let mut table = Table::new(CacheLimits { bytes: 30, entries: 2 });
    let busy = Arc::new(1);
    table.insert(plain(0, 20), None, busy.clone());
    table.insert(plain(100, 10), None, Arc::new(2));
    assert!(table.insert(plain(200, 11), None, Arc::new(3)).is_empty());
    assert_eq!((table.statistics.not_kept, table.statistics.entries), (1, 2));
    assert_eq!(table.insert(plain(300, 10), None, Arc::new(4)), [Arc::new(2)]);
    drop(busy);
    assert_eq!(table.insert(plain(400, 25), None, Arc::new(5)), [Arc::new(1), Arc::new(4)]);
    // The limits are never exceeded.
    let mut none = Table::new(CacheLimits { bytes: 30, entries: 0 });
    assert!(none.insert(plain(0, 1), None, Arc::new(0)).is_empty());
    assert_eq!(none.statistics.not_kept, 1);
}

#[test]
fn an_address_that_became_anothers_is_registered_anew() {
    let mut table = Table::new(CacheLimits::default());
    table.insert(extent(100, 50, Access::empty(), Some(1)), None, Arc::new("old"));
    assert_eq!(table.find(&extent(120, 10, Access::empty(), Some(1))), (Some(Arc::new("old")), vec![]));
    assert_eq!(table.find(&extent(140, 100, Access::empty(), Some(2))), (None, vec![Arc::new("old")]));
    assert_eq!((table.statistics.invalidations, table.statistics.entries), (1, 0));
}

/// An operation on a cache. Addresses and lengths are small, so that ranges overlap.
#[derive(Clone, Debug)]
enum Event {
    /// A request; on a miss, `hold` says whether the new registration stays in use.
    Request {
        start: u64,
        len: u64,
        access: u32,
        memory: Option<u64>,
        identity: Option<u64>,
        hold: bool,
    },
    Release,
    Invalidate {
        start: u64,
        len: u64,
    },
    Forget {
        memory: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let request =
        (0u64..60, 1u64..30, 0u32..4, prop::option::of(0u64..3), prop::option::of(0u64..2), any::<bool>());
    prop_oneof![
        6 => request.prop_map(|(start, len, access, memory, identity, hold)| Event::Request {
            start, len, access: access << 1, memory, identity, hold
        }),
        2 => Just(Event::Release),
        1 => (0u64..60, 0u64..30).prop_map(|(start, len)| Event::Invalidate { start, len }),
        1 => (0u64..3).prop_map(|memory| Event::Forget { memory }),
    ]
}

/// An entry of the reference cache: a list, the least recently used first.
struct Naive {
    extent: Extent,
    memory: Option<u64>,
    region: u64,
}

/// A reference cache: a list that is searched from end to end.
struct Model {
    limits: CacheLimits,
    list: Vec<Naive>,
    statistics: CacheStatistics,
}

impl Model {
    fn remove(&mut self, goes: impl Fn(&Naive) -> bool) {
        let before = self.list.len();
        self.list.retain(|entry| !goes(entry));
        self.statistics.invalidations += (before - self.list.len()) as u64;
    }

    fn overlaps(entry: &Naive, range: &Range<u64>) -> bool {
        range.clone().any(|address| entry.extent.addresses.contains(&address))
    }

    fn bytes(&self) -> u64 {
        self.list.iter().map(|entry| entry.extent.len()).sum()
    }

    /// Registrations that could serve a request.
    fn candidates(&mut self, wanted: &Extent) -> Vec<u64> {
        let range = wanted.addresses.clone();
        self.remove(|entry| {
            entry.extent.identity.is_some()
                && entry.extent.identity != wanted.identity
                && Self::overlaps(entry, &range)
        });
        let serves = |entry: &&Naive| {
            range.clone().all(|address| entry.extent.addresses.contains(&address))
                && wanted.access.difference(entry.extent.access).is_empty()
        };
        self.list.iter().filter(serves).map(|entry| entry.region).collect()
    }

    fn touch(&mut self, region: u64) {
        if let Some(at) = self.list.iter().position(|entry| entry.region == region) {
            let entry = self.list.remove(at);
            self.list.push(entry);
        }
    }

    fn insert(&mut self, entry: Naive, in_use: impl Fn(u64) -> bool) {
        let len = entry.extent.len();
        let busy: Vec<&Naive> = self.list.iter().filter(|entry| in_use(entry.region)).collect();
        let bytes: u64 = busy.iter().map(|entry| entry.extent.len()).sum();
        if bytes + len > self.limits.bytes || busy.len() >= self.limits.entries {
            self.statistics.not_kept += 1;
            return;
        }
        while self.bytes() + len > self.limits.bytes || self.list.len() >= self.limits.entries {
            let idle = self.list.iter().position(|entry| !in_use(entry.region)).unwrap();
            self.list.remove(idle);
            self.statistics.evictions += 1;
        }
        self.list.push(entry);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn it_does_what_a_list_would(
        events in prop::collection::vec(event(), 0..80),
        bytes in 0u64..100,
        entries in 0usize..6,
    ) {
        let limits = CacheLimits { bytes, entries };
        let mut table = Table::new(limits);
        let mut model = Model { limits, list: Vec::new(), statistics: CacheStatistics::default() };
        let mut held: Vec<Arc<u64>> = Vec::new();
        for (number, event) in (0u64..).zip(events) {
            match event {
                Event::Request { start, len, access, memory, identity, hold } => {
                    let wanted = extent(start, len, Access::from_bits_truncate(access), identity);
                    let candidates = model.candidates(&wanted);
                    let (found, _) = table.find(&wanted);
                    prop_assert_eq!(found.is_some(), !candidates.is_empty());
                    match found {
                        Some(region) => {
                            // The choice among several that serve is unspecified.
                            prop_assert!(candidates.contains(&region));
                            model.touch(*region);
                            model.statistics.hits += 1;
                            if hold {
                                held.push(region);
                            }
                        }
                        None => {
                            model.statistics.misses += 1;
                            let region = Arc::new(number);
                            if hold {
                                held.push(region.clone());
                            }
                            let entry = Naive { extent: wanted.clone(), memory, region: number };
                            model.insert(entry, |region| held.iter().any(|held| **held == region));
                            table.insert(wanted, memory, region);
                        }
                    }
                }
                Event::Release => held.truncate(held.len().saturating_sub(1)),
                Event::Invalidate { start, len } => {
                    let range = start..start + len;
                    table.invalidate(&range);
                    model.remove(|entry| Model::overlaps(entry, &range));
                }
                Event::Forget { memory } => {
                    table.forget(memory);
                    model.remove(|entry| entry.memory == Some(memory));
                }
            }
            model.statistics.entries = model.list.len();
            model.statistics.bytes = model.bytes();
            prop_assert_eq!(table.statistics, model.statistics);
            prop_assert!(table.statistics.bytes <= bytes && table.statistics.entries <= entries);
            let mut kept: Vec<u64> = table.entries.values().map(|entry| *entry.region).collect();
            let mut expected: Vec<u64> = model.list.iter().map(|entry| entry.region).collect();
            kept.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(kept, expected);
        }
        table.clear();
        prop_assert_eq!((table.statistics.entries, table.statistics.bytes), (0, 0));
    }
}
