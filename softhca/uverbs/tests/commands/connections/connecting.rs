//! Connections and their ends.

use super::*;
use gdsync_sys::verbs as ibv;
use gdsync_test_support::process::{again, alone, role};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// `IB_QPS_INIT`, `IB_QPS_RTR`, `IB_QPS_RTS`.
const STATES: [u32; 3] = [1, 2, 3];

/// A connection: both files, the listener, the active end, and the passive one.
struct Connected {
    near: Cm,
    far: Cm,
    listener: u32,
    asking: u32,
    asked: u32,
}

fn connected() -> Connected {
    let (near, far) = (Cm::open(), Cm::open());
    let (listener, port) = far.listener(space::TCP, 70, 0);
    let asking = near.routed(space::TCP, 71, port);
    near.connect(asking, param(0x111, b"question")).unwrap();
    let request = far.expect(CONNECT_REQUEST);
    far.accept(request.id, 72, param(0x222, b"answer")).unwrap();
    near.expect(CONNECT_RESPONSE);
    near.accept(asking, 0, ConnParam::new_zeroed()).unwrap();
    assert_eq!(far.expect(ESTABLISHED).uid, 72);
    Connected { near, far, listener, asking, asked: request.id }
}

#[test]
fn a_connection_is_made_used_and_ended() {
    let (near, far) = (Cm::open(), Cm::open());
    let (listener, port) = far.listener(space::TCP, 70, 5);
    let asking = near.routed(space::TCP, 71, port);
    let mut with_ece =
        Connect { param: param(0x111, b"question"), id: asking, reserved: 0 }.as_bytes().to_vec();
    with_ece.extend(Ece { vendor_id: 0x15b3, attr_mod: 9 }.as_bytes());
    assert_eq!(near.attributes(asking, 2).unwrap().qp_attr_mask & ibv::IBV_QP_AV, 0, "no peer is known");
    near.tell_bytes(command::CONNECT, &with_ece).unwrap();
    let request = far.expect(CONNECT_REQUEST);
    assert_eq!((request.uid, request.status), (70, 0));
    assert_eq!((request.ece.vendor_id, request.ece.attr_mod), (0x15b3, 9));
    assert_ne!(request.id, listener);
    let asked = connection_of(&request);
    assert_eq!((asked.qp_num, asked.private_data_len), (0x111, 56), "as much as a request has room for");
    assert_eq!(asked.private_data[..9], *b"question\0");
    assert_eq!((asked.responder_resources, asked.initiator_depth), (4, 3), "seen from here");
    let [init, rtr, rts] = STATES.map(|state| far.attributes(request.id, state).unwrap());
    assert_eq!((init.qp_state, init.port_num, init.qp_access_flags), (1, 1, 0b1110));
    assert_eq!((rtr.dest_qp_num, rtr.max_dest_rd_atomic, rtr.path_mtu), (0x111, 4, 5));
    assert_eq!((rts.retry_cnt, rts.rnr_retry, rts.max_rd_atomic), (6, 7, 3));
    far.accept(request.id, 72, param(0x222, b"answer")).unwrap();
    let response = near.expect(CONNECT_RESPONSE);
    assert_eq!((response.uid, response.id), (71, asking));
    let answer = connection_of(&response);
    assert_eq!((answer.qp_num, answer.private_data_len), (0x222, 196));
    assert_eq!(answer.private_data[..7], *b"answer\0");
    let [_, own_rtr, own_rts] = STATES.map(|state| near.attributes(asking, state).unwrap());
    assert_eq!((own_rtr.dest_qp_num, own_rtr.rq_psn), (0x222, rts.sq_psn));
    assert_eq!(own_rts.sq_psn, rtr.rq_psn);
    assert_eq!((own_rtr.max_dest_rd_atomic, own_rts.max_rd_atomic), (4, 3));
    near.accept(asking, 0, ConnParam::new_zeroed()).unwrap();
    assert_eq!(far.expect(ESTABLISHED).uid, 72);
    near.disconnect(asking).unwrap();
    assert_eq!(far.expect(DISCONNECTED).id, request.id);
    far.disconnect(request.id).unwrap();
    assert_eq!(near.expect(DISCONNECTED).id, asking);
    assert_eq!((near.expect(TIMEWAIT_EXIT).uid, far.expect(TIMEWAIT_EXIT).uid), (71, 72));
    assert_eq!((near.destroy(asking), far.destroy(request.id), far.destroy(listener)), (Ok(5), Ok(3), Ok(1)));
    assert_eq!(far.destroy(listener), Err(libc::ENOENT));
}

#[test]
fn one_end_that_is_destroyed_or_whose_file_closes_disconnects_the_other() {
    let Connected { near, far, asking, asked, listener } = connected();
    far.destroy(asked).unwrap();
    assert_eq!(near.expect(DISCONNECTED).id, asking);
    near.destroy(asking).unwrap();
    far.destroy(listener).unwrap();
    let Connected { near, far, asking, .. } = connected();
    drop(far);
    assert_eq!(near.expect(DISCONNECTED).id, asking);
}

#[test]
fn no_process_listens() {
    let near = Cm::open();
    let id = near.routed(space::TCP, 5, next_port());
    near.connect(id, param(1, b"")).unwrap();
    let event = near.expect(REJECTED);
    assert_eq!((event.status, event.uid), (8, 5), "IB_CM_REJ_INVALID_SERVICE_ID");
    assert_eq!(near.connect(id, param(1, b"")), Err(libc::EINVAL), "once is enough");
    assert_eq!((near.disconnect(id), near.event().err()), (Ok(()), Some(libc::EAGAIN)));
    let id = near.routed(space::UDP, 6, next_port());
    near.connect(id, param(1, b"")).unwrap();
    let event = near.expect(UNREACHABLE);
    assert_eq!((event.status, event.uid), (1, 6), "IB_SIDR_UNSUPPORTED");
}

#[test]
fn a_request_for_a_host_where_no_process_listens_reaches_no_listener_of_the_own_port_number() {
    let test = "a_request_for_a_host_where_no_process_listens_reaches_no_listener_of_the_own_port_number";
    let environment = [("SOFTHCA_LISTEN", "127.83.221.1:32000"), ("SOFTHCA_KEY", "the key of this test")];
    if !alone(module_path!(), test, &environment) {
        return;
    }
    let (near, far) = (Cm::open(), Cm::open());
    let (_, port) = far.listener(space::TCP, 70, 0);
    for (host, is_own) in [([127, 83, 221, 2], false), ([127, 83, 221, 1], true), ([127, 0, 0, 1], true)] {
        let id = near.routed_to(space::TCP, 71, &ipv4(host, port));
        near.connect(id, param(1, b"")).unwrap();
        if is_own {
            assert_eq!(far.expect(CONNECT_REQUEST).uid, 70);
        } else {
            assert_eq!((near.expect(REJECTED).status, far.event().err()), (8, Some(libc::EAGAIN)));
        }
    }
}

/// Refuses a request in one of these ways, and ends the process at once.
fn refuse_and_end(way: &str) -> ! {
    let far = Cm::open();
    let (listener, port) = far.listener(space::TCP, 70, 0);
    println!("port {port}");
    far.wait();
    match way {
        "destroys its listener" => assert_eq!(far.destroy(listener), Ok(0)),
        "closes its file" => drop(far),
        _ => {
            let asked = far.expect(CONNECT_REQUEST).id;
            match way {
                "rejects" => far.reject(asked, b"not now").unwrap(),
                _ => assert_eq!(far.destroy(asked), Ok(0)),
            }
        }
    }
    // SAFETY: the call ends the process immediately.
    unsafe { libc::_exit(0) }
}

#[test]
fn a_rejection_reaches_another_host_from_a_process_that_ends_at_once() {
    let test = "a_rejection_reaches_another_host_from_a_process_that_ends_at_once";
    let ways = ["rejects", "destroys its request", "destroys its listener", "closes its file"];
    if let Some(way) = role().filter(|role| ways.contains(&role.as_str())) {
        refuse_and_end(&way);
    }
    let environment = [("SOFTHCA_LISTEN", "127.83.223.1:32000"), ("SOFTHCA_KEY", "the key of this test")];
    if !alone(module_path!(), test, &environment) {
        return;
    }
    let near = Cm::open();
    for (host, way) in (2..).zip(ways) {
        let mut server = again(module_path!(), test, way);
        // Its messages leave late, as they do while a busy peer has not proven the key.
        server.env("SOFTHCA_FAULTS", "delay=100ms kind=management");
        server.env("SOFTHCA_LISTEN", format!("127.83.223.{host}:32000"));
        let mut server = server.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
        let port = lines.filter_map(|line| line.split_once("port ")?.1.parse().ok()).next().unwrap();
        let id = near.routed_to(space::TCP, 71, &ipv4([127, 83, 223, host], port));
        near.connect(id, param(1, b"")).unwrap();
        let event = near.expect(REJECTED);
        assert_eq!((event.id, event.status), (id, 28), "{way}");
        assert!(server.wait().unwrap().success(), "{way}");
    }
}

#[test]
fn a_request_is_rejected_by_word_or_by_destroying_it() {
    let (near, far) = (Cm::open(), Cm::open());
    let (listener, port) = far.listener(space::TCP, 7, 0);
    let ask = || {
        let id = near.routed(space::TCP, 8, port);
        near.connect(id, param(1, b"")).unwrap();
        (id, far.expect(CONNECT_REQUEST).id)
    };
    let (_, asked) = ask();
    far.reject(asked, b"not now").unwrap();
    let event = near.expect(REJECTED);
    assert_eq!((event.status, connection_of(&event).private_data_len), (28, 148));
    assert_eq!(connection_of(&event).private_data[..8], *b"not now\0");
    assert_eq!(far.reject(asked, b""), Err(libc::EINVAL));
    assert_eq!(far.accept(asked, 1, param(1, b"")), Err(libc::EINVAL));
    let (_, asked) = ask();
    far.destroy(asked).unwrap();
    assert_eq!(near.expect(REJECTED).status, 28);
    // The active end gives up: accepting fails.
    let (asking, asked) = ask();
    near.destroy(asking).unwrap();
    let refused = (0..2000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        far.attributes(asked, 2).is_err()
    });
    assert!(refused && far.accept(asked, 1, param(1, b"")) == Err(libc::EINVAL));
    assert_eq!(far.event().err(), Some(libc::EAGAIN), "it was never accepted, so it has no events");
    // Closing a listener closes its pending requests.
    let id = near.routed(space::TCP, 9, port);
    near.connect(id, param(1, b"")).unwrap();
    far.wait();
    far.destroy(listener).unwrap();
    assert!(!far.is_readable(Duration::ZERO));
    assert_eq!((near.expect(REJECTED).uid, far.event().err()), (9, Some(libc::EAGAIN)));
}

#[test]
fn a_full_backlog_makes_requests_wait() {
    let (near, far) = (Cm::open(), Cm::open());
    let (_, port) = far.listener(space::TCP, 7, 1);
    for uid in [1, 2] {
        let id = near.routed(space::TCP, uid, port);
        near.connect(id, param(uid as u32, b"")).unwrap();
    }
    let first = far.expect(CONNECT_REQUEST);
    assert_eq!(connection_of(&first).qp_num, 1);
    // The other request has found the backlog full, and is repeated.
    assert_eq!(connection_of(&far.expect(CONNECT_REQUEST)).qp_num, 2);
}

#[test]
fn datagrams_find_their_queue_pair() {
    let (near, far) = (Cm::open(), Cm::open());
    let (listener, port) = far.listener(space::UDP, 7, 0);
    let asking = near.routed(space::UDP, 8, port);
    let init = near.attributes(asking, 1).unwrap();
    assert_eq!((init.qkey, init.qp_attr_mask & ibv::IBV_QP_QKEY), (0x0123_4567, ibv::IBV_QP_QKEY));
    near.connect(asking, param(0x333, &[5; 180])).unwrap();
    let request = far.expect(CONNECT_REQUEST);
    let asked = datagrams_of(&request);
    assert_eq!((request.uid, asked.private_data_len, asked.private_data[179]), (7, 180, 5));
    far.accept(request.id, 9, param(0x444, b"here")).unwrap();
    let event = near.expect(ESTABLISHED);
    let found = datagrams_of(&event);
    assert_eq!((event.uid, found.qp_num, found.qkey, found.private_data_len), (8, 0x444, 0x0123_4567, 136));
    assert_eq!((found.private_data[..5].to_vec(), found.ah_attr.port_num), (b"here\0".to_vec(), 1));
    assert_ne!((found.ah_attr.dlid, found.ah_attr.dgid), (0, [0; 16]));
    assert_eq!(far.event().err(), Some(libc::EAGAIN), "the other end is not told");
    let refused = near.routed(space::UDP, 10, port);
    near.connect(refused, param(1, b"")).unwrap();
    far.reject(far.expect(CONNECT_REQUEST).id, b"no").unwrap();
    assert_eq!(near.expect(UNREACHABLE).status, 2, "IB_SIDR_REJECT");
    far.destroy(listener).unwrap();
}

#[test]
fn calls_in_the_wrong_state_and_private_data_without_room_are_invalid() {
    let (near, far) = (Cm::open(), Cm::open());
    let (listener, port) = far.listener(space::TCP, 7, 0);
    let id = near.create(1);
    let invalid = Err(libc::EINVAL);
    assert_eq!(near.resolve_route(id), invalid);
    assert_eq!(near.connect(id, param(1, b"")), invalid);
    assert_eq!(near.accept(id, 1, param(1, b"")), invalid);
    assert_eq!((near.reject(id, b""), near.disconnect(id)), (invalid, invalid));
    assert_eq!(near.attributes(id, 1).err(), Some(libc::EINVAL), "it has no card");
    let id = near.routed(space::TCP, 1, port);
    assert_eq!(near.connect(id, ConnParam { valid: 0, ..param(1, b"") }), invalid);
    assert_eq!(near.connect(id, param(1, &[0; 57])), invalid);
    near.connect(id, param(1, &[0; 56])).unwrap();
    let asked = far.expect(CONNECT_REQUEST).id;
    assert_eq!(far.reject(asked, &[0; 149]), invalid);
    let other =
        Reject { id: asked, private_data_len: 0, reason: 8, reserved: [0; 2], private_data: [0; 256] };
    assert_eq!(far.tell(command::REJECT, &other), invalid, "a reason that only the card gives");
    assert_eq!(
        (far.listen(listener, 1), far.resolve(listener, &ipv4([127, 0, 0, 1], port))),
        (invalid, invalid)
    );
    far.accept(asked, 2, param(1, &[0; 196])).unwrap();
    near.expect(CONNECT_RESPONSE);
    assert!((1..=3).all(|state| near.attributes(id, state).is_ok()));
    assert_eq!(near.attributes(id, 4).err(), Some(libc::EINVAL), "SQD");
}

#[test]
fn an_accept_that_fails_rejects_the_peer() {
    let (near, far) = (Cm::open(), Cm::open());
    let (_, port) = far.listener(space::TCP, 7, 0);
    let nothing = ConnParam::new_zeroed();
    let asked = || {
        let id = near.routed(space::TCP, 1, port);
        near.connect(id, param(1, b"")).unwrap();
        (id, far.expect(CONNECT_REQUEST).id)
    };
    for wrong in [param(1, &[0; 197]), nothing] {
        let (id, other) = asked();
        assert_eq!(far.accept(other, 2, wrong), Err(libc::EINVAL));
        assert_eq!((near.expect(REJECTED).id, far.accept(other, 2, param(1, b""))), (id, Err(libc::EINVAL)));
    }
    // The asking end, before there is a reply.
    let (id, _) = asked();
    assert_eq!((near.accept(id, 0, nothing), near.reject(id, b"")), (Err(libc::EINVAL), Err(libc::EINVAL)));
}

#[test]
fn a_message_before_the_reply_is_ready_establishes() {
    let (near, far) = (Cm::open(), Cm::open());
    let (_, port) = far.listener(space::TCP, 7, 0);
    let asking = near.routed(space::TCP, 8, port);
    near.connect(asking, param(1, b"")).unwrap();
    let asked = far.expect(CONNECT_REQUEST).id;
    let notify = |event| far.tell(command::NOTIFY, &Notify { id: asked, event });
    assert_eq!(notify(4), Err(libc::EINVAL));
    far.accept(asked, 9, param(2, b"")).unwrap();
    assert_eq!((notify(6), notify(4)), (Err(libc::EINVAL), Ok(())), "a path cannot have changed yet");
    assert_eq!(far.expect(ESTABLISHED).uid, 9);
    assert_eq!((notify(4), notify(6), notify(3)), (Err(libc::EISCONN), Ok(()), Err(libc::EINVAL)));
    near.expect(CONNECT_RESPONSE);
    near.accept(asking, 0, ConnParam::new_zeroed()).unwrap();
    near.disconnect(asking).unwrap();
    far.expect(DISCONNECTED);
}
