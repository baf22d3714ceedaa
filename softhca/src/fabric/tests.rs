use super::frame::{self, Greeting};
use super::packet::{MAX_HEADER, MAX_PAYLOAD};
use super::tcp_handshake::{PACKETS, proof_context};
use super::*;
use crate::testing::until;
use gdsync_auth::{Exchange, Limits};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// A forked child that has closed its sockets as a fork does, and is stopped. It is killed when this is dropped.
pub(super) struct StoppedChild(libc::pid_t);

impl StoppedChild {
    pub(super) fn fork() -> Self {
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            close_sockets_in_child();
            // SAFETY: no memory is involved.
            unsafe {
                libc::raise(libc::SIGSTOP);
                libc::_exit(0);
            }
        }
        // SAFETY: a child of this process; its status may be left out.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WUNTRACED) };
        StoppedChild(child)
    }
}

impl Drop for StoppedChild {
    fn drop(&mut self) {
        // SAFETY: as in `fork`.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// A card's fabric at a loopback address, and its node. No two tests share one.
fn at(last: [u8; 2], port: u16) -> (Fabric, Node) {
    with_speed(last, port, Speed::default())
}

fn with_speed(last: [u8; 2], port: u16, speed: Speed) -> (Fabric, Node) {
    let address = Ipv4Addr::new(127, 83, last[0], last[1]);
    let fabric = Fabric::at(SocketAddrV4::new(address, port), key(), speed).unwrap();
    let own = node_of(&fabric);
    (fabric, own)
}

/// A card's fabric with that number, or the next free one, and its node.
fn numbered(last: [u8; 2], port: u16, number: u16) -> (Fabric, Node) {
    let address = SocketAddrV4::new(Ipv4Addr::new(127, 83, last[0], last[1]), port);
    let seed = u32::from(number) - 1;
    let tcp = Tcp::bind(address, seed, key(), Speed::default(), tcp_handshake::limits()).unwrap();
    let fabric = Fabric(Box::new(tcp));
    let own = node_of(&fabric);
    (fabric, own)
}

fn node_of(fabric: &Fabric) -> Node {
    node(fabric.ipv4(), fabric.number())
}

/// Where a card listens.
fn listener_of(fabric: &Fabric, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(fabric.ipv4().unwrap(), port + fabric.number())
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
    let node = node_of(to);
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
fn the_cards_of_an_address_have_numbers_and_each_its_port() {
    let port = 28001;
    let ((first, node_a), (second, node_b)) = (numbered([1, 1], port, 510), numbered([1, 1], port, 510));
    assert_eq!((first.number(), second.number(), first.ipv4()), (510, 1, second.ipv4()), "the next one");
    assert_ne!(node_a, node_b);
    for card in [&first, &second] {
        let error = TcpListener::bind(listener_of(card, port)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "no other process can take the number");
    }
    drop(first);
    assert_eq!(numbered([1, 1], port, 510).0.number(), 510);
    let foreign = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 1), port);
    let error = Fabric::at(foreign, key(), Speed::default()).err().unwrap();
    assert!(matches!(error, FabricError::NoPort { .. }), "an address of another host: {error}");
    assert!(error.to_string().contains("198.51.100.1:28001"), "{error}");
}

#[test]
fn cards_of_one_address_speak_and_a_number_that_is_taken_again_is_reached() {
    let (port, mut other) = (28013, numbered([13, 2], 28013, 7).0);
    let ((mut a, node_a), (mut b, node_b)) = (numbered([13, 1], port, 7), numbered([13, 1], port, 8));
    deliver(&mut a, &mut b, b"to a neighbour");
    deliver(&mut b, &mut a, b"and back");
    deliver(&mut other, &mut b, b"from the same number elsewhere");
    assert!(a.is_alive(node_b) && b.is_linked(node_a));
    drop(b);
    until("its end", || {
        take(&mut a);
        (!a.is_alive(node_b)).then_some(())
    });
    assert_eq!(send(&mut a, node_b, b"hello?", b""), SendOutcome::Unreachable);
    let (mut again, node_again) = numbered([13, 1], port, 8);
    assert_eq!(node_again, node_b);
    for (number, from) in [&mut a, &mut other].into_iter().enumerate() {
        let said = [number as u8];
        until("the new one", || {
            take(from);
            send(from, node_b, &said, b"");
            take(&mut again).iter().any(|(_, header, _)| *header == said).then_some(())
        });
    }
}

/// Returns the descriptors' targets in `/proc/PROCESS/fd`.
fn files_of(process: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()).collect()
}

#[test]
fn the_child_of_a_fork_keeps_neither_the_number_of_its_parents_card_nor_its_links() {
    let ((mut a, _), (mut b, _)) = (at([14, 1], 28014), at([14, 1], 28014));
    deliver(&mut a, &mut b, b"hello");
    let name =
        names::listen(format!("gdsync-softhca/fork/{}", std::process::id()).as_bytes()).unwrap().unwrap();
    let own = |fd: i32| std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
    let sockets = [a.sockets(), b.sockets(), vec![name.as_raw_fd()]].concat();
    let sockets: Vec<_> = sockets.into_iter().map(own).collect();
    assert_eq!(sockets.len(), 5, "two listeners, two ends of a link, a name");
    let child = StoppedChild::fork();
    let left = files_of(&child.0.to_string());
    drop(child);
    assert!(!left.is_empty() && sockets.iter().all(|socket| !left.contains(socket)), "{sockets:?} {left:?}");
    deliver(&mut b, &mut a, b"the parent goes on");
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
    for impossible in [0, 5, 0xffff, node_a, MULTICAST, node_a | 0x1ff, node(Some(Ipv4Addr::BROADCAST), 5)] {
        assert_eq!(send(&mut a, impossible, b"", b""), SendOutcome::Unreachable);
    }
    let (mut b, node_b) = numbered([4, 2], 28004, 8);
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
}

fn connected(fabric: &Fabric, from: Ipv4Addr, port: u16) -> TcpStream {
    let socket = crate::os::socket::connect_tcp(from, listener_of(fabric, port));
    until("the connection", || socket.as_ref().unwrap().peer_addr().ok());
    socket.unwrap()
}

/// Proves a key on a connection to a fabric as a card at that address does.
fn proven(fabric: &mut Fabric, from: Ipv4Addr, claimed: Ipv4Addr, port: u16, key: &Key) -> Option<TcpStream> {
    let context = proof_context(PACKETS, claimed, listener_of(fabric, port));
    proven_for(fabric, from, &context, port, key)
}

fn proven_for(
    fabric: &mut Fabric,
    from: Ipv4Addr,
    context: &[u8],
    port: u16,
    key: &Key,
) -> Option<TcpStream> {
    let mut socket = connected(fabric, from, port);
    let mut exchange = Exchange::connecting(key, context).unwrap();
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
    let (mut fabric, own) = at([5, 1], 28005);
    let here = |number| u64::from(u32::from(HERE)) << 16 | number;
    let stranger = connected(&fabric, HERE, 28005);
    is_refused(&mut fabric, stranger, b"GET / HTTP/1.1\r\n\r\n");
    // It claims its own address, but the connection comes from 127.0.0.1.
    let liar = proven(&mut fabric, HERE, HERE, 28005, &key()).unwrap();
    is_refused(&mut fabric, liar, &greeting(own));
    assert!(proven(&mut fabric, HERE, Ipv4Addr::new(127, 83, 5, 2), 28005, &key()).is_none());
    // A proof for another card of the address, and one for another purpose.
    let mut next = listener_of(&fabric, 28005);
    let context = proof_context("services of software cards 1", HERE, next);
    assert!(proven_for(&mut fabric, HERE, &context, 28005, &key()).is_none());
    next.set_port(next.port() + 1);
    assert!(proven_for(&mut fabric, HERE, &proof_context(PACKETS, HERE, next), 28005, &key()).is_none());
    // Numbers that no card has.
    for number in [0, 511, 0xffff] {
        let liar = proven(&mut fabric, HERE, HERE, 28005, &key()).unwrap();
        is_refused(&mut fabric, liar, &greeting(here(number)));
    }
    let greeted = greeting(here(5));
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
    let posed_node = node(Some(posed), 9);
    let said = [&greeting(posed_node)[..], &packet].concat();
    let thief = connected(&a, posed, port);
    is_refused(&mut a, thief, &said);
    let other = Key::new(b"the key of another job").unwrap();
    assert!(proven(&mut a, posed, posed, port, &other).is_none());

    // It takes the peer's address, and waits for packets.
    let trap = TcpListener::bind(SocketAddrV4::new(posed, port + 9)).unwrap();
    trap.set_nonblocking(true).unwrap();
    let mut got = Vec::new();
    let mut caught: Option<TcpStream> = None;
    until("the end of the link", || {
        take(&mut a);
        let outcome = send(&mut a, posed_node, b"header", b"secret payload");
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
    let limits = tcp_handshake::limits();
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
    let limits = Limits { time, ..tcp_handshake::limits() };
    let tcp = Tcp::bind(address, 0, key(), Speed::default(), limits).unwrap();
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
