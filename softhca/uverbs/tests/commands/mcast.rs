//! Multicast groups.

use super::*;
use crate::uapi::queues::AttachMcast;
use crate::uapi::verbs::QueryDeviceResp;

const RC: u32 = 2;
const UD: u32 = 4;
const LID: u16 = 0xc001;

fn group(number: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xff, 0x12, number);
    gid[8..12].copy_from_slice(&std::process::id().to_be_bytes());
    gid
}

fn perform(device: &Device, number: u32, qp_handle: u32, gid: [u8; 16], mlid: u16) -> Result<(), i32> {
    let asked = AttachMcast { gid, qp_handle, mlid, reserved: 0 };
    write(number).input(attr::CORE_IN, &asked).run(device).map(drop)
}

#[test]
fn members_are_of_datagrams_and_stay_until_they_are_detached() {
    let device = Device::open();
    let mut parts = parts(&device);
    let asked = a_qp(&mut parts);
    let qp = create_qp(&device, &parts, UD, &asked).unwrap();
    let attach = |qp, gid, lid| perform(&device, command::ATTACH_MCAST, qp, gid, lid);
    let detach = |gid, lid| perform(&device, command::DETACH_MCAST, qp, gid, lid);
    assert_eq!(detach(group(1), LID), Err(libc::EINVAL), "it is not attached");
    assert_eq!(attach(qp, [0xfe; 16], LID), Err(libc::EINVAL));
    assert_eq!(attach(999, group(1), LID), Err(libc::EINVAL));
    for lid in [0, 0xbfff, 0xffff] {
        assert_eq!(attach(qp, group(1), lid), Err(libc::EINVAL), "{lid:#x}");
    }
    assert_eq!((attach(qp, group(1), LID), attach(qp, group(1), LID)), (Ok(()), Ok(())));
    assert_eq!((attach(qp, group(1), LID + 1), attach(qp, group(2), LID)), (Ok(()), Ok(())));
    for (gid, lid) in [(group(1), LID), (group(2), LID), (group(1), LID + 1)] {
        assert_eq!(destroy(&device, object::QP, method::DESTROY, qp), Err(libc::EBUSY));
        assert_eq!(detach(gid, lid), Ok(()));
        assert_eq!(detach(gid, lid), Err(libc::EINVAL));
    }
    let destroy =
        |qp| new(object::QP, method::DESTROY).handle(attr::HANDLE, qp).output(attr::DESTROY_RESP, 4);
    assert!(destroy(qp).run(&device).is_ok());
    let connected = create_qp(&device, &parts, RC, &asked).unwrap();
    assert_eq!(attach(connected, group(1), LID), Err(libc::EINVAL), "only UD");
    // Closing the device detaches.
    assert_eq!(attach(create_qp(&device, &parts, UD, &asked).unwrap(), group(3), LID), Ok(()));
}

#[test]
fn the_limits_are_told_and_kept() {
    let device = Device::open();
    let query = write(command::QUERY_DEVICE).output(attr::CORE_OUT, size_of::<QueryDeviceResp>());
    let limits: QueryDeviceResp = query.run(&device).unwrap().output(attr::CORE_OUT);
    assert!(limits.max_mcast_grp > 0 && limits.max_mcast_qp_attach > 0);
    assert_eq!(limits.max_total_mcast_qp_attach, limits.max_mcast_grp * limits.max_mcast_qp_attach);
    let mut parts = parts(&device);
    let mut attached = Vec::new();
    let refused = loop {
        parts.rings = Rings::new();
        let asked = a_qp(&mut parts);
        let qp = create_qp(&device, &parts, UD, &asked).unwrap();
        match perform(&device, command::ATTACH_MCAST, qp, group(4), LID) {
            Ok(()) => attached.push(qp),
            Err(errno) => break errno,
        }
    };
    assert_eq!((refused, attached.len() as u32), (libc::ENOMEM, limits.max_mcast_qp_attach));
}
