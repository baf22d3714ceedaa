//! Cached registrations of memory that only a peer-memory client knows, which counts them: on the software card.

use gdsync::verbs::RegistrationCache;
use gdsync::{
    Access, ConnectOptions, Device, PinnedMemory, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest,
};
use gdsync_test_support::fake_gpu;
use gdsync_test_support::pair::{poll, ring};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::SeqCst;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

/// A handle of the fake GPU's memory.
fn handle(buffer: &fake_gpu::Buffer) -> PinnedMemory {
    let base = NonNull::new(buffer.addr as *mut u8).unwrap();
    // SAFETY: the addresses are reserved for the life of the process. Nothing is read or written through the handle
    // here, and the card reaches the bytes through their client.
    unsafe { PinnedMemory::from_raw(base, buffer.len, ()) }
}

#[test]
fn the_card_lets_go_of_peer_memory_when_its_last_user_and_its_last_request_are_gone() {
    let (source, target) = (fake_gpu::allocate(10_000), fake_gpu::allocate(10_000));
    let registered = || (source.regions.load(SeqCst), target.regions.load(SeqCst));
    let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
    let config = QueuePairConfig::default();
    let (left, right) = (QueuePair::new(&pd, config).unwrap(), QueuePair::new(&pd, config).unwrap());
    left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let cache = RegistrationCache::new(&pd);
    let (from, to) = (handle(&source), handle(&target));
    let pattern: Vec<u8> = (0..10_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    source.set(&pattern);
    for _ in 0..3 {
        let (near, far) = (cache.host(&from, Access::empty()).unwrap(), cache.host(&to, ALL).unwrap());
        let slices = [near.slice(..).unwrap()];
        ring(left.prepare(WorkRequest::write(&slices, far.remote())).unwrap());
        poll(&left.send_cq()).status.unwrap();
    }
    assert_eq!(target.get(), pattern);
    assert_eq!(registered(), (1, 1), "once, for three messages");
    // A receive is outstanding: the cache drops the registration, the card does not.
    right.post_recv(&[cache.host(&to, ALL).unwrap().slice(..).unwrap()], 0).unwrap();
    drop(to);
    assert_eq!((cache.statistics().entries, registered()), (1, (1, 1)));
    let near = cache.host(&from, Access::empty()).unwrap();
    ring(left.prepare(WorkRequest::send(&[near.slice(..).unwrap()])).unwrap());
    poll(&right.recv_cq()).status.unwrap();
    poll(&left.send_cq()).status.unwrap();
    drop((left, right));
    assert_eq!(registered(), (1, 0));
    // A region in use stays registered, whatever the cache forgets.
    assert_eq!((cache.clear(), registered()), (1, (1, 0)));
    drop(near);
    assert_eq!(registered(), (0, 0));
    drop(from);
}

#[test]
fn memory_that_its_client_refuses_is_an_error_each_time() {
    let buffer = fake_gpu::allocate(4096);
    let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
    let cache = RegistrationCache::new(&pd);
    let base = NonNull::new(buffer.addr as *mut u8).unwrap();
    // SAFETY: as in `handle`; the gap after the allocation is reserved, too.
    let beyond = unsafe { PinnedMemory::from_raw(base, buffer.len + 1, ()) };
    for _ in 0..2 {
        let error = cache.host(&beyond, Access::empty()).unwrap_err().to_string();
        assert!(error.contains("ibv_reg_mr") && error.contains("Bad address"), "{error}");
    }
    assert_eq!((cache.statistics().misses, cache.statistics().entries), (2, 0));
    assert_eq!(buffer.regions.load(SeqCst), 0);
}
