//! Addresses, ports, routes and options.

use super::*;
use gdsync_test_support::process::alone;

/// `struct sockaddr_ib`.
pub(super) fn ib(gid: [u8; 16], service_id: u64) -> Vec<u8> {
    let mut bytes = vec![27, 0, 0xff, 0xff, 0, 0, 0, 0];
    bytes.extend(gid);
    bytes.extend(service_id.to_be_bytes());
    bytes.extend(0xffff_ffff_ffff_0000u64.to_be_bytes());
    bytes.extend([0; 8]);
    bytes
}

pub(super) fn ipv6(ip: [u8; 16], port: u16) -> Vec<u8> {
    let mut bytes = vec![libc::AF_INET6 as u8, 0];
    bytes.extend(port.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(ip);
    bytes.extend([0; 4]);
    bytes
}

#[test]
fn a_port_has_one_owner_unless_both_share_it() {
    let cm = Cm::open();
    let port = next_port();
    let bind = |address: Vec<u8>, reuses: i32| {
        let id = cm.create(1);
        option(&cm, id, (0, 1), &reuses.to_ne_bytes()).unwrap();
        (id, cm.bind(id, &address))
    };
    let (in_use, taken) = (Err(libc::EADDRINUSE), Err(libc::EADDRNOTAVAIL));
    let (first, bound) = bind(ipv4(CARD, port), 1);
    assert_eq!(bound, Ok(()));
    assert_eq!(cm.bind(first, &ipv4([0; 4], 0)), Err(libc::EINVAL), "it is bound");
    assert_eq!(bind(ipv4(CARD, port), 0).1, in_use);
    assert_eq!(bind(ipv4([0; 4], port), 0).1, taken, "all addresses");
    let gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1];
    let other = ib(gid, u64::from(space::TCP) << 16 | u64::from(port));
    assert_eq!(cm.bind(cm.create_in(space::IB, 1), &other), Ok(()), "another address");
    let (second, shared) = bind(ipv4(CARD, port), 1);
    assert_eq!(shared, Ok(()));
    assert_eq!(cm.listen(first, 1), in_use, "a listener shares with none");
    cm.destroy(second).unwrap();
    assert_eq!(cm.listen(first, 1), Ok(()));
    assert_eq!(bind(ipv4(CARD, port), 1).1, in_use, "from then on");
    let other_space = cm.create_in(space::UDP, 1);
    assert_eq!(cm.bind(other_space, &ipv4(CARD, port)), Ok(()));
    cm.destroy(first).unwrap();
    assert_eq!(bind(ipv4(CARD, port), 0).1, Ok(()));
    assert_eq!(bind(ipv4([192, 0, 2, 200], 0), 0).1, Err(libc::EADDRNOTAVAIL));
}

#[test]
fn a_port_of_another_process_is_in_use() {
    let port = next_port();
    let services = softhca::fabric::Services::new().unwrap();
    let _other = services.claim(space::TCP, port).unwrap().unwrap();
    let cm = Cm::open();
    let bind = |ip| cm.bind(cm.create(1), &ipv4(ip, port));
    assert_eq!((bind([0; 4]), bind(CARD)), (Err(libc::EADDRNOTAVAIL), Err(libc::EADDRINUSE)));
}

#[test]
fn addresses_and_routes_are_told() {
    let cm = Cm::open();
    let id = cm.create(1);
    assert_eq!(cm.addresses(id).node_guid.get(), 0, "it has no device");
    cm.bind(id, &ipv4(CARD, 0)).unwrap();
    let bound = cm.addresses(id);
    assert_eq!((bound.src_size, bound.dst_size, bound.src[4..8].to_vec()), (16, 0, CARD.to_vec()));
    assert_eq!((bound.node_guid.get(), bound.port_num, bound.pkey.get()), (0x0200_00ff_fe80_0000, 1, 0xffff));
    assert_ne!(bound.src[2..4], [0, 0], "a port was chosen");
    let id = cm.routed(space::TCP, 1, next_port());
    let found = cm.addresses(id);
    assert_eq!((found.src_size, found.dst_size, found.src[4..8].to_vec()), (16, 16, vec![127, 0, 0, 1]));
    let gids: QueryAddrResp =
        cm.ask(command::QUERY, |response| Query { response, id, option: query::GID }).unwrap();
    assert_eq!((gids.src[0], gids.src_size), (27, 48));
    assert_ne!(gids.src[8..24], [0; 16]);
    // The kernel wants more room than the record fills.
    let path: [u8; 8 + 72 + 1] =
        cm.ask(command::QUERY, |response| Query { response, id, option: query::PATH }).unwrap();
    assert_eq!(path[0], 1);
    assert_eq!(
        (&path[24..40], &path[40..56]),
        (&gids.dst[8..24], &gids.src[8..24]),
        "one path: there and here"
    );
    let short: [u8; 8 + 72] =
        cm.ask(command::QUERY, |response| Query { response, id, option: query::PATH }).unwrap();
    assert_eq!((short[0], short[8]), (1, 0), "the count, where there is no room for the path");
    let route: QueryRouteResp =
        cm.ask(command::QUERY_ROUTE, |response| Query { response, id, option: 0 }).unwrap();
    assert_eq!((route.num_paths, route.dst[4..8].to_vec()), (1, vec![127, 0, 0, 1]));
    assert_eq!(route.routes[0].sgid[..], gids.src[8..24]);
}

#[test]
fn a_listener_at_a_loopback_address_has_no_device_and_listens_at_all_addresses() {
    let (near, far) = (Cm::open(), Cm::open());
    let listener = far.create(7);
    far.bind(listener, &ipv4([127, 0, 0, 1], 0)).unwrap();
    far.listen(listener, 1).unwrap();
    let bound = far.addresses(listener);
    assert_eq!((bound.src[4..8].to_vec(), bound.node_guid.get()), (vec![127, 0, 0, 1], 0), "`cma_any_addr`");
    let port = u16::from_be_bytes([bound.src[2], bound.src[3]]);
    let id = near.create(8);
    near.resolve(id, &ipv4(CARD, port)).unwrap();
    near.expect(ADDR_RESOLVED);
    near.resolve_route(id).unwrap();
    near.expect(ROUTE_RESOLVED);
    near.connect(id, param(1, b"")).unwrap();
    let request = far.expect(CONNECT_REQUEST);
    let asked = far.addresses(request.id);
    assert_eq!((asked.src[4..8].to_vec(), asked.node_guid.get() != 0), (CARD.to_vec(), true));
}

#[test]
fn a_card_of_several_hosts_has_its_address_only() {
    let test = "a_card_of_several_hosts_has_its_address_only";
    let environment = [("SOFTHCA_LISTEN", "127.83.222.1:32000"), ("SOFTHCA_KEY", "the key of this test")];
    if !alone(module_path!(), test, &environment) {
        return;
    }
    let cm = Cm::open();
    let device = |ip| {
        let id = cm.create(1);
        cm.bind(id, &ipv4(ip, 0)).map(|()| cm.addresses(id).node_guid.get() != 0)
    };
    assert_eq!((device([127, 83, 222, 1]), device([127, 83, 222, 2])), (Ok(true), Ok(false)));
    // Of the host, as its only other addresses are those of an interface.
    let route = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    if route.connect("192.0.2.200:9").is_ok()
        && let std::net::IpAddr::V4(own) = route.local_addr().unwrap().ip()
        && !own.is_loopback()
    {
        assert_eq!(device(own.octets()), Err(libc::ENODEV));
    }
}

#[test]
fn older_programs_bind_and_resolve_ip_addresses() {
    let cm = Cm::open();
    let sockaddr = |address: Vec<u8>| {
        let mut bytes: Sockaddr6 = [0; 28];
        bytes[..address.len()].copy_from_slice(&address);
        bytes
    };
    let id = cm.create(1);
    let bind = |addr| cm.tell(command::BIND_IP, &BindIp { response: 0, addr, id });
    assert_eq!(bind(sockaddr(vec![27, 0])), Err(libc::EINVAL), "no InfiniBand address");
    bind(sockaddr(ipv4([0; 4], 0))).unwrap();
    let id = cm.create(2);
    let dst = sockaddr(ipv4([127, 0, 0, 1], next_port()));
    cm.tell(command::RESOLVE_IP, &ResolveIp { src: [0; 28], dst, id, timeout_ms: 100 }).unwrap();
    cm.expect(ADDR_RESOLVED);
}

#[test]
fn ipv6_and_infiniband_addresses_lead_to_cards_too() {
    let (near, far) = (Cm::open(), Cm::open());
    let mut loopback = [0; 16];
    loopback[15] = 1;
    if std::net::UdpSocket::bind("[::1]:0").is_ok() {
        let listener = far.create(1);
        let port = next_port();
        far.bind(listener, &ipv6([0; 16], port)).unwrap();
        far.listen(listener, 1).unwrap();
        let id = near.create(2);
        near.resolve(id, &ipv6(loopback, port)).unwrap();
        near.expect(ADDR_RESOLVED);
        near.resolve_route(id).unwrap();
        near.expect(ROUTE_RESOLVED);
        near.connect(id, param(1, b"")).unwrap();
        let request = far.expect(CONNECT_REQUEST);
        assert_eq!(far.addresses(request.id).src[8..24], loopback);
        // IPv6 only, on request.
        let only = far.create(1);
        option(&far, only, (0, 2), &1i32.to_ne_bytes()).unwrap();
        let port = next_port();
        far.bind(only, &ipv6([0; 16], port)).unwrap();
        far.listen(only, 1).unwrap();
        let id = near.routed(space::TCP, 3, port);
        near.connect(id, param(1, b"")).unwrap();
        assert_eq!(near.expect(REJECTED).status, 8);
    }
    let listener = far.create_in(space::IB, 4);
    let service = |port: u16| 0x0106_0000 | u64::from(port);
    assert_eq!(far.bind(listener, &ib([0; 16], 0x0999_0000)), Err(libc::EPROTONOSUPPORT));
    let port = next_port();
    far.bind(listener, &ib([0; 16], service(port))).unwrap();
    far.listen(listener, 1).unwrap();
    let bound: QueryAddrResp = far
        .ask(command::QUERY, |response| Query {
            response,
            id: near.routed(space::TCP, 5, port),
            option: query::GID,
        })
        .unwrap_or_else(|_| QueryAddrResp::new_zeroed());
    assert_eq!(bound.src_size, 0, "the identifier is another file's");
    let id = near.routed(space::TCP, 6, port);
    let gids: QueryAddrResp =
        near.ask(command::QUERY, |response| Query { response, id, option: query::GID }).unwrap();
    let id = near.create_in(space::IB, 7);
    let mut to = ib(gids.dst[8..24].try_into().unwrap(), service(port));
    to[2..4].copy_from_slice(&0x8001u16.to_be_bytes());
    near.resolve(id, &to).unwrap();
    assert_eq!(near.expect(ADDR_ERROR).status.cast_signed(), -libc::ENODEV, "no card has the partition key");
    to[2..4].copy_from_slice(&0x7fffu16.to_be_bytes());
    near.resolve(id, &to).unwrap();
    near.expect(ADDR_RESOLVED);
    assert_eq!(near.addresses(id).pkey.get(), 0xffff, "the partition's key in the table");
    near.resolve_route(id).unwrap();
    near.expect(ROUTE_RESOLVED);
    near.connect(id, param(1, &[3; 92])).unwrap();
    let request = far.expect(CONNECT_REQUEST);
    assert_eq!(connection_of(&request).private_data_len, 92, "no IP addresses in it");
}

#[test]
fn addresses_of_no_card_are_errors() {
    let cm = Cm::open();
    let id = cm.create(1);
    cm.resolve(id, &ipv4([198, 51, 100, 7], 1)).unwrap();
    assert_eq!(cm.expect(ADDR_ERROR).status.cast_signed(), -libc::ENETUNREACH);
    cm.resolve(id, &ipv4([127, 0, 0, 1], 1)).unwrap();
    cm.expect(ADDR_RESOLVED);
    let id = cm.create(2);
    cm.bind(id, &ipv4([0; 4], 0)).unwrap();
    assert_eq!(cm.resolve(id, &ipv6([0; 16], 1)), Err(libc::EINVAL), "two families");
    let id = cm.create_in(space::IB, 3);
    assert_eq!(cm.bind(id, &ib([9; 16], 0x0106_0000)), Err(libc::ENODEV));
}

pub(super) fn option(cm: &Cm, id: u32, (level, optname): (u32, u32), value: &[u8]) -> Result<(), i32> {
    let optval = value.as_ptr() as u64;
    cm.tell(command::SET_OPTION, &SetOption { optval, id, level, optname, optlen: value.len() as u32 })
}

#[test]
fn options_are_checked_and_kept() {
    let cm = Cm::open();
    let id = cm.create(1);
    let flag = 1i32.to_ne_bytes();
    let invalid = Err(libc::EINVAL);
    assert_eq!((option(&cm, id, (0, 0), &[8]), option(&cm, id, (0, 0), &flag)), (Ok(()), invalid));
    assert_eq!((option(&cm, id, (0, 1), &flag), option(&cm, id, (0, 1), &[1])), (Ok(()), invalid));
    assert_eq!((option(&cm, id, (0, 2), &flag), option(&cm, id, (0, 2), &[])), (Ok(()), invalid));
    assert_eq!((option(&cm, id, (0, 3), &[20]), option(&cm, id, (0, 3), &[])), (Ok(()), invalid));
    assert_eq!(option(&cm, id, (0, 4), &flag), Err(libc::ENOSYS));
    assert_eq!(option(&cm, id, (1, 7), &flag), Err(libc::ENOSYS));
    let long =
        |optlen| cm.tell(command::SET_OPTION, &SetOption { optval: 0, id, level: 0, optname: 0, optlen });
    assert_eq!((long((4 << 20) + 1), long(4 << 20)), (invalid, Err(libc::EFAULT)));
    cm.bind(id, &ipv4([0; 4], 0)).unwrap();
    let off = 0i32.to_ne_bytes();
    assert_eq!((option(&cm, id, (0, 1), &flag), option(&cm, id, (0, 1), &off)), (Ok(()), invalid));
    assert_eq!(option(&cm, id, (0, 2), &flag), Ok(()));
    cm.resolve(id, &ipv4([127, 0, 0, 1], 9)).unwrap();
    cm.expect(ADDR_RESOLVED);
    assert_eq!(option(&cm, id, (0, 2), &flag), invalid);
    let mut path = PathRecData::new_zeroed();
    assert_eq!(option(&cm, id, (1, 1), path.as_bytes()), invalid, "a path that does not lead back");
    path.flags = 0b10_1011;
    assert_eq!(option(&cm, id, (1, 1), &path.as_bytes()[1..]), invalid);
    assert_eq!(option(&cm, id, (1, 1), path.as_bytes()), Ok(()));
    cm.expect(ROUTE_RESOLVED);
    // The time-out is that of the queue pair's packets.
    let (near, far) = (Cm::open(), Cm::open());
    let (_, port) = far.listener(space::TCP, 7, 0);
    let id = near.routed(space::TCP, 8, port);
    option(&near, id, (0, 3), &[21]).unwrap();
    near.connect(id, param(1, b"")).unwrap();
    let asked = far.expect(CONNECT_REQUEST).id;
    far.accept(asked, 9, param(2, b"")).unwrap();
    near.expect(CONNECT_RESPONSE);
    assert_eq!(
        (near.attributes(id, 3).unwrap().timeout, far.attributes(asked, 3).unwrap().timeout),
        (21, 17)
    );
    let datagrams = near.create_in(space::UDP, 1);
    assert_eq!(option(&near, datagrams, (0, 3), &[20]), invalid);
}
