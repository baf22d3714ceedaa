//! Multicast groups of identifiers.

use super::*;

const MULTICAST_JOIN: u32 = 12;

pub(super) fn join(cm: &Cm, id: u32, join_flags: u16, to: &[u8]) -> Result<u32, i32> {
    let mut addr: Storage = [0; 128];
    addr[..to.len()].copy_from_slice(to);
    let addr_size = to.len() as u16;
    let ask = |response| JoinMcast { response, uid: 0x77, id, addr_size, join_flags, addr };
    cm.ask(command::JOIN_MCAST, ask)
}

pub(super) fn leave(cm: &Cm, id: u32) -> Result<u32, i32> {
    cm.ask(command::LEAVE_MCAST, |response| DestroyId { response, id, reserved: 0 })
}

const GROUP: [u8; 4] = [239, 1, 2, 3];

#[test]
fn an_identifier_that_joins_gets_the_address_of_the_group() {
    let (cm, other) = (Cm::open(), Cm::open());
    let id = cm.create_in(space::UDP, 1);
    cm.resolve(id, &ipv4(GROUP, 0)).unwrap();
    assert_eq!(cm.expect(ADDR_RESOLVED).id, id);
    let [first, second] = [(); 2].map(|()| join(&cm, id, 0, &ipv4(GROUP, 0)).unwrap());
    assert_ne!(first, second);
    let event = cm.expect(MULTICAST_JOIN);
    assert_eq!((event.id, event.uid, event.status), (first, 0x77, 0));
    let param = datagrams_of(&event);
    assert_eq!((param.qp_num, param.qkey, param.ah_attr.is_global), (0xff_ffff, 0x0123_4567, 1));
    // `ff12:4001:ffff::f01:203`, and a LID of groups.
    assert_eq!(param.ah_attr.dgid, [0xff, 0x12, 0x40, 1, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0x0f, 1, 2, 3]);
    assert!((0xc000..0xffff).contains(&param.ah_attr.dlid));
    assert_eq!((leave(&other, first), leave(&cm, 999)), (Err(libc::EINVAL), Err(libc::ENOENT)));
    assert_eq!((leave(&cm, first), leave(&cm, first)), (Ok(1), Err(libc::ENOENT)));
    assert_eq!(leave(&cm, second), Ok(0), "its event is taken back");
    let third = join(&cm, id, 1, &ipv4(GROUP, 0)).unwrap();
    assert_eq!(cm.destroy(id), Ok(2), "two events were read");
    assert_eq!(leave(&cm, third), Err(libc::ENOENT), "it is gone with its identifier");
}

#[test]
fn what_cannot_join_is_refused() {
    let cm = Cm::open();
    let id = cm.create_in(space::UDP, 1);
    let group = ipv4(GROUP, 0);
    assert_eq!(join(&cm, id, 0, &group), Err(libc::EINVAL), "it is bound to no card");
    cm.resolve(id, &group).unwrap();
    cm.expect(ADDR_RESOLVED);
    assert_eq!(join(&cm, id, 2, &group), Err(libc::EINVAL));
    assert_eq!(join(&cm, id, 0, &group[..15]), Err(libc::EINVAL));
    assert_eq!(join(&cm, id, 0, &ipv4([0; 4], 0)), Err(libc::EINVAL));
    assert_eq!(join(&cm, 77, 0, &group), Err(libc::ENOENT));
    let mut addr = [0; 28];
    addr[..16].copy_from_slice(&group);
    let by_ip =
        |id| cm.ask::<u32, _>(command::JOIN_IP_MCAST, |response| JoinIpMcast { response, uid: 1, addr, id });
    assert!(by_ip(id).is_ok());
    cm.resolve_route(id).unwrap();
    assert_eq!(by_ip(id), Err(libc::EINVAL), "in this state the kernel refuses, too");
    let connected = cm.create(2);
    cm.resolve(connected, &group).unwrap();
    assert_eq!(join(&cm, connected, 0, &group), Err(libc::EINVAL), "only datagrams");
    // If the answer cannot be stored, nothing is joined.
    let another = cm.create_in(space::UDP, 3);
    cm.resolve(another, &group).unwrap();
    let mut asked =
        JoinMcast { response: 4096, uid: 1, id: another, addr_size: 16, join_flags: 0, addr: [0; 128] };
    asked.addr[..16].copy_from_slice(&group);
    assert_eq!(write(cm.0, &command(command::JOIN_MCAST, asked.as_bytes(), 4)), Err(libc::EFAULT));
    assert_eq!(cm.destroy(another), Ok(0), "no event");
}
