//! The kernel's checks of the commands, each with its errno. Sources: Linux, `drivers/infiniband/core/ucma.c`, `cma.c`
//! and `cm.c`.

use super::addresses::{ib, ipv6, option};
use super::groups::{join, leave};
use super::*;
use crate::command_tests::checks::{compare, errno_of};
use crate::privilege;

const IN: i32 = libc::EINVAL;
const NONE: i32 = libc::ENOENT;

/// A number that no identifier has.
const UNKNOWN: u32 = 5000;

fn connect_with(cm: &Cm, id: u32, valid: u8) -> i32 {
    errno_of(cm.connect(id, ConnParam { valid, ..param(1, b"") }))
}

/// Takes a capability from the calling thread.
fn give_up(capability: u32) {
    let (mut header, mut data) = ([0x2008_0522u32, 0], [0u32; 6]);
    // SAFETY: the structures of capget(2) and capset(2).
    let results = unsafe {
        let found = libc::syscall(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr());
        data[0] &= !(1 << capability);
        [found, libc::syscall(libc::SYS_capset, header.as_mut_ptr(), data.as_mut_ptr())]
    };
    assert_eq!(results, [0, 0]);
    assert!(!privilege::has(capability));
}

#[test]
fn identifiers_and_their_files() {
    let (cm, other) = (Cm::open(), Cm::open());
    let create = |space| {
        errno_of(cm.ask::<u32, _>(command::CREATE_ID, |response| CreateId {
            uid: 1,
            response,
            space,
            qp_type: 2,
            reserved: [0; 5],
        }))
    };
    let id = cm.create(1);
    let fresh = cm.create(2);
    let foreign = other.create(1);
    let query = |id, option| {
        errno_of(cm.ask::<QueryAddrResp, _>(command::QUERY, |response| Query { response, id, option }))
    };
    let migrate = |fd: i32, id| {
        let asked = |response| MigrateId { response, id, fd: fd as u32 };
        errno_of(cm.ask::<u32, _>(command::MIGRATE_ID, asked))
    };
    let file = std::fs::File::open("/dev/null").unwrap();
    let null = std::os::fd::AsRawFd::as_raw_fd(&file);
    let attributes = |id, state| errno_of(cm.attributes(id, state));
    let notify = |id, event| errno_of(cm.tell(command::NOTIFY, &Notify { id, event }));
    let reject = |reason| {
        let asked =
            Reject { id: UNKNOWN, private_data_len: 0, reason, reserved: [0; 2], private_data: [0; 256] };
        errno_of(cm.tell(command::REJECT, &asked))
    };
    compare(&[
        ("ucma_get_qp_type", "an unknown port space", IN, create(7)),
        ("ucma_create_id", "a port space", 0, create(space::IPOIB)),
        ("_ucma_find_context", "no such identifier", NONE, errno_of(cm.destroy(UNKNOWN))),
        ("_ucma_find_context", "another file's identifier", IN, errno_of(cm.destroy(foreign))),
        ("ucma_query", "an unknown option", libc::ENOSYS, query(id, 3)),
        ("ucma_query", "an unknown option of no identifier", NONE, query(UNKNOWN, 3)),
        ("ucma_migrate_id", "no descriptor", NONE, migrate(-1, id)),
        ("ucma_migrate_id", "a descriptor of something else", IN, migrate(null, id)),
        ("ucma_migrate_id", "an identifier of another file", IN, migrate(cm.0, foreign)),
        ("ucma_migrate_id", "an identifier", 0, migrate(other.0, foreign)),
        ("ucma_get_ctx_dev", "a route without a device", IN, errno_of(cm.resolve_route(fresh))),
        ("ucma_get_ctx_dev", "a connection without a device", IN, connect_with(&cm, fresh, 1)),
        ("ucma_get_ctx_dev", "attributes without a device", IN, attributes(fresh, 1)),
        ("ucma_connect", "no parameter, before the identifier", IN, connect_with(&cm, UNKNOWN, 0)),
        ("ucma_connect", "no identifier", NONE, connect_with(&cm, UNKNOWN, 1)),
        ("ucma_init_qp_attr", "an unknown state, before the identifier", IN, attributes(UNKNOWN, 7)),
        ("ucma_init_qp_attr", "no identifier", NONE, attributes(UNKNOWN, 6)),
        ("ucma_reject", "another reason, before the identifier", IN, reject(8)),
        ("ucma_reject", "no identifier", NONE, reject(35)),
        ("ucma_notify", "no device", IN, notify(fresh, 4)),
        ("ucma_notify", "no identifier", NONE, notify(UNKNOWN, 4)),
    ]);
}

#[test]
fn addresses_and_ports() {
    let cm = Cm::open();
    let bind = |address: &[u8]| errno_of(cm.bind(cm.create(1), address));
    let bind_shared = |address: &[u8]| {
        let id = cm.create(1);
        option(&cm, id, (0, 1), &1i32.to_ne_bytes()).unwrap();
        errno_of(cm.bind(id, address))
    };
    let bind_own_family = |address: &[u8]| {
        let id = cm.create(1);
        option(&cm, id, (0, 2), &1i32.to_ne_bytes()).unwrap();
        errno_of(cm.bind(id, address))
    };
    let resolve_ip = |family: u8| {
        let (mut src, mut dst): (Sockaddr6, Sockaddr6) = ([0; 28], [0; 28]);
        src[0] = family;
        dst[..16].copy_from_slice(&ipv4([127, 0, 0, 1], 9));
        let asked = ResolveIp { src, dst, id: cm.create(1), timeout_ms: 100 };
        errno_of(cm.tell(command::RESOLVE_IP, &asked))
    };
    let unprivileged = || {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                give_up(privilege::NET_BIND_SERVICE);
                (bind(&ipv4([127, 0, 0, 1], 1023)), bind(&ipv4([127, 0, 0, 1], next_port())))
            });
            thread.join().unwrap()
        })
    };
    let (privileged, other) = unprivileged();
    let (port, any) = (next_port(), next_port());
    let mut link_local = [0; 16];
    (link_local[0], link_local[1], link_local[15]) = (0xfe, 0x80, 9);
    let bound = cm.create(1);
    cm.bind(bound, &ipv4(CARD, port)).unwrap();
    let has_ipv6 = std::net::UdpSocket::bind("[::1]:0").is_ok();
    let in_use = libc::EADDRINUSE;
    let taken = libc::EADDRNOTAVAIL;
    compare(&[
        ("ucma_bind", "an address without a family", IN, bind(&[0; 16])),
        ("ucma_bind", "an address of another length", IN, bind(&ipv4([127, 0, 0, 1], 0)[..15])),
        ("ucma_resolve_ip", "a source of another family", IN, resolve_ip(99)),
        ("ucma_resolve_ip", "a source that is an InfiniBand address", IN, resolve_ip(27)),
        ("ucma_resolve_ip", "no source", 0, resolve_ip(0)),
        ("rdma_bind_addr", "a second address", IN, errno_of(cm.bind(bound, &ipv4([127, 0, 0, 1], 0)))),
        ("cma_check_linklocal", "no interface", IN, bind(&ipv6(link_local, 0))),
        ("cma_translate_addr", "an address of no interface", taken, bind(&ipv4([192, 0, 2, 200], 0))),
        (
            "cma_acquire_dev",
            "a GID of no device",
            libc::ENODEV,
            errno_of(cm.bind(cm.create_in(space::IB, 1), &ib([9; 16], 0))),
        ),
        ("cma_use_port", "a privileged port", libc::EACCES, privileged),
        ("cma_use_port", "another port", 0, other),
        ("cma_check_port", "the address of another", in_use, bind(&ipv4(CARD, port))),
        ("cma_check_port", "all addresses", taken, bind(&ipv4([0; 4], port))),
        ("cma_any_addr", "a loopback address is all addresses", taken, bind(&ipv4([127, 0, 0, 1], port))),
        ("cma_check_port", "one side shares", in_use, bind_shared(&ipv4(CARD, port))),
        (
            "cma_check_port",
            "all addresses of all families",
            if has_ipv6 { taken } else { 0 },
            if has_ipv6 { bind(&ipv6([0; 16], port)) } else { 0 },
        ),
        (
            "cma_check_port",
            "another family",
            0,
            if has_ipv6 { bind_own_family(&ipv6([0; 16], port)) } else { 0 },
        ),
        ("cma_check_port", "both share", 0, bind_shared(&ipv4([0; 4], any))),
        ("cma_check_port", "both share", 0, bind_shared(&ipv4([0; 4], any))),
    ]);
}

#[test]
fn options() {
    let cm = Cm::open();
    let id = cm.create(1);
    let (on, off) = (1i32.to_ne_bytes(), 0i32.to_ne_bytes());
    let set = |id, name, value: &[u8]| errno_of(option(&cm, id, name, value));
    let (bound, listener) = (cm.create(2), cm.listener(space::TCP, 3, 1).0);
    cm.bind(bound, &ipv4(CARD, 0)).unwrap();
    let with_type = |space, qp_type| {
        let asked = |response| CreateId { uid: 1, response, space, qp_type, reserved: [0; 5] };
        cm.ask::<u32, _>(command::CREATE_ID, asked).unwrap()
    };
    let no_path = PathRecData::new_zeroed();
    let path = PathRecData { flags: 0b10_1011, ..no_path };
    compare(&[
        ("ucma_set_option_level", "an unknown level", libc::ENOSYS, set(id, (2, 0), &on)),
        ("ucma_set_option_id", "an unknown name", libc::ENOSYS, set(id, (0, 4), &on)),
        ("ucma_set_option_ib", "an unknown name", libc::ENOSYS, set(id, (1, 0), &on)),
        ("ucma_set_option_id", "a type of service of four bytes", IN, set(id, (0, 0), &on)),
        ("ucma_set_option_id", "a flag of one byte", IN, set(id, (0, 1), &[1])),
        ("rdma_set_reuseaddr", "on, when bound", 0, set(bound, (0, 1), &on)),
        ("rdma_set_reuseaddr", "off, when bound", IN, set(bound, (0, 1), &off)),
        ("rdma_set_reuseaddr", "on, of a listener", IN, set(listener, (0, 1), &on)),
        ("rdma_set_afonly", "when bound", 0, set(bound, (0, 2), &on)),
        ("rdma_set_afonly", "of a listener", IN, set(listener, (0, 2), &on)),
        ("rdma_set_ack_timeout", "RC", 0, set(id, (0, 3), &[32])),
        ("rdma_set_ack_timeout", "XRC, sends", 0, set(with_type(space::IB, 9), (0, 3), &[20])),
        ("rdma_set_ack_timeout", "XRC, receives", IN, set(with_type(space::IB, 10), (0, 3), &[20])),
        ("rdma_set_ack_timeout", "UD", IN, set(with_type(space::UDP, 0), (0, 3), &[20])),
        ("ucma_set_ib_path", "a part of a path", IN, set(bound, (1, 1), &path.as_bytes()[1..])),
        ("ucma_set_ib_path", "no path there and back", IN, set(bound, (1, 1), no_path.as_bytes())),
        ("ucma_set_ib_path", "no device", IN, set(id, (1, 1), path.as_bytes())),
        ("rdma_set_ib_path", "no address is resolved", IN, set(bound, (1, 1), path.as_bytes())),
    ]);
}

#[test]
fn connections() {
    let (near, far) = (Cm::open(), Cm::open());
    let bound_listener = far.create(6);
    far.bind(bound_listener, &ipv4(CARD, 0)).unwrap();
    far.listen(bound_listener, 1).unwrap();
    let (listener, port) = far.listener(space::TCP, 7, 0);
    let (datagram_listener, datagram_port) = far.listener(space::UDP, 8, 0);
    let routed = |qp_type| {
        let gid = {
            let id = near.routed(space::TCP, 1, port);
            let asked = |response| Query { response, id, option: query::GID };
            let gids: QueryAddrResp = near.ask(command::QUERY, asked).unwrap();
            gids.dst[8..24].try_into().unwrap()
        };
        let asked = |response| CreateId { uid: 1, response, space: space::IB, qp_type, reserved: [0; 5] };
        let id: u32 = near.ask(command::CREATE_ID, asked).unwrap();
        near.resolve(id, &ib(gid, 0x0106_0000 | u64::from(port))).unwrap();
        near.expect(ADDR_RESOLVED);
        near.resolve_route(id).unwrap();
        near.expect(ROUTE_RESOLVED);
        id
    };
    let id = near.routed(space::TCP, 1, port);
    near.connect(id, param(1, b"")).unwrap();
    let asked = far.expect(CONNECT_REQUEST).id;
    let datagrams = near.routed(space::UDP, 2, datagram_port);
    near.connect(datagrams, param(1, b"")).unwrap();
    let asked_datagrams = far.expect(CONNECT_REQUEST).id;
    let notify = |event| errno_of(far.tell(command::NOTIFY, &Notify { id: asked, event }));
    compare(&[
        ("rdma_connect", "a second time", IN, connect_with(&near, id, 1)),
        ("cm_validate_req_param", "XRC, receives", IN, connect_with(&near, routed(10), 1)),
        ("cm_validate_req_param", "no type of a queue pair", IN, connect_with(&near, routed(0xff), 1)),
        (
            "cm_validate_req_param",
            "too many private data",
            IN,
            errno_of(near.connect(near.routed(space::TCP, 1, port), param(1, &[0; 57]))),
        ),
        ("rdma_listen", "a second time", IN, errno_of(far.listen(listener, 1))),
        ("rdma_accept", "a listener", IN, errno_of(far.accept(listener, 1, param(1, b"")))),
        ("rdma_disconnect", "a listener at all addresses", IN, errno_of(far.disconnect(listener))),
        ("rdma_disconnect", "a listener at a device's address", 0, errno_of(far.disconnect(bound_listener))),
        ("rdma_disconnect", "before the reply", 0, errno_of(near.disconnect(id))),
        ("rdma_disconnect", "datagrams", 0, errno_of(near.disconnect(datagrams))),
        ("ib_cm_notify", "an event of other kinds", IN, notify(3)),
        ("cm_establish", "before the reply", IN, notify(4)),
        ("cm_migrate", "before the connection", IN, notify(6)),
        ("cm_rej", "too many private data", IN, errno_of(far.reject(asked, &[0; 149]))),
        (
            "cma_send_sidr_rep",
            "without a parameter",
            0,
            errno_of(far.accept(asked_datagrams, 9, ConnParam::new_zeroed())),
        ),
    ]);
    far.destroy(datagram_listener).unwrap();
    near.expect(ESTABLISHED);
}

#[test]
fn groups() {
    let (cm, other) = (Cm::open(), Cm::open());
    let group = ipv4([239, 1, 2, 3], 0);
    let [id, fresh] = [1, 2].map(|uid| cm.create_in(space::UDP, uid));
    cm.resolve(id, &group).unwrap();
    let member = join(&cm, id, 0, &group).unwrap();
    let join = |id, flags, to: &[u8]| errno_of(join(&cm, id, flags, to));
    compare(&[
        ("ucma_join_multicast", "an address without a family", IN, join(id, 0, &[0; 16])),
        ("ucma_process_join", "an address of another length", IN, join(id, 0, &group[..15])),
        ("ucma_process_join", "unknown flags", IN, join(id, 2, &group)),
        ("ucma_process_join", "unknown flags of no identifier", IN, join(UNKNOWN, 2, &group)),
        ("ucma_process_join", "no identifier", NONE, join(UNKNOWN, 0, &group)),
        ("ucma_get_ctx_dev", "no device", IN, join(fresh, 0, &group)),
        ("ucma_leave_multicast", "no membership", NONE, errno_of(leave(&cm, UNKNOWN))),
        ("ucma_leave_multicast", "another file's membership", IN, errno_of(leave(&other, member))),
        ("ucma_leave_multicast", "a membership", 0, errno_of(leave(&cm, member))),
    ]);
}
