//! Devices, and when their cards begin and end. The first use decides how many devices a process
//! has.

use crate::verbs_bed::*;
use gdsync_sys::api::Provider;
use gdsync_sys::verbs::*;
use gdsync_test_support::process::alone;
use std::collections::HashSet;
use std::ffi::CStr;

fn identity(context: *mut ibv_context) -> (u16, u64, [u8; 16]) {
    let (mut port, mut device, mut gid) =
        (ibv_port_attr::default(), zeroed::<ibv_device_attr>(), ibv_gid::default());
    // SAFETY: the context is open.
    unsafe {
        assert_eq!((api().query_port)(context, 1, &mut port), 0);
        assert_eq!((api().query_device)(context, &mut device), 0);
        assert_eq!((api().query_gid)(context, 1, 0, &mut gid), 0);
    }
    (port.lid, u64::from_be(device.node_guid), gid.raw)
}

#[test]
fn devices_and_their_cards() {
    if !alone(module_path!(), "devices_and_their_cards", &[(softhca::verbs::DEVICES_VARIABLE, "3")]) {
        return;
    }
    assert_eq!(api().provider, Provider::Software);
    assert_eq!(softhca::verbs::diagnostics(), []);
    let mut count = 0;
    // SAFETY: the list is valid until it is freed; device pointers are kept as C allows, while a
    // context is open.
    unsafe {
        let list = (api().get_device_list)(&mut count);
        assert_eq!(count, 3);
        assert!((*list.add(3)).is_null(), "the list ends with null");
        let mut guids = HashSet::new();
        for i in 0..3 {
            let device = *list.add(i);
            let name = CStr::from_ptr((api().get_device_name)(device)).to_str().unwrap();
            assert_eq!(name, format!("softhca{i}"));
            let dev_name = CStr::from_ptr((&raw const (*device).dev_name).cast());
            assert_eq!(dev_name.to_str().unwrap(), format!("softhca-uverbs{i}"));
            assert_eq!(((*device).node_type, (*device).transport_type), (1, 0));
            assert!((api().mlx5dv_is_supported)(device));
            guids.insert((api().get_device_guid)(device));
        }
        assert_eq!(guids.len(), 3, "each card has a GUID of its own");

        // A device keeps its identity from the list into the contexts, and contexts of a device
        // share it.
        let device = *list;
        let first = (api().open_device)(device);
        let second = (api().open_device)(device);
        let other = (api().open_device)(*list.add(1));
        let guid = u64::from_be((api().get_device_guid)(device));
        (api().free_device_list)(list);
        let (lid, node_guid, gid) = identity(first);
        assert_eq!(node_guid, guid);
        assert_eq!((lid, node_guid, gid), identity(second));
        assert_ne!(identity(other).0, lid, "another device is another port");
        assert!(lid > 0 && lid < 0xc000, "a unicast LID");
        assert_eq!(gid[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
        assert_eq!(gid[8..], guid.to_be_bytes());
        assert_eq!((*first).device, device);
        assert_ne!((*first).async_fd, (*second).async_fd);

        // The card outlives the first context, and the list.
        assert_eq!((api().close_device)(first), 0);
        assert_eq!(identity(second).0, lid);
        assert_eq!(u64::from_be((api().get_device_guid)(device)), guid);
        assert_eq!((api().close_device)(second), 0);
        assert_eq!((api().get_device_guid)(device), 0, "no list, no context: no identity");
        assert_eq!((api().close_device)(other), 0);
    }
    // What was closed can be opened again.
    let again = open(2);
    assert!(identity(again).0 > 0);
    // SAFETY: open.
    assert_eq!(unsafe { (api().close_device)(again) }, 0);
}
