//! Malformed commands: each gets its errno, and changes nothing.

use super::*;
use proptest::prelude::*;

#[test]
fn headers_that_make_no_sense() {
    let cm = Cm::open();
    let id = cm.create(1);
    let good = command(command::RESOLVE_ROUTE, ResolveRoute { id, timeout_ms: 1 }.as_bytes(), 0);
    assert_eq!(write(cm.0, &good[..7]), Err(libc::EINVAL), "shorter than a header");
    assert_eq!(write(cm.0, &[]), Err(libc::EINVAL));
    assert_eq!(write(cm.0, &good[..good.len() - 1]), Err(libc::EINVAL), "shorter than it says");
    for number in [23, 99, u32::MAX] {
        assert_eq!(cm.tell_bytes(number, &[0; 64]), Err(libc::EINVAL));
    }
    assert_eq!(cm.tell_bytes(command::GET_OPTION, &[0; 64]), Err(libc::ENOSYS), "the kernel has none either");
    // SAFETY: the hook must refuse an address that is not mapped, which this test checks.
    let written = unsafe { hooks::write(cm.0, std::ptr::dangling(), 16) };
    assert_eq!((written, last_errno()), (-1, libc::EFAULT));
    // Surplus bytes of a command are ignored.
    let mut long = command(command::DISCONNECT, Disconnect { id: 77 }.as_bytes(), 0);
    long.extend([0; 3000]);
    assert_eq!(write(cm.0, &long), Err(libc::ENOENT));
}

#[test]
fn every_command_needs_its_structure_and_room_for_its_answer() {
    let cm = Cm::open();
    let sizes = [
        (command::CREATE_ID, 24, 4),
        (command::DESTROY_ID, 16, 4),
        (command::BIND_IP, 40, 0),
        (command::RESOLVE_IP, 64, 0),
        (command::RESOLVE_ROUTE, 8, 0),
        (command::QUERY_ROUTE, 16, 200),
        (command::CONNECT, 280, 0),
        (command::LISTEN, 8, 0),
        (command::ACCEPT, 288, 0),
        (command::REJECT, 264, 0),
        (command::DISCONNECT, 4, 0),
        (command::INIT_QP_ATTR, 16, 144),
        (command::GET_EVENT, 8, 324),
        (command::SET_OPTION, 24, 0),
        (command::NOTIFY, 8, 0),
        (command::JOIN_IP_MCAST, 48, 0),
        (command::LEAVE_MCAST, 16, 4),
        (command::MIGRATE_ID, 16, 0),
        (command::QUERY, 16, 0),
        (command::BIND, 136, 0),
        (command::RESOLVE_ADDR, 272, 0),
        (command::JOIN_MCAST, 152, 0),
    ];
    for (number, size, room) in sizes {
        let short = command(number, &vec![0; size - 1], room);
        assert_eq!(write(cm.0, &short), Err(libc::EINVAL), "command {number}");
        if room > 0 {
            let narrow = command(number, &vec![0; size], room - 1);
            assert_eq!(write(cm.0, &narrow), Err(libc::ENOSPC), "command {number}");
        }
    }
    let id = cm.create(1);
    for option in [query::ADDR, query::GID, query::PATH] {
        let narrow = command(command::QUERY, Query { response: 0, id, option }.as_bytes(), 7);
        assert_eq!(write(cm.0, &narrow), Err(libc::ENOSPC));
    }
    let unknown = command(command::QUERY, Query { response: 0, id, option: 3 }.as_bytes(), 280);
    assert_eq!(write(cm.0, &unknown), Err(libc::ENOSYS));
}

#[test]
fn identifiers_that_are_not_there() {
    let cm = Cm::open();
    let none = Err(libc::ENOENT);
    let id = 500;
    assert_eq!(cm.destroy(id), Err(libc::ENOENT));
    assert_eq!((cm.bind(id, &ipv4([0; 4], 0)), cm.listen(id, 1)), (none, none));
    assert_eq!((cm.resolve(id, &ipv4([127, 0, 0, 1], 1)), cm.resolve_route(id)), (none, none));
    assert_eq!((cm.connect(id, param(1, b"")), cm.accept(id, 1, param(1, b""))), (none, none));
    assert_eq!((cm.reject(id, b""), cm.disconnect(id)), (none, none));
    assert_eq!(cm.attributes(id, 1).err(), Some(libc::ENOENT));
    assert_eq!(cm.tell(command::NOTIFY, &Notify { id, event: 4 }), none);
    assert_eq!(addresses::option(&cm, id, (0, 0), &[1]), none);
}

#[test]
fn answers_to_memory_that_is_not_there_lose_nothing() {
    let cm = Cm::open();
    let at = |response| CreateId { uid: 1, response, space: space::TCP, qp_type: 2, reserved: [0; 5] };
    let bytes = command(command::CREATE_ID, at(4096).as_bytes(), 4);
    assert_eq!(write(cm.0, &bytes), Err(libc::EFAULT));
    assert_eq!(
        cm.ask::<u32, _>(command::CREATE_ID, |response| CreateId { space: 7, ..at(response) }),
        Err(libc::EINVAL)
    );
    let id = cm.create(1);
    cm.resolve(id, &ipv4([127, 0, 0, 1], 9)).unwrap();
    let bytes = command(command::GET_EVENT, GetEvent { response: 4096 }.as_bytes(), 336);
    assert_eq!(write(cm.0, &bytes), Err(libc::EFAULT));
    assert_eq!(cm.expect(ADDR_RESOLVED).id, id, "the event has stayed");
    let unmapped = SetOption { optval: 4096, id, level: 0, optname: 0, optlen: 1 };
    assert_eq!(cm.tell(command::SET_OPTION, &unmapped), Err(libc::EFAULT));
}

#[test]
fn addresses_that_are_none() {
    let cm = Cm::open();
    let id = cm.create(1);
    let bind = |addr_size, reserved, addr| cm.tell(command::BIND, &Bind { id, addr_size, reserved, addr });
    let mut addr: Storage = [0; 128];
    assert_eq!(bind(16, 0, addr), Err(libc::EINVAL), "no family");
    addr[0] = libc::AF_INET as u8;
    assert_eq!(
        (bind(0, 0, addr), bind(15, 0, addr), bind(28, 0, addr)),
        (Err(libc::EINVAL), Err(libc::EINVAL), Err(libc::EINVAL))
    );
    assert_eq!(bind(16, 1, addr), Err(libc::EINVAL), "a field of the future");
    assert_eq!(bind(16, 0, addr), Ok(()));
    let resolve = ResolveAddr {
        id,
        timeout_ms: 0,
        src_size: 0,
        dst_size: 16,
        reserved: 0,
        src: [0; 128],
        dst: [0; 128],
    };
    assert_eq!(cm.tell(command::RESOLVE_ADDR, &resolve), Err(libc::EINVAL));
    let source = ResolveAddr { src_size: 16, dst: addr, ..resolve };
    assert_eq!(cm.tell(command::RESOLVE_ADDR, &source), Err(libc::EINVAL));
    assert_eq!(
        cm.tell(command::RESOLVE_ADDR, &ResolveAddr { reserved: 1, dst: addr, ..resolve }),
        Err(libc::EINVAL)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_do_more_than_fail(commands in prop::collection::vec((0u32..24, prop::collection::vec(any::<u8>(), 0..320), 0u16..400), 1..20)) {
        crate::fuzzing::manager(&commands.iter().flat_map(|(number, body, room)| {
            let header = Header { cmd: *number, bytes_in: body.len() as u16, bytes_out: *room };
            [(8 + body.len() as u16).to_le_bytes().as_slice(), header.as_bytes(), body].concat()
        }).collect::<Vec<u8>>());
    }
}
