//! gdsync on a context and a protection domain of the crate `ibverbs`: needs a card, or `gdsync soft --`.

#![cfg(feature = "ibverbs")]

use gdsync::verbs::OpenError;
use gdsync::verbs::ibverbs::ffi;
use gdsync::{Access, ConnectOptions, Error, MemoryRegion, QueuePair, QueuePairConfig, WorkRequest};
use gdsync_test_support::pair::*;
use gdsync_test_support::skipped_unless_required;

/// The first mlx5 device of libibverbs, opened.
fn open() -> Option<*mut ffi::ibv_context> {
    // SAFETY: null means that no count is needed; the list ends with a null pointer and is freed once, after its last
    // use.
    unsafe {
        let list = ffi::ibv_get_device_list(std::ptr::null_mut());
        if list.is_null() {
            return None;
        }
        let first = *list;
        let context = if first.is_null() { std::ptr::null_mut() } else { ffi::ibv_open_device(first) };
        ffi::ibv_free_device_list(list);
        (!context.is_null()).then_some(context)
    }
}

#[test]
fn a_programs_own_context_and_domain_are_used_and_left_alone() {
    let Some(context) = open() else {
        let test = "a_programs_own_context_and_domain_are_used_and_left_alone";
        return skipped_unless_required("GDSYNC_REQUIRE_RDMA", test, "libibverbs finds no device");
    };
    // SAFETY: the context is open.
    let raw_pd = unsafe { ffi::ibv_alloc_pd(context) };
    {
        // SAFETY: context and domain outlive everything in this block, which ends with no work in flight.
        let (device, pd) = unsafe {
            let device = gdsync::verbs::ibverbs::device(context).unwrap();
            let pd = gdsync::verbs::ibverbs::protection_domain(&device, raw_pd).unwrap();
            (device, pd)
        };
        assert!(!device.name().is_empty());
        let pair = [(); 2].map(|()| QueuePair::new(&pd, QueuePairConfig::default()).unwrap());
        pair[0].connect(&pair[1].endpoint().unwrap(), ConnectOptions::default()).unwrap();
        pair[1].connect(&pair[0].endpoint().unwrap(), ConnectOptions::default()).unwrap();
        let source = MemoryRegion::allocate(&pd, 3000, Access::empty()).unwrap();
        let target = MemoryRegion::allocate(&pd, 3000, Access::LOCAL_WRITE).unwrap();
        let bytes = fill(&source, 3);
        pair[1].post_recv(&[target.slice(..).unwrap()], 1).unwrap();
        ring(pair[0].prepare(WorkRequest::send(&[source.slice(..).unwrap()])).unwrap());
        assert_eq!(poll(&pair[1].recv_cq()).status, Ok(()));
        assert_eq!(poll(&pair[0].send_cq()).status, Ok(()));
        assert_eq!(content(&target), bytes);
    }
    // SAFETY: no object is left on either; gdsync has destroyed neither.
    unsafe {
        assert_eq!(ffi::ibv_dealloc_pd(raw_pd), 0);
        assert_eq!(ffi::ibv_close_device(context), 0);
    }
}

#[test]
fn null_pointers_are_refused() {
    // SAFETY: null is allowed.
    let error = unsafe { gdsync::verbs::ibverbs::device(std::ptr::null_mut()) }.unwrap_err();
    assert!(matches!(error, Error::Open(OpenError::Null { what: "ibv_context" })), "{error}");
    let device = gdsync::Device::software().unwrap();
    // SAFETY: as above.
    let error =
        unsafe { gdsync::verbs::ibverbs::protection_domain(&device, std::ptr::null_mut()) }.unwrap_err();
    assert!(matches!(error, Error::Open(OpenError::Null { what: "ibv_pd" })), "{error}");
}
