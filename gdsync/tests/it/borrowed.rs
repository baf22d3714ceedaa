//! Contexts and protection domains that the program has made, through the table of entry points.

#![cfg(feature = "software-card")]
use gdsync::persistent::{PersistentRecv, PersistentSend, start_all_by_trigger};
use gdsync::qp::CardWord;
use gdsync::queue::{QueueError, RequestError};
use gdsync::verbs::{OpenError, QueuePairError, provider};
use gdsync::{Access, Device, Error, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, Trigger};
use gdsync_sys::verbs::ibv_context;
use gdsync_test_support::pair::{LONG, content, soft, synchronize};
use std::ptr::NonNull;

fn open() -> NonNull<ibv_context> {
    let api = provider::software();
    // SAFETY: the list has at least the one software device, and is freed once.
    unsafe {
        let list = (api.get_device_list)(&mut 0);
        let context = (api.open_device)(*list);
        (api.free_device_list)(list);
        NonNull::new(context).unwrap()
    }
}

#[test]
fn what_is_borrowed_is_left_to_its_owner() {
    let (api, context) = (provider::software(), open());
    // SAFETY: the context is open.
    let raw_pd = NonNull::new(unsafe { (api.alloc_pd)(context.as_ptr()) }).unwrap();
    // SAFETY: both outlive the handles.
    let (device, pd) = unsafe {
        let device = Device::from_raw(api, context).unwrap();
        let pd = ProtectionDomain::from_raw(&device, raw_pd).unwrap();
        (device, pd)
    };
    assert_eq!(device.name(), "softhca0");
    let queue_pair = QueuePair::new(&pd, QueuePairConfig::default()).unwrap();
    let region = MemoryRegion::allocate(&pd, 10, Access::empty()).unwrap();
    // SAFETY: the domain is valid; in use, it is not deallocated.
    assert_eq!(unsafe { (api.dealloc_pd)(raw_pd.as_ptr()) }, libc::EBUSY);
    drop((queue_pair, region, pd, device));
    // SAFETY: no object is left on either, and gdsync has destroyed neither: the calls would return EINVAL, or worse.
    unsafe {
        assert_eq!((api.dealloc_pd)(raw_pd.as_ptr()), 0);
        assert_eq!((api.close_device)(context.as_ptr()), 0);
    }
}

/// A program with a domain from C may make several handles of it.
#[test]
fn handles_of_one_domain_work_together() {
    let (api, context) = (provider::software(), open());
    // SAFETY: the context is open.
    let raw_pds = [0; 2].map(|_| NonNull::new(unsafe { (api.alloc_pd)(context.as_ptr()) }).unwrap());
    // SAFETY: both outlive the handles.
    let device = unsafe { Device::from_raw(api, context) }.unwrap();
    // SAFETY: as above.
    let handle = |number: usize| unsafe { ProtectionDomain::from_raw(&device, raw_pds[number]) }.unwrap();
    let trigger = Trigger::new(&handle(0)).unwrap();
    let pair = [(); 2].map(|()| QueuePair::new(&handle(0), QueuePairConfig::default()).unwrap());
    pair[0].connect(&pair[1].endpoint().unwrap(), Default::default()).unwrap();
    pair[1].connect(&pair[0].endpoint().unwrap(), Default::default()).unwrap();
    let [from, to, words] = [(); 3].map(|()| MemoryRegion::allocate(&handle(0), 8, Access::all()).unwrap());
    from.write(0, b"together");
    let word = CardWord::in_region(&words, 0).unwrap();
    let send = PersistentSend::send(&pair[0], &[from.slice(..).unwrap()]).unwrap();
    let mut send = send.card_wait(&word).unwrap();
    let mut receive = PersistentRecv::new(&pair[1], &[to.slice(..).unwrap()]).unwrap();
    let mut ready = PersistentSend::write_start_count(&pair[1], word.remote()).unwrap();
    let stream = soft();
    start_all_by_trigger(&mut [&mut receive, &mut ready, &mut send], &stream, &trigger, LONG).unwrap();
    for request in [&mut ready, &mut send] {
        assert_eq!(request.complete(LONG).unwrap().unwrap().status, Ok(()));
    }
    assert_eq!(receive.complete(LONG).unwrap().unwrap().status, Ok(()));
    assert_eq!(content(&to), *b"together");

    let other = MemoryRegion::allocate(&handle(1), 8, Access::all()).unwrap();
    let error = send.set_card_wait(&CardWord::in_region(&other, 0).unwrap()).unwrap_err();
    assert!(matches!(error, Error::QueuePair(QueuePairError::OtherDomain)), "{error}");
    let foreign = Trigger::new(&handle(1)).unwrap();
    let config = QueuePairConfig::default().trigger(&foreign);
    let error = QueuePair::new(&handle(0), config).unwrap_err();
    assert!(matches!(error, Error::QueuePair(QueuePairError::OtherDomain)), "{error}");
    let error = PersistentRecv::new(&pair[1], &[other.slice(..).unwrap()]).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::WrongDomain { .. })), "{error}");
    synchronize(&stream);
    drop((send, receive, ready, pair, trigger, foreign));
    drop((from, to, words, word, other, stream, device));
    // SAFETY: no object is left on them.
    unsafe {
        raw_pds.iter().for_each(|raw_pd| assert_eq!((api.dealloc_pd)(raw_pd.as_ptr()), 0));
        assert_eq!((api.close_device)(context.as_ptr()), 0);
    }
}

#[test]
fn a_domain_of_another_context_is_refused() {
    let (api, context) = (provider::software(), open());
    // SAFETY: the context is open; the domain is deallocated before it, after the failed attempt to use it.
    unsafe {
        let raw_pd = NonNull::new((api.alloc_pd)(context.as_ptr())).unwrap();
        let error = ProtectionDomain::from_raw(&Device::software().unwrap(), raw_pd).unwrap_err();
        assert!(
            matches!(&error, Error::Open(OpenError::OtherContext { device }) if device == "softhca0"),
            "{error}"
        );
        assert_eq!((api.dealloc_pd)(raw_pd.as_ptr()), 0);
        assert_eq!((api.close_device)(context.as_ptr()), 0);
    }
}
