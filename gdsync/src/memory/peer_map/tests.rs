use super::*;
use crate::memory::spans::BEGINS_USE;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::HashSet;

/// A device that maps host pages `SHIFT` higher, and counts calls.
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
    fn register(&self, base: u64, len: u64, kind: SpanKind) -> Result<Registered, String> {
        *self.calls.lock() += 1;
        assert!(base.is_multiple_of(page_size() as u64) && len.is_multiple_of(page_size() as u64));
        if matches!(kind, SpanKind::Registers { .. }) && self.refuses_registers {
            return Err("not permitted".to_owned());
        }
        let owned = !self.foreign.contains(&base);
        if owned {
            assert!(self.registered.lock().insert(base), "registered twice");
        }
        Ok(Registered { device: base + SHIFT, owned })
    }

    fn unregister(&self, base: u64) {
        assert!(self.registered.lock().remove(&base), "was not registered");
    }
}

/// Addresses that no mapping has, different in each test.
fn base(test: u64) -> u64 {
    0xfffe_0000_0000_0000 + (test << 32)
}

fn nothing() -> super::super::spans::Release {
    Box::new(|| ())
}

fn registered(map: &PeerMap<Device>) -> usize {
    map.registrar.registered.lock().len()
}

#[test]
fn spans_are_registered_once_and_unregistered_when_they_go() {
    let _spans = BEGINS_USE.read();
    let map = PeerMap::new(Device::default());
    let at = base(1);
    assert_eq!(map.translate(HostAddr(at), 8), Err(MapError::Unknown));
    let span = Span::announce(at, 0x10_0000, SpanKind::Whole, nothing());
    for offset in [0, 8, 0xf_fff8] {
        assert_eq!(map.translate(HostAddr(at + offset), 8), Ok(StreamAddr::new(at + SHIFT + offset)));
    }
    assert_eq!(*map.registrar.calls.lock(), 1);
    let epoch = map.epoch();
    drop(span);
    assert_ne!(map.epoch(), epoch);
    map.collect();
    assert_eq!(registered(&map), 0);
    assert_eq!(map.translate(HostAddr(at), 8), Err(MapError::Unknown));
}

#[test]
fn a_page_that_two_spans_share_stays_until_both_are_gone() {
    let _spans = BEGINS_USE.read();
    let map = PeerMap::new(Device::default());
    let at = base(2);
    let (one, two) = (
        Span::announce(at, 64, SpanKind::Pages, nothing()),
        Span::announce(at + 64, 0x2000, SpanKind::Pages, nothing()),
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
    let _spans = BEGINS_USE.read();
    let map = PeerMap::new(Device::default());
    let at = base(7);
    let (outer, inner) = (
        Span::announce(at, 4096, SpanKind::Pages, nothing()),
        Span::announce(at + 64, 64, SpanKind::Pages, nothing()),
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
    let _spans = BEGINS_USE.read();
    let map = PeerMap::new(Device::default());
    let at = base(8);
    let announce = || Span::announce(at, 4096, SpanKind::Registers { mmio: false }, nothing());
    let first = announce();
    map.translate(HostAddr(at), 8).unwrap();
    drop(first);
    let second = announce();
    map.translate(HostAddr(at), 8).unwrap();
    map.collect();
    assert_eq!((registered(&map), *map.registrar.calls.lock()), (1, 1));
    drop(second);
    map.collect();
    assert_eq!(registered(&map), 0);
}

#[test]
fn memory_that_was_refused_may_be_taken_later() {
    struct Moody(Mutex<u32>);
    impl Registrar for Moody {
        fn register(&self, base: u64, _len: u64, _kind: SpanKind) -> Result<Registered, String> {
            let mut calls = self.0.lock();
            *calls += 1;
            if *calls == 1 { Err("not now".to_owned()) } else { Ok(Registered { device: base, owned: true }) }
        }

        fn unregister(&self, _base: u64) {}
    }
    let map = PeerMap::new(Moody(Mutex::new(0)));
    let at = base(9);
    let _span = Span::announce(at, 4096, SpanKind::Whole, nothing());
    assert!(map.translate(HostAddr(at), 8).is_err());
    assert!(map.translate(HostAddr(at), 8).is_ok());
}

#[test]
fn pages_of_the_program_are_left_alone() {
    let at = base(3);
    let map = PeerMap::new(Device { foreign: HashSet::from([at]), ..Device::default() });
    let span = Span::announce(at, 4096, SpanKind::Pages, nothing());
    assert!(map.translate(HostAddr(at + 8), 8).is_ok());
    drop(span);
}

#[test]
fn a_refusal_is_remembered_as_long_as_the_span_is_there() {
    let _spans = BEGINS_USE.read();
    let map = PeerMap::new(Device { refuses_registers: true, ..Device::default() });
    let at = base(4);
    let page = Span::announce(at, 4096, SpanKind::Registers { mmio: true }, nothing());
    for _ in 0..3 {
        assert_eq!(
            map.translate(HostAddr(at + 0x800), 8),
            Err(MapError::Refused("not permitted".to_owned()))
        );
    }
    assert_eq!(*map.registrar.calls.lock(), 1);
    drop(page);
    assert_eq!(map.translate(HostAddr(at + 0x800), 8), Err(MapError::Unknown));
}

#[test]
fn retired_pages_stay_mapped_until_they_are_unregistered() {
    let _spans = BEGINS_USE.read();
    let map = PeerMap::new(Device::default());
    let at = base(5);
    let released = Arc::new(Mutex::new(false));
    let flag = released.clone();
    let span = Span::announce(at, 4096, SpanKind::Whole, Box::new(move || *flag.lock() = true));
    map.translate(HostAddr(at), 8).unwrap();
    assert!(format!("{map:?}").contains("runs: 1"));
    drop(span);
    assert!(map.has_retired() && registered(&map) == 1 && !*released.lock());
    assert_eq!(map.translate(HostAddr(at), 8), Err(MapError::Unknown));
    map.collect();
    assert!(!map.has_retired() && registered(&map) == 0 && *released.lock());
}

proptest! {
    /// In any order of announcing, naming and dropping spans, the registered pages are those of live, named spans.
    #[test]
    fn registrations_follow_the_spans(
        steps in proptest::collection::vec((0u8..4, 0u64..16, 1u64..5, any::<prop::sample::Index>()), 1..60)
    ) {
        let _spans = BEGINS_USE.read();
        let page = page_size() as u64;
        let origin = base(6);
        let map = PeerMap::new(Device::default());
        let mut live: Vec<(Arc<Span>, u64, u64, HashSet<u64>)> = Vec::new();
        for (step, first, pages, index) in steps {
            match step {
                0 => {
                    let (at, len) = (origin + first * page + 16, pages * page - 32);
                    live.push((Span::announce(at, len, SpanKind::Pages, nothing()), at, len, HashSet::new()));
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
            let registered = map.registrar.registered.lock().clone();
            prop_assert!(named.is_subset(&registered));
            if step == 2 {
                prop_assert_eq!(&registered, &named);
            }
        }
    }
}

/// A device that the spans offer all memory of the process, that of other tests too. It accepts this test's only.
struct InUse {
    device: Device,
    own: std::ops::Range<u64>,
    refuses: Mutex<bool>,
}

impl Registrar for InUse {
    fn register(&self, base: u64, len: u64, kind: SpanKind) -> Result<Registered, String> {
        if !self.own.contains(&base) {
            return Err("another test's".to_owned());
        }
        if *self.refuses.lock() {
            *self.device.calls.lock() += 1;
            return Err("not now".to_owned());
        }
        self.device.register(base, len, kind)
    }

    fn unregister(&self, base: u64) {
        self.device.unregister(base);
    }
}

/// The map of such a device, with a stream or without.
struct Used {
    _alone: parking_lot::RwLockWriteGuard<'static, ()>,
    map: Arc<PeerMap<InUse>>,
    at: u64,
}

impl Used {
    fn new(test: u64) -> Self {
        Self::over(base(test), 1 << 32)
    }

    fn over(at: u64, len: u64) -> Self {
        let registrar = InUse { device: Device::default(), own: at..at + len, refuses: Mutex::new(false) };
        let alone = BEGINS_USE.write();
        Used { _alone: alone, map: PeerMap::new(registrar), at }
    }

    fn announce(&self, offset: u64, len: u64, kind: SpanKind) -> Arc<Span> {
        Span::announce(self.at + offset, len, kind, nothing())
    }

    fn registered(&self) -> Vec<u64> {
        let registered = self.map.registrar.device.registered.lock();
        let mut offsets: Vec<u64> = registered.iter().map(|base| base - self.at).collect();
        offsets.sort_unstable();
        offsets
    }

    fn calls(&self) -> usize {
        *self.map.registrar.device.calls.lock()
    }
}

#[test]
fn what_is_made_while_there_is_a_stream_is_registered_then() {
    let used = Used::new(10);
    let before = used.announce(0, 0x2000, SpanKind::Whole);
    let words = used.announce(0x1_0010, 0x80_0000, SpanKind::Pages);
    // Two words of one page, the last page but one, and the last.
    for offset in [0x1_0010, 0x1_0ff8, 0x80_f008, 0x81_0000] {
        words.expose(used.at + offset);
    }
    assert!(used.registered().is_empty(), "there is no stream");
    used.map.add_stream();
    assert_eq!(used.registered(), [0, 0x1_0000, 0x80_f000, 0x81_0000]);
    let after = used.announce(0x4000, 0x1000, SpanKind::Whole);
    let registers = used.announce(0x6000, 0x1000, SpanKind::Registers { mmio: true });
    let payload = used.announce(0x8000, 0x4000, SpanKind::Pages);
    words.expose(used.at + 0x1_1000);
    assert_eq!(used.registered(), [0, 0x4000, 0x6000, 0x1_0000, 0x1_1000, 0x80_f000, 0x81_0000]);
    let calls = used.calls();
    for offset in [8, 0x4008, 0x6800, 0x1_0ff8, 0x1_1000, 0x80_fff8, 0x81_0008] {
        let addr = HostAddr(used.at + offset);
        assert_eq!(used.map.translate(addr, 8), Ok(StreamAddr::new(addr.get() + SHIFT)));
        words.expose(addr.get().max(used.at + 0x1_0010));
    }
    assert_eq!(used.calls(), calls, "named for the first time, and known");
    used.map.translate(HostAddr(used.at + 0x9000), 8).unwrap();
    assert_eq!(used.calls(), calls + 1, "no word of it was made");
    drop((before, words, after, registers, payload));
    used.map.collect();
    assert!(used.registered().is_empty());
    used.map.remove_stream();
}

#[test]
fn without_a_stream_nothing_is_registered_until_it_is_named() {
    let used = Used::new(11);
    used.map.add_stream();
    used.map.add_stream();
    used.map.remove_stream();
    let one = used.announce(0, 0x1000, SpanKind::Whole);
    assert_eq!(used.registered(), [0], "there is another stream");
    used.map.remove_stream();
    let two = used.announce(0x2000, 0x1000, SpanKind::Whole);
    let words = used.announce(0x4000, 0x1000, SpanKind::Pages);
    words.expose(used.at + 0x4000);
    assert_eq!(used.registered(), [0]);
    used.map.translate(HostAddr(used.at + 0x2000), 8).unwrap();
    assert_eq!(used.registered(), [0, 0x2000]);
    used.map.add_stream();
    assert_eq!((used.registered(), used.calls()), (vec![0, 0x2000, 0x4000], 3), "each of them once");
    used.map.remove_stream();
    drop((one, two, words));
}

#[test]
fn what_is_refused_when_it_is_made_is_asked_for_again_when_it_is_named() {
    let used = Used::new(12);
    used.map.add_stream();
    *used.map.registrar.refuses.lock() = true;
    let words = used.announce(0, 0x1000, SpanKind::Pages);
    words.expose(used.at);
    words.expose(used.at + 8);
    let registers = used.announce(0x2000, 0x1000, SpanKind::Registers { mmio: true });
    assert_eq!(used.calls(), 2, "a refusal is no reason to ask for each word");
    let refused = Err(MapError::Refused("not now".to_owned()));
    assert_eq!(used.map.translate(HostAddr(used.at), 8), refused);
    assert_eq!(used.map.translate(HostAddr(used.at + 0x2000), 8), refused);
    assert_eq!(used.calls(), 3, "registers stay out of reach");
    *used.map.registrar.refuses.lock() = false;
    assert!(used.map.translate(HostAddr(used.at), 8).is_ok());
    used.map.remove_stream();
    drop((words, registers));
}

#[test]
fn of_pinned_memory_the_pages_of_words_and_of_writes_are_made() {
    let pinned = crate::PinnedMemory::allocate(5 * 4096).unwrap();
    let used = Used::over(pinned.addr().get(), pinned.len() as u64);
    used.map.add_stream();
    let write = |offset, bytes: &[u8]| crate::batch::MemoryWrite::new(&pinned, offset, bytes).unwrap();
    let word = crate::memop::Word32::new(&pinned, 4096).unwrap();
    assert_eq!(used.registered(), [4096]);
    let writes = [write(3 * 4096 - 1, &[1, 2]), write(5 * 4096, &[])];
    assert_eq!(used.registered(), [4096, 2 * 4096, 3 * 4096], "nothing past the end");
    used.map.remove_stream();
    drop((word, writes, pinned));
    used.map.collect();
    assert!(used.registered().is_empty());
}

#[test]
fn threads_that_make_words_and_streams_at_once_miss_none() {
    for round in 0..100 {
        let used = Used::new(0x100 + round);
        let words = used.announce(0, 0x10_0000, SpanKind::Pages);
        std::thread::scope(|scope| {
            let (words, used) = (&words, &used);
            for thread in 0..2 {
                scope.spawn(move || {
                    (0..8).for_each(|page| words.expose(used.at + (page * 2 + thread) * 0x1000))
                });
            }
            scope.spawn(|| used.map.add_stream());
        });
        assert_eq!(used.registered(), (0..16).map(|page| page * 0x1000).collect::<Vec<_>>());
        used.map.remove_stream();
    }
}
