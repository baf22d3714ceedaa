//! A device on Ethernet. The first use decides which devices a process has.

use crate::verbs_bed::*;
use gdsync_sys::verbs::*;
use gdsync_test_support::process::alone;

#[test]
fn an_ethernet_port_has_gids_and_no_lid() {
    let devices = [(softhca::devices::DEVICES_VARIABLE, "ib,roce")];
    if !alone(module_path!(), "an_ethernet_port_has_gids_and_no_lid", &devices) {
        return;
    }
    let context = open(1);
    let (mut attr, mut gid) = (ibv_port_attr::default(), ibv_gid::default());
    let query_gid = |index, gid: &mut ibv_gid| {
        // SAFETY: the context is open.
        unsafe { (api().query_gid)(context, 1, index, gid) }
    };
    // SAFETY: the context is open.
    assert_eq!(unsafe { (api().query_port)(context, 1, &mut attr) }, 0);
    assert_eq!((attr.link_layer, attr.lid, attr.gid_tbl_len), (IBV_LINK_LAYER_ETHERNET, 0, 4));
    let gids: Vec<[u8; 16]> = (0..4)
        .map(|index| {
            assert_eq!(query_gid(index, &mut gid), 0);
            gid.raw
        })
        .collect();
    assert_eq!((gids[0], gids[2]), (gids[1], gids[3]));
    assert_eq!(gids[0][..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
    assert_eq!(gids[2][..14], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 83]);
    for index in [-1, 4, i32::MAX] {
        clear_errno();
        assert_eq!((query_gid(index, &mut gid), errno()), (-1, libc::EINVAL), "index {index}");
    }

    // SAFETY: the context is open.
    let pd = unsafe { (api().alloc_pd)(context) };
    let mut path = ibv_ah_attr { port_num: 1, dlid: 1, ..ibv_ah_attr::default() };
    // SAFETY: the domain is allocated.
    assert!(unsafe { (api().create_ah)(pd, &mut path) }.is_null(), "a LID is no address here");
    assert_eq!(errno(), libc::EINVAL);
    assert!(softhca::verbs::diagnostics().iter().any(|diagnostic| diagnostic.field == "is_global"));
    path.is_global = 1;
    path.grh.dgid.raw = gids[3];
    path.grh.sgid_index = 3;
    // SAFETY: the domain is allocated.
    let ah = unsafe { (api().create_ah)(pd, &mut path) };
    assert!(!ah.is_null());
    path.grh.sgid_index = 4;
    // SAFETY: the domain is allocated; the handle was created just now; nothing is left in the context.
    unsafe {
        assert!((api().create_ah)(pd, &mut path).is_null(), "the table has four entries");
        assert_eq!((api().destroy_ah)(ah), 0);
        assert_eq!((api().dealloc_pd)(pd), 0);
        assert_eq!((api().close_device)(context), 0);
    }
}
