//! Cached registrations: found again, bounded, dropped with their memory, kept while a work request names them.

use gdsync::memory::OutOfBounds;
use gdsync::verbs::{CacheLimits, RegistrationCache};
use gdsync::{Access, Error, MemoryRegion, PinnedMemory, WorkRequest};
use gdsync_test_support::pair::{Pair, poll, ring};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

/// The program's bytes; the number of owners shows whether anyone still needs them.
struct Bytes(Arc<[AtomicU8]>);

impl Bytes {
    fn new(len: usize) -> Self {
        Bytes((0..len).map(|_| AtomicU8::new(0)).collect())
    }

    fn part(&self, start: usize, len: usize) -> PinnedMemory {
        let base = NonNull::from(&self.0[start..start + len]).cast();
        // SAFETY: the owner keeps the bytes, which are atomic.
        unsafe { PinnedMemory::from_raw(base, len, self.0.clone()) }
    }

    fn needed(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

fn write(pair: &Pair, cache: &RegistrationCache, from: &PinnedMemory, to: &PinnedMemory) {
    let (source, target) = (cache.host(from, Access::empty()).unwrap(), cache.host(to, ALL).unwrap());
    let slices = [source.slice(..).unwrap()];
    ring(pair.left.prepare(WorkRequest::write(&slices, target.remote())).unwrap());
    poll(&pair.left.send_cq()).status.unwrap();
}

#[test]
fn messages_of_the_same_memory_register_once() {
    let pair = Pair::new();
    let cache = RegistrationCache::new(&pair.pd);
    let (from, to) = (PinnedMemory::allocate(3000).unwrap(), PinnedMemory::allocate(3000).unwrap());
    for round in 0..10u8 {
        from.write(0, &[round; 3000]);
        write(&pair, &cache, &from, &to);
        let mut got = vec![0; 3000];
        to.read(0, &mut got);
        assert_eq!(got, [round; 3000]);
    }
    let statistics = cache.statistics();
    assert_eq!((statistics.misses, statistics.hits), (2, 18), "{statistics:?}");
    assert_eq!((statistics.entries, statistics.bytes), (2, 6000));
    let region = cache.host(&to, Access::LOCAL_WRITE).unwrap();
    assert_eq!((region.len(), region.is_empty(), region.path()), (3000, false, None));
    assert_eq!(region.remote().rkey, region.rkey());
    assert!(matches!(region.slice(..3001), Err(OutOfBounds { end: 3001, len: 3000, .. })));
}

#[test]
fn a_part_is_served_by_the_registration_of_the_whole() {
    let pair = Pair::new();
    let cache = RegistrationCache::new(&pair.pd);
    let (bytes, to) = (Bytes::new(1000), PinnedMemory::allocate(100).unwrap());
    let (whole, part) = (bytes.part(0, 1000), bytes.part(300, 100));
    let region = cache.host(&whole, ALL).unwrap();
    let part_region = cache.host(&part, Access::empty()).unwrap();
    assert_eq!((part_region.lkey(), part_region.len()), (region.lkey(), 100));
    assert_eq!(part_region.remote().addr, region.remote().addr + 300);
    part.write(0, &[7; 100]);
    write(&pair, &cache, &part, &to);
    let mut got = [0; 100];
    to.read(0, &mut got);
    assert_eq!(got, [7; 100]);
    // More access than registered: registered again.
    let small = cache.host(&to, Access::LOCAL_WRITE).unwrap();
    assert_ne!(small.lkey(), cache.host(&to, ALL | Access::REMOTE_ATOMIC).unwrap().lkey());
    // A part keeps the whole whose registration serves it.
    drop((region, whole));
    assert_eq!(part_region.slice(..).unwrap().len(), 100);
    assert!(bytes.needed());
}

#[test]
fn a_region_of_a_part_is_the_part() {
    let pair = Pair::new();
    let cache = RegistrationCache::new(&pair.pd);
    let bytes = Bytes::new(1000);
    let whole = cache.host_region(&bytes.part(0, 1000), ALL).unwrap();
    let part = cache.host_region(&bytes.part(300, 100), Access::empty()).unwrap();
    assert_eq!((part.lkey(), part.len()), (whole.lkey(), 100));
    assert_eq!((part.remote().addr, part.remote().len), (whole.remote().addr + 300, 100));
    assert!(matches!(part.slice(90..101), Err(OutOfBounds { end: 101, len: 100, .. })));
    // Its words, and the card's writes, are those of the part.
    whole.write(300, &[7; 100]);
    let (slices, target) = ([part.slice(..8).unwrap()], part.remote().slice(92..).unwrap());
    part.write(0, &[9; 8]);
    ring(pair.left.prepare(WorkRequest::write(&slices, target)).unwrap());
    poll(&pair.left.send_cq()).status.unwrap();
    let mut got = [0; 100];
    whole.read(300, &mut got);
    assert_eq!((&got[..8], &got[8..92], &got[92..]), (&[9; 8][..], &[7; 84][..], &[9; 8][..]));
    assert_eq!((cache.statistics().misses, cache.statistics().hits), (1, 1));
    assert_eq!(format!("{:?}", cache.domain()), format!("{:?}", pair.pd));
    drop((whole, part, slices));
    assert_eq!(cache.statistics().entries, 0);
    assert!(!bytes.needed());
}

#[test]
fn a_registration_goes_with_the_last_user_of_its_memory() {
    let pair = Pair::new();
    let cache = RegistrationCache::new(&pair.pd);
    let other = RegistrationCache::new(&pair.pd);
    let bytes = Bytes::new(4096);
    let memory = bytes.part(0, 4096);
    let another = memory.clone();
    drop((cache.host(&memory, ALL).unwrap(), other.host(&memory, Access::empty()).unwrap()));
    drop(memory);
    assert_eq!((cache.statistics().entries, other.statistics().entries), (1, 1));
    drop(other);
    drop(another);
    let statistics = cache.statistics();
    assert_eq!((statistics.entries, statistics.bytes, statistics.invalidations), (0, 0, 1));
    assert!(!bytes.needed(), "nothing keeps unused memory");
}

#[test]
fn a_work_request_keeps_what_it_names() {
    let pair = Pair::new();
    let cache = RegistrationCache::new(&pair.pd);
    let bytes = Bytes::new(64);
    let memory = bytes.part(0, 64);
    let region = cache.host(&memory, ALL).unwrap();
    let first = memory.addr().get();
    pair.right.post_recv(&[region.slice(..).unwrap()], 1).unwrap();
    drop((region, memory));
    assert_eq!(cache.invalidate(first..first + 1), 0, "it went with the last user");
    assert!(bytes.needed(), "the receive has to land somewhere");
    let source = PinnedMemory::allocate(64).unwrap();
    source.write(0, &[9; 64]);
    let slices = [cache.host(&source, Access::empty()).unwrap().slice(..).unwrap()];
    ring(pair.left.prepare(WorkRequest::send(&slices)).unwrap());
    poll(&pair.right.recv_cq()).status.unwrap();
    assert!(bytes.0.iter().all(|byte| byte.load(std::sync::atomic::Ordering::Relaxed) == 9));
    drop(pair);
    assert!(!bytes.needed());
}

#[test]
fn invalidation_is_by_address() {
    let pair = Pair::new();
    let cache = RegistrationCache::new(&pair.pd);
    let bytes = Bytes::new(1 << 14);
    let parts = [0, 1 << 12, 2 << 12].map(|start| bytes.part(start, 1 << 12));
    let key = |part: &PinnedMemory| cache.host(part, ALL).unwrap().lkey();
    let before = parts.each_ref().map(key);
    let second = parts[1].addr().get();
    assert_eq!(cache.invalidate(second..second), 0);
    assert_eq!(cache.invalidate(second + 5..second + 6), 1);
    assert_eq!((key(&parts[0]), key(&parts[2])), (before[0], before[2]));
    assert_eq!(cache.statistics().misses, 3);
    key(&parts[1]);
    assert_eq!(cache.statistics().misses, 4);
    assert_eq!((cache.clear(), cache.statistics().entries), (3, 0));
}

#[test]
fn limits_hold_and_what_is_in_use_is_never_evicted() {
    let pair = Pair::new();
    let cache = RegistrationCache::with_limits(&pair.pd, CacheLimits { bytes: 3 << 12, entries: 8 });
    let memory: Vec<PinnedMemory> = (0..6).map(|_| PinnedMemory::allocate(1 << 12).unwrap()).collect();
    let used = cache.host(&memory[0], ALL).unwrap();
    for memory in &memory[1..] {
        cache.host(memory, ALL).unwrap();
        assert!(cache.statistics().bytes <= 3 << 12);
    }
    assert_eq!((cache.statistics().evictions, cache.statistics().entries), (3, 3));
    assert_eq!(cache.host(&memory[0], ALL).unwrap().lkey(), used.lkey());
    // Too large for the limit, and nevertheless usable.
    let large = PinnedMemory::allocate(4 << 12).unwrap();
    write(&pair, &cache, &large, &large);
    assert_eq!(cache.statistics().not_kept, 2);
    assert_eq!(cache.statistics().entries, 3);
}

#[test]
fn what_the_provider_refuses_is_not_kept() {
    let pair = Pair::new();
    let cache = RegistrationCache::new(&pair.pd);
    let memory = PinnedMemory::allocate(64).unwrap();
    let refused = cache.host(&memory, Access::REMOTE_WRITE);
    assert!(matches!(refused, Err(Error::Verbs { call: "ibv_reg_mr", .. })), "remote without local writes");
    assert_eq!((cache.statistics().misses, cache.statistics().entries), (1, 0));
    let empty = PinnedMemory::allocate(0).unwrap();
    let region = cache.host(&empty, ALL).unwrap();
    assert!(region.is_empty() && region.slice(..).unwrap().is_empty() && region.slice(..1).is_err());
}

#[test]
fn threads_share_a_cache() {
    let pair = Pair::new();
    let cache = RegistrationCache::with_limits(&pair.pd, CacheLimits { bytes: 5 << 12, entries: 4 });
    let shared: Vec<PinnedMemory> = (0..6).map(|_| PinnedMemory::allocate(1 << 12).unwrap()).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (cache, shared) = (cache.clone(), &shared);
            scope.spawn(move || {
                for round in 0..200 {
                    let own = PinnedMemory::allocate(1 << 12).unwrap();
                    let memory = if round % 5 == 0 { &own } else { &shared[(thread + round) % 6] };
                    let region = cache.host(memory, ALL).unwrap();
                    assert_eq!(region.remote().addr, memory.addr().get());
                    assert!(cache.statistics().bytes <= 5 << 12);
                    if round % 7 == 0 {
                        cache.invalidate(memory.addr().get()..memory.addr().get() + 1);
                    }
                }
            });
        }
    });
    drop(shared);
    let statistics = cache.statistics();
    assert_eq!((statistics.entries, statistics.bytes), (0, 0), "{statistics:?}");
    assert_eq!(statistics.hits + statistics.misses, 800);
}

#[test]
fn no_byte_behind_the_programs_memory_is_registered() {
    let pair = Pair::new();
    let (bytes, cache) = (Bytes::new(64), RegistrationCache::new(&pair.pd));
    let refused = |result: Result<(), Error>| match result {
        Err(Error::Verbs { call: "ibv_reg_mr", detail, .. }) => {
            assert!(detail.contains("0 bytes"), "{detail}")
        }
        other => panic!("{other:?}"),
    };
    refused(MemoryRegion::register(&pair.pd, bytes.part(8, 0), ALL).map(drop));
    refused(cache.host(&bytes.part(8, 0), ALL).map(drop));
    // The library's own memory has whole pages.
    assert_eq!(MemoryRegion::allocate(&pair.pd, 0, ALL).unwrap().remote().len, 0);
}
