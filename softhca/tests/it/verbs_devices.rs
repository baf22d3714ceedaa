//! Devices, and the start and end of their cards. The first use decides how many devices a process has.

use crate::verbs_bed::*;
use gdsync_sys::api::Provider;
use gdsync_sys::verbs::*;
use gdsync_test_support::process::alone;
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
    // SAFETY: the list is valid until it is freed; device pointers are kept as C allows, while a context is open.
    unsafe {
        let list = (api().get_device_list)(&mut count);
        assert_eq!(count, 3);
        assert!((*list.add(3)).is_null(), "the list ends with null");
        for i in 0..3 {
            let device = *list.add(i);
            let name = CStr::from_ptr((api().get_device_name)(device)).to_str().unwrap();
            assert_eq!(name, format!("softhca{i}"));
            let dev_name = CStr::from_ptr((&raw const (*device).dev_name).cast());
            assert_eq!(dev_name.to_str().unwrap(), format!("softhca-uverbs{i}"));
            assert_eq!(((*device).node_type, (*device).transport_type), (1, 0));
            assert!((api().mlx5dv_is_supported)(device));
        }

        // Contexts of a device share its identity.
        let device = *list;
        let first = (api().open_device)(device);
        let second = (api().open_device)(device);
        let other = (api().open_device)(*list.add(1));
        (api().free_device_list)(list);
        let (lid, guid, gid) = identity(first);
        assert_eq!((lid, guid, gid), identity(second));
        let elsewhere = identity(other);
        assert!(elsewhere.0 != lid && elsewhere.1 != guid, "another device is another port");
        assert!(lid > 0 && lid < 0xc000, "a unicast LID");
        assert_eq!(gid[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
        assert_eq!(gid[8..], guid.to_be_bytes());
        assert_eq!((*first).device, device);
        assert_ne!((*first).async_fd, (*second).async_fd);

        // The card outlives the list and the first context.
        assert_eq!((api().close_device)(first), 0);
        assert_eq!(identity(second), (lid, guid, gid));
        assert_eq!((api().close_device)(second), 0);
        assert_eq!((api().close_device)(other), 0);
    }
    // A closed device can be opened again.
    let again = open(2);
    assert!(identity(again).0 > 0);
    // SAFETY: open.
    assert_eq!(unsafe { (api().close_device)(again) }, 0);
}
