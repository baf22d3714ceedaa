use super::frame::{self, Greeting};
use super::packet::{MAX_HEADER, MAX_PAYLOAD, node_of_address};
use super::tcp_handshake::proof_context;
use super::*;
use crate::testing::until;
use gdsync_auth::Exchange;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A card's fabric at a loopback address. No two tests share one.
fn at(last: [u8; 2], port: u16) -> (Fabric, Node) {
    with_speed(last, port, Speed::default())
}

fn with_speed(last: [u8; 2], port: u16, speed: Speed) -> (Fabric, Node) {
    let address = Ipv4Addr::new(127, 83, last[0], last[1]);
    let fabric = Fabric::at(&[SocketAddrV4::new(address, port)], key(), speed).unwrap();
    (fabric, node_of_address(address))
}

fn key() -> Key {
    Key::new(b"the key of these tests").unwrap()
}

fn greeting(node: Node) -> Vec<u8> {
    Greeting { node, speed: Speed::default() }.bytes().to_vec()
}

fn send(fabric: &mut Fabric, node: Node, header: &[u8], payload: &[u8]) -> SendOutcome {
    // SAFETY: a slice that outlives the call.
    unsafe { fabric.try_send(node, header, &[(payload.as_ptr(), payload.len())]) }
}

fn send_all(fabric: &mut Fabric, node: Node, header: &[u8], payload: &[u8]) {
    until("room", || (send(fabric, node, header, payload) == SendOutcome::Sent).then_some(()));
}

/// Sends a packet and polls the receiver, so that it can prove the key, until the packet arrives.
fn deliver(from: &mut Fabric, to: &mut Fabric, header: &[u8]) {
    let node = node_of_address(to.ipv4().unwrap());
    let mut is_sent = false;
    until("the first packet", || {
        take(from);
        is_sent = is_sent || send(from, node, header, b"") == SendOutcome::Sent;
        let taken = take(to);
        assert!(taken.iter().all(|(_, arrived, _)| arrived == header));
        (taken.len() == 1).then_some(())
    });
}

/// Polls once; returns source, header and payload of each packet.
fn take(fabric: &mut Fabric) -> Vec<(Node, Vec<u8>, Vec<u8>)> {
    let mut taken = Vec::new();
    fabric.poll(100, &mut |node: Node, header: &[u8], payload: [PayloadPart; 2]| {
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
    let list = [[1, 1], [1, 2]].map(|[c, d]| SocketAddrV4::new(Ipv4Addr::new(127, 83, c, d), 28001));
    let first = Fabric::at(&list, key(), Speed::default()).unwrap();
    let second = Fabric::at(&list, key(), Speed::default()).unwrap();
    assert_eq!([first.ipv4(), second.ipv4()], list.map(|address| Some(*address.ip())));
    let error = Fabric::at(&list, key(), Speed::default()).err().unwrap().to_string();
    assert!(
        error.contains("127.83.1.1:28001, 127.83.1.2:28001") && error.contains("SOFTHCA_LISTEN"),
        "{error}"
    );
    drop(first);
    assert_eq!(Fabric::at(&list, key(), Speed::default()).unwrap().ipv4(), Some(*list[0].ip()));
    let foreign = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 28001);
    assert!(
        matches!(Fabric::at(&[foreign], key(), Speed::default()), Err(FabricError::NoAddress { .. })),
        "an address of another host"
    );
}

#[test]
fn packets_of_all_sizes_go_both_ways_in_order() {
    let ((mut a, node_a), (mut b, node_b)) = (at([2, 1], 28002), at([2, 2], 28002));
    let sizes = [0, 1, 63, 1000, MAX_PAYLOAD - 1, MAX_PAYLOAD];
    let sender = std::thread::spawn(move || {
        for i in 0..600u32 {
            let payload = vec![i as u8; sizes[i as usize % sizes.len()]];
            send_all(&mut a, node_b, &i.to_ne_bytes(), &payload);
        }
        // As in an engine, polling sends the rest of the last packet.
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
    deliver(&mut b, &mut a, b"the first one back");
    send_all(&mut b, node_a, b"back", b"");
    until("the way back", || (take(&mut a) == [(node_b, b"back".to_vec(), Vec::new())]).then_some(()));
}

#[test]
fn a_full_link_wakes_the_sender_when_there_is_room() {
    let ((mut a, _), (mut b, node_b)) = (at([3, 1], 28003), at([3, 2], 28003));
    let payload = vec![1; MAX_PAYLOAD];
    deliver(&mut a, &mut b, b"");
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
    let (mut a, node_a) = at([4, 1], 28004);
    for impossible in [0, 5, 0xffff, node_a] {
        assert_eq!(send(&mut a, impossible, b"", b""), SendOutcome::Unreachable);
    }
    let (mut b, node_b) = at([4, 2], 28004);
    deliver(&mut a, &mut b, b"hello");
    deliver(&mut b, &mut a, b"hello, too");
    send_all(&mut b, node_a, b"the last word", b"");
    assert!(a.is_alive(node_b));
    drop(b);
    until("the last word", || (take(&mut a).len() == 1).then_some(()));
    until("its end", || {
        take(&mut a);
        (!a.is_alive(node_b)).then_some(())
    });
    assert_eq!(send(&mut a, node_b, b"anybody?", b""), SendOutcome::Unreachable);
    // No process listens there: the kernel refuses at once, and the fabric learns it a moment later.
    until("the refusal", || {
        let outcome = send(&mut a, node_b + 1, b"hello?", b"");
        (outcome == SendOutcome::Unreachable).then_some(())
    });
    // A new card at that address is found.
    let (mut b, _) = at([4, 2], 28004);
    until("the new one", || {
        send(&mut a, node_b, b"hello again", b"");
        (!take(&mut b).is_empty()).then_some(())
    });
}

fn connected(fabric: &Fabric, from: Ipv4Addr, port: u16) -> TcpStream {
    let socket = crate::os::socket::connect_tcp(from, SocketAddrV4::new(fabric.ipv4().unwrap(), port));
    until("the connection", || socket.as_ref().unwrap().peer_addr().ok());
    socket.unwrap()
}

/// Proves a key on a connection to a fabric as a card at that address does.
fn proven(fabric: &mut Fabric, from: Ipv4Addr, claimed: Ipv4Addr, port: u16, key: &Key) -> Option<TcpStream> {
    let mut socket = connected(fabric, from, port);
    let context = proof_context(node_of_address(claimed), node_of_address(fabric.ipv4().unwrap()), port);
    let mut exchange = Exchange::connecting(key, &context).unwrap();
    let proven = until("an end", || {
        assert!(take(fabric).is_empty());
        match exchange.advance(&mut socket) {
            Ok(false) => None,
            end => Some(end.is_ok()),
        }
    });
    proven.then_some(socket)
}

/// Sends bytes to a fabric, and waits until it closes the connection.
fn is_refused(fabric: &mut Fabric, mut stranger: TcpStream, said: &[u8]) {
    stranger.write_all(said).unwrap();
    until("the refusal", || {
        assert!(take(fabric).is_empty());
        let mut byte = [0];
        match stranger.read(&mut byte) {
            Ok(0) => Some(()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Some(()),
            _ => None,
        }
    });
}

#[test]
fn strangers_liars_and_broken_peers_are_refused() {
    const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
    let (mut fabric, node) = at([5, 1], 28005);
    let stranger = connected(&fabric, HERE, 28005);
    is_refused(&mut fabric, stranger, b"GET / HTTP/1.1\r\n\r\n");
    // It claims its own address, but the connection comes from 127.0.0.1.
    let liar = proven(&mut fabric, HERE, HERE, 28005, &key()).unwrap();
    is_refused(&mut fabric, liar, &greeting(node));
    assert!(proven(&mut fabric, HERE, Ipv4Addr::new(127, 83, 5, 2), 28005, &key()).is_none());
    let greeted = greeting(node_of_address(HERE));
    let too_long = MAX_HEADER as u8 + 1;
    for broken in
        [[0xff; 8], [0, too_long, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 1]]
    {
        let peer = proven(&mut fabric, HERE, HERE, 28005, &key()).unwrap();
        is_refused(&mut fabric, peer, &[&greeted[..], &broken].concat());
    }
}

#[test]
fn a_card_of_another_speed_is_refused_by_name() {
    let ((mut slow, slow_node), port) = (at([12, 1], 28012), 28012);
    let (mut fast, fast_node) = with_speed([12, 2], port, Speed::new(20).unwrap());
    assert_ne!(send(&mut slow, fast_node, b"hello", b""), SendOutcome::Unreachable);
    let mut refused = (vec![], vec![]);
    until("both hear of it", || {
        assert_eq!((take(&mut slow), take(&mut fast)), (vec![], vec![]));
        refused.0.extend(slow.take_refused().iter().map(ToString::to_string));
        refused.1.extend(fast.take_refused().iter().map(ToString::to_string));
        (!refused.0.is_empty() && !refused.1.is_empty()).then_some(())
    });
    for ((refused, node), speeds) in [(&refused.0, fast_node), (&refused.1, slow_node)]
        .into_iter()
        .zip([["timers 20 times", "this card 1 times"], ["timers 1 times", "this card 20 times"]])
    {
        let [refused] = &refused[..] else { panic!("{refused:?}") };
        assert!(refused.contains(&format!("{node:#x}")) && refused.contains("SOFTHCA_CLOCK"), "{refused}");
        assert!(speeds.iter().all(|speed| refused.contains(speed)), "{refused}");
    }
    assert!(!slow.is_alive(fast_node));
    let (mut alike, _) = with_speed([12, 3], port, fast.speed());
    deliver(&mut alike, &mut fast, b"hello");
}

#[test]
fn a_process_without_the_key_neither_sends_packets_nor_receives_any() {
    let ((mut a, node_a), port) = (at([6, 1], 28006), 28006);
    // The address of a peer, from which any user of the host can connect. The stranger sends a card's
    // greeting and a packet.
    let posed = Ipv4Addr::new(127, 83, 6, 2);
    let packet = [&frame::lengths(5, 4).unwrap()[..], b"write", b"evil"].concat();
    let said = [&greeting(node_of_address(posed))[..], &packet].concat();
    let thief = connected(&a, posed, port);
    is_refused(&mut a, thief, &said);
    let other = Key::new(b"the key of another job").unwrap();
    assert!(proven(&mut a, posed, posed, port, &other).is_none());

    // It takes the peer's address, and waits for packets.
    let trap = TcpListener::bind(SocketAddrV4::new(posed, port)).unwrap();
    trap.set_nonblocking(true).unwrap();
    let mut got = Vec::new();
    let mut caught: Option<TcpStream> = None;
    until("the end of the link", || {
        take(&mut a);
        let outcome = send(&mut a, node_of_address(posed), b"header", b"secret payload");
        assert_ne!(outcome, SendOutcome::Sent);
        if caught.is_none() {
            caught = trap.accept().ok().map(|(socket, _)| socket);
            // An answer without the key.
            let answer = [&b"gdsauth\x01"[..], &[7; 64]].concat();
            caught.iter_mut().for_each(|socket| socket.write_all(&answer).unwrap());
        }
        (outcome == SendOutcome::Unreachable).then_some(())
    });
    caught.unwrap().read_to_end(&mut got).unwrap();
    assert_eq!((got.len(), &got[..8]), (40, &b"gdsauth\x01"[..]), "a random number and no more: {node_a}");
}

#[test]
fn silent_strangers_keep_no_peer_out_and_hold_few_files() {
    let ((mut a, _), (mut b, node_b)) = (at([7, 1], 28007), at([7, 2], 28007));
    let limits = Limits::default();
    // From one address, also the peer's own; then from many.
    let addresses = |i: u8| [Ipv4Addr::new(127, 83, 7, 1), Ipv4Addr::new(127, 83, 8, 1 + i % 250)];
    for which in [0, 1] {
        let mut strangers = Vec::new();
        for i in 0..1100u32 {
            strangers.push(connected(&b, addresses(i as u8)[which], 28007));
            if i % 50 == 0 {
                take(&mut b);
            }
        }
        take(&mut b);
        let most = if which == 0 { limits.of_source } else { limits.most };
        assert!(b.unproven() <= most, "{} files", b.unproven());
        deliver(&mut a, &mut b, b"hello");
        assert!(a.is_alive(node_b));
        // Over a new link, for the next round.
        (a, _) = at([7, 3 + which as u8], 28007);
    }
}

#[test]
fn a_stranger_has_a_limited_time() {
    let (address, time) = (SocketAddrV4::new(Ipv4Addr::new(127, 83, 9, 1), 28009), Duration::from_millis(50));
    let tcp = Tcp::bind(&[address], key(), Speed::default(), Limits { time, ..Limits::default() }).unwrap();
    let mut fabric = Fabric(Box::new(tcp));
    let silent = connected(&fabric, Ipv4Addr::LOCALHOST, 28009);
    is_refused(&mut fabric, silent, b"");
    let slow = connected(&fabric, Ipv4Addr::LOCALHOST, 28009);
    is_refused(&mut fabric, slow, b"gdsauth\x01 and then nothing");
}

#[test]
fn a_card_that_other_hosts_reach_needs_a_key() {
    let address = |text: &str| SocketAddrV4::new(text.parse().unwrap(), 28010);
    // The tests' environment gives no key.
    let error =
        config::key_for_addresses(&[address("127.83.10.1"), address("192.0.2.1")]).unwrap_err().to_string();
    assert!(error.contains("192.0.2.1:28010") && error.contains("SOFTHCA_KEY_FILE"), "{error}");
    assert!(error.contains("/dev/urandom"), "the remedy: {error}");
}
