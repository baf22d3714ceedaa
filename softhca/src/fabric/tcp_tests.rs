use super::super::frame;
use super::super::node::node_of_address;
use super::super::packet::MAX_PAYLOAD;
use super::*;
use crate::testing::until;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A card's fabric at a loopback address of its own. Every test uses addresses of its own.
fn at(last: [u8; 2], port: u16) -> (Fabric, Node) {
    let address = Ipv4Addr::new(127, 83, last[0], last[1]);
    let fabric = Fabric::at(&[SocketAddrV4::new(address, port)]).unwrap();
    (fabric, node_of_address(address))
}

fn send(fabric: &mut Fabric, node: Node, header: &[u8], payload: &[u8]) -> SendOutcome {
    // SAFETY: a slice that outlives the call.
    unsafe { fabric.try_send(node, header, &[(payload.as_ptr(), payload.len())]) }
}

fn send_all(fabric: &mut Fabric, node: Node, header: &[u8], payload: &[u8]) {
    until("room", || (send(fabric, node, header, payload) == SendOutcome::Sent).then_some(()));
}

/// Packets that have arrived: source, header, payload.
fn take(fabric: &mut Fabric) -> Vec<(Node, Vec<u8>, Vec<u8>)> {
    let mut taken = Vec::new();
    fabric.poll(100, |node, header, payload| {
        let mut bytes = Vec::new();
        for (at, len) in payload {
            // SAFETY: readable during the call.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(at, len) });
        }
        taken.push((node, header.to_vec(), bytes));
    });
    taken
}

#[test]
fn a_card_takes_the_first_address_that_is_free() {
    let list = [[1, 1], [1, 2]].map(|[c, d]| SocketAddrV4::new(Ipv4Addr::new(127, 83, c, d), 48001));
    let first = Fabric::at(&list).unwrap();
    let second = Fabric::at(&list).unwrap();
    assert_eq!([first.ipv4(), second.ipv4()], list.map(|address| Some(*address.ip())));
    let error = Fabric::at(&list).err().unwrap().to_string();
    assert!(
        error.contains("127.83.1.1:48001, 127.83.1.2:48001") && error.contains("SOFTHCA_LISTEN"),
        "{error}"
    );
    drop(first);
    assert_eq!(Fabric::at(&list).unwrap().ipv4(), Some(*list[0].ip()));
    let foreign = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 48001);
    assert!(
        matches!(Fabric::at(&[foreign]), Err(FabricError::NoAddress { .. })),
        "an address of another host"
    );
}

#[test]
fn packets_of_all_sizes_go_both_ways_in_order() {
    let ((mut a, node_a), (mut b, node_b)) = (at([2, 1], 48002), at([2, 2], 48002));
    let sizes = [0, 1, 63, 1000, MAX_PAYLOAD - 1, MAX_PAYLOAD];
    let sender = std::thread::spawn(move || {
        for i in 0..600u32 {
            let payload = vec![i as u8; sizes[i as usize % sizes.len()]];
            send_all(&mut a, node_b, &i.to_ne_bytes(), &payload);
        }
        // Polling the fabric, as an engine does, sends the rest of the last packet.
        until("the last packet", || {
            take(&mut a);
            (!a.is_full(node_b, 0, 0)).then_some(())
        });
        a
    });
    let mut seen = 0u32;
    until("arrival", || {
        for (node, header, payload) in take(&mut b) {
            assert_eq!((node, header), (node_a, seen.to_ne_bytes().to_vec()));
            assert_eq!(payload.len(), sizes[seen as usize % sizes.len()]);
            assert!(payload.iter().all(|byte| *byte == seen as u8));
            seen += 1;
        }
        (seen == 600).then_some(())
    });
    let mut a = sender.join().unwrap();
    send_all(&mut b, node_a, b"back", b"");
    until("the way back", || (take(&mut a) == [(node_b, b"back".to_vec(), Vec::new())]).then_some(()));
}

#[test]
fn a_full_link_wakes_the_sender_when_there_is_room() {
    let ((mut a, _), (mut b, node_b)) = (at([3, 1], 48003), at([3, 2], 48003));
    let payload = vec![1; MAX_PAYLOAD];
    send_all(&mut a, node_b, b"", &payload);
    take(&mut b);
    let mut sent = 1usize;
    until("a full link", || {
        match send(&mut a, node_b, b"", &payload) {
            SendOutcome::Full => return Some(()),
            outcome => assert_eq!(outcome, SendOutcome::Sent),
        }
        sent += 1;
        assert!(sent < 100_000);
        None
    });
    assert!(a.is_full(node_b, 0, 1));
    let reader = std::thread::spawn(move || {
        let mut left = sent - take(&mut b).len();
        until("arrival", || {
            left -= take(&mut b).len();
            (left <= 1).then_some(())
        });
        b
    });
    let start = Instant::now();
    until("room", || {
        if a.prepare_sleep() {
            a.sleeper().sleep(Duration::from_secs(20));
        }
        a.finish_sleep();
        take(&mut a);
        (!a.is_full(node_b, 0, 1)).then_some(())
    });
    assert!(start.elapsed() < Duration::from_secs(20), "a wake-up was lost");
    drop(reader.join().unwrap());
}

#[test]
fn impossible_nodes_and_ended_peers_are_unreachable() {
    let (mut a, node_a) = at([4, 1], 48004);
    for impossible in [0, 5, 0xffff, node_a] {
        assert_eq!(send(&mut a, impossible, b"", b""), SendOutcome::Unreachable);
    }
    let (mut b, node_b) = at([4, 2], 48004);
    send_all(&mut a, node_b, b"hello", b"");
    until("arrival", || (take(&mut b).len() == 1).then_some(()));
    send_all(&mut b, node_a, b"the last word", b"");
    assert!(a.is_alive(node_b));
    drop(b);
    until("the last word", || (take(&mut a).len() == 1).then_some(()));
    until("its end", || {
        take(&mut a);
        (!a.is_alive(node_b)).then_some(())
    });
    assert_eq!(send(&mut a, node_b, b"anybody?", b""), SendOutcome::Unreachable);
    // No process listens there: the kernel refuses at once, which the fabric learns a moment later.
    until("the refusal", || {
        let outcome = send(&mut a, node_b + 1, b"hello?", b"");
        (outcome == SendOutcome::Unreachable).then_some(())
    });
    // A new card at that address is found.
    let (mut b, _) = at([4, 2], 48004);
    until("the new one", || {
        send(&mut a, node_b, b"hello again", b"");
        (!take(&mut b).is_empty()).then_some(())
    });
}

/// Sends bytes to a fabric, and waits until it closes the connection.
fn is_refused(fabric: &mut Fabric, port: u16, said: &[u8]) {
    let stranger = TcpStream::connect((fabric.ipv4().unwrap(), port)).unwrap();
    (&stranger).write_all(said).unwrap();
    stranger.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    until("the refusal", || {
        assert!(take(fabric).is_empty());
        let mut byte = [0];
        match (&stranger).read(&mut byte) {
            Ok(0) => Some(()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Some(()),
            _ => None,
        }
    });
}

#[test]
fn strangers_liars_and_broken_peers_are_refused() {
    let (mut fabric, node) = at([5, 1], 48005);
    is_refused(&mut fabric, 48005, b"GET / HTTP/1.1\r\n\r\n");
    // Its own address, but the connection comes from 127.0.0.1.
    is_refused(&mut fabric, 48005, &frame::greeting(node));
    let greeted = frame::greeting(node_of_address(Ipv4Addr::LOCALHOST)).to_vec();
    for broken in [[0xff; 8], [0, 65, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 1]] {
        is_refused(&mut fabric, 48005, &[&greeted[..], &broken].concat());
    }
}
