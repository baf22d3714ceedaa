use super::*;
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::Mutex;

/// A device that sees host pages `SHIFT` higher, and counts.
#[derive(Default)]
struct Device {
    registered: Mutex<HashSet<u64>>,
    calls: Mutex<usize>,
    /// Pages that the program has registered itself.
    foreign: HashSet<u64>,
    refuses_registers: bool,
}

const SHIFT: u64 = 0x1_0000_0000;

impl Registrar for Device {
    fn register(&self, base: u64, len: u64, kind: Kind) -> Result<Registered, String> {
        *self.calls.lock().unwrap() += 1;
        assert!(base.is_multiple_of(page_size() as u64) && len.is_multiple_of(page_size() as u64));
        if matches!(kind, Kind::Registers { .. }) && self.refuses_registers {
            return Err("not permitted".to_owned());
        }
        let owned = !self.foreign.contains(&base);
        if owned {
            assert!(self.registered.lock().unwrap().insert(base), "registered twice");
        }
        Ok(Registered { device: base + SHIFT, owned })
    }

    fn unregister(&self, base: u64) {
        assert!(self.registered.lock().unwrap().remove(&base), "was not registered");
    }
}

/// Addresses that no mapping has, different ones in each test.
fn base(test: u64) -> u64 {
    0xfffe_0000_0000_0000 + (test << 32)
}

fn nothing() -> super::super::spans::Release {
    Box::new(|| ())
}

fn registered(map: &PeerMap<Device>) -> usize {
    map.registrar.registered.lock().unwrap().len()
}

#[test]
fn spans_are_registered_once_and_unregistered_when_they_go() {
    let map = PeerMap::new(Device::default());
    let at = base(1);
    assert_eq!(map.translate(HostAddr(at), 8), Err(MapError::Unknown));
    let span = Span::announce(at, 0x10_0000, Kind::Whole, nothing());
    for offset in [0, 8, 0xf_fff8] {
        assert_eq!(map.translate(HostAddr(at + offset), 8), Ok(StreamAddr::new(at + SHIFT + offset)));
    }
    assert_eq!(*map.registrar.calls.lock().unwrap(), 1);
    let epoch = map.epoch();
    drop(span);
    assert_ne!(map.epoch(), epoch);
    map.collect();
    assert_eq!(registered(&map), 0);
    assert_eq!(map.translate(HostAddr(at), 8), Err(MapError::Unknown));
}

#[test]
fn a_page_that_two_spans_share_stays_until_both_are_gone() {
    let map = PeerMap::new(Device::default());
    let at = base(2);
    let (one, two) = (
        Span::announce(at, 64, Kind::Pages, nothing()),
        Span::announce(at + 64, 0x2000, Kind::Pages, nothing()),
    );
    map.translate(HostAddr(at), 4).unwrap();
    map.translate(HostAddr(at + 64), 4).unwrap();
    map.translate(HostAddr(at + 0x1000), 4).unwrap();
    assert_eq!(registered(&map), 2, "page by page");
    drop(one);
    assert_eq!(registered(&map), 2);
    assert!(map.translate(HostAddr(at + 64), 4).is_ok());
    drop(two);
    map.collect();
    assert_eq!(registered(&map), 0);
}

#[test]
fn every_span_around_a_word_holds_its_page() {
    let map = PeerMap::new(Device::default());
    let at = base(7);
    let (outer, inner) = (
        Span::announce(at, 4096, Kind::Pages, nothing()),
        Span::announce(at + 64, 64, Kind::Pages, nothing()),
    );
    map.translate(HostAddr(at + 72), 8).unwrap();
    drop(inner);
    map.collect();
    assert_eq!(registered(&map), 1, "it may have been the outer one that was named");
    drop(outer);
    map.collect();
    assert_eq!(registered(&map), 0);
}

#[test]
fn a_retired_page_is_taken_up_again() {
    let map = PeerMap::new(Device::default());
    let at = base(8);
    let announce = || Span::announce(at, 4096, Kind::Registers { mmio: false }, nothing());
    let first = announce();
    map.translate(HostAddr(at), 8).unwrap();
    drop(first);
    let second = announce();
    map.translate(HostAddr(at), 8).unwrap();
    map.collect();
    assert_eq!((registered(&map), *map.registrar.calls.lock().unwrap()), (1, 1));
    drop(second);
    map.collect();
    assert_eq!(registered(&map), 0);
}

#[test]
fn memory_that_was_refused_may_be_taken_later() {
    struct Moody(Mutex<u32>);
    impl Registrar for Moody {
        fn register(&self, base: u64, _len: u64, _kind: Kind) -> Result<Registered, String> {
            let mut calls = self.0.lock().unwrap();
            *calls += 1;
            if *calls == 1 { Err("not now".to_owned()) } else { Ok(Registered { device: base, owned: true }) }
        }

        fn unregister(&self, _base: u64) {}
    }
    let map = PeerMap::new(Moody(Mutex::new(0)));
    let at = base(9);
    let _span = Span::announce(at, 4096, Kind::Whole, nothing());
    assert!(map.translate(HostAddr(at), 8).is_err());
    assert!(map.translate(HostAddr(at), 8).is_ok());
}

#[test]
fn pages_of_the_program_are_left_alone() {
    let at = base(3);
    let map = PeerMap::new(Device { foreign: HashSet::from([at]), ..Device::default() });
    let span = Span::announce(at, 4096, Kind::Pages, nothing());
    assert!(map.translate(HostAddr(at + 8), 8).is_ok());
    drop(span);
}

#[test]
fn a_refusal_is_remembered_as_long_as_the_span_is_there() {
    let map = PeerMap::new(Device { refuses_registers: true, ..Device::default() });
    let at = base(4);
    let page = Span::announce(at, 4096, Kind::Registers { mmio: true }, nothing());
    for _ in 0..3 {
        assert_eq!(
            map.translate(HostAddr(at + 0x800), 8),
            Err(MapError::Refused("not permitted".to_owned()))
        );
    }
    assert_eq!(*map.registrar.calls.lock().unwrap(), 1);
    drop(page);
    assert_eq!(map.translate(HostAddr(at + 0x800), 8), Err(MapError::Unknown));
}

#[test]
fn retired_pages_stay_mapped_until_they_are_unregistered() {
    let map = PeerMap::new(Device::default());
    let at = base(5);
    let released = Arc::new(Mutex::new(false));
    let flag = released.clone();
    let span = Span::announce(at, 4096, Kind::Whole, Box::new(move || *flag.lock().unwrap() = true));
    map.translate(HostAddr(at), 8).unwrap();
    assert!(format!("{map:?}").contains("runs: 1"));
    drop(span);
    assert!(map.has_retired() && registered(&map) == 1 && !*released.lock().unwrap());
    assert_eq!(map.translate(HostAddr(at), 8), Err(MapError::Unknown));
    map.collect();
    assert!(!map.has_retired() && registered(&map) == 0 && *released.lock().unwrap());
}

proptest! {
    /// Any order of announcing, naming and dropping: what is registered is what live spans around
    /// named words cover.
    #[test]
    fn registrations_follow_the_spans(
        steps in proptest::collection::vec((0u8..4, 0u64..16, 1u64..5, any::<prop::sample::Index>()), 1..60)
    ) {
        let page = page_size() as u64;
        let origin = base(6);
        let map = PeerMap::new(Device::default());
        let mut live: Vec<(Arc<Span>, u64, u64, HashSet<u64>)> = Vec::new();
        for (step, first, pages, index) in steps {
            match step {
                0 => {
                    let (at, len) = (origin + first * page + 16, pages * page - 32);
                    live.push((Span::announce(at, len, Kind::Pages, nothing()), at, len, HashSet::new()));
                }
                1 if !live.is_empty() => drop(live.swap_remove(index.index(live.len()))),
                2 => map.collect(),
                _ if !live.is_empty() => {
                    let (_, at, len, _) = &live[index.index(live.len())];
                    let addr = ((at + (first * page + 64) % (len - 8)) & !7).max((at + 7) & !7);
                    prop_assert_eq!(map.translate(HostAddr(addr), 8), Ok(StreamAddr::new(addr + SHIFT)));
                    for (_, at, len, named) in &mut live {
                        if *at <= addr && addr + 8 <= *at + *len {
                            named.insert(addr & !(page - 1));
                        }
                    }
                }
                _ => {}
            }
            let named: HashSet<u64> = live.iter().flat_map(|(.., named)| named.iter().copied()).collect();
            let registered = map.registrar.registered.lock().unwrap().clone();
            prop_assert!(named.is_subset(&registered));
            if step == 2 {
                prop_assert_eq!(&registered, &named);
            }
        }
    }
}
