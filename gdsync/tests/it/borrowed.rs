//! Contexts and protection domains that the program has made itself, through the table of entry
//! points.

#![cfg(feature = "software-card")]
use gdsync::verbs::{OpenError, provider};
use gdsync::{Access, Device, Error, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig};
use gdsync_sys::verbs::ibv_context;
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
    // SAFETY: nothing is left on either, and gdsync has destroyed neither: that would be EINVAL, or
    // worse.
    unsafe {
        assert_eq!((api.dealloc_pd)(raw_pd.as_ptr()), 0);
        assert_eq!((api.close_device)(context.as_ptr()), 0);
    }
}

#[test]
fn a_domain_of_another_context_is_refused() {
    let (api, context) = (provider::software(), open());
    // SAFETY: the context is open; the domain goes before it, and after the failed attempt to use
    // it.
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
