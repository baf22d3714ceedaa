use super::*;

const SPACE: u16 = 0xeee8;
const TIME: Duration = Duration::from_secs(20);

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

/// Opens a door at a loopback address, which no two tests share.
fn door(last: u8, own: &Key) -> (SocketAddrV4, Arc<Vec<Held<TcpListener>>>) {
    let at = SocketAddrV4::new(Ipv4Addr::new(127, 83, 30, last), 28030);
    let listeners = Arc::new(vec![Held::new(socket::listen_shared(at).unwrap())]);
    let (serving, own) = (listeners.clone(), own.clone());
    std::thread::spawn(move || answer_all(&serving, Some(*at.ip()), &own));
    (at, listeners)
}

#[test]
fn another_host_learns_who_serves_a_port_from_any_process_of_the_address() {
    let own = key("the key of these questions");
    let (at, first) = door(1, &own);
    let (_, second) = door(1, &own);
    let port = std::process::id() as u16;
    let found = || ask_until_answered(at, &own, (SPACE, port), TIME).unwrap();
    assert_eq!(found(), None);
    let services = services::Services::at(*at.ip());
    let service = services.claim(SPACE, port).unwrap().unwrap();
    let card = ServiceCard { is_ethernet: true, node: 0x7f53_1e01_0005 };
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                service.answer(&[card]);
                std::thread::yield_now();
            }
        });
        // The kernel gives questions to both.
        (0..8).for_each(|_| assert_eq!(found(), Some(vec![card])));
        socket::shut_down(first[0].as_fd());
        (0..8).for_each(|_| assert_eq!(found(), Some(vec![card]), "the other goes on"));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    socket::shut_down(second[0].as_fd());
    assert_eq!(found(), None, "no process is there");
}

#[test]
fn a_stranger_learns_nothing_and_silent_ones_keep_no_host_out() {
    let (own, other) = (key("the key of these questions"), key("the key of another job"));
    let (at, _listeners) = door(2, &own);
    let refused = ask_until_answered(at, &other, (SPACE, 7), TIME).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(at).unwrap()).collect();
    assert_eq!(ask_until_answered(at, &own, (SPACE, 7), TIME).unwrap(), None);
    drop(silent);
    // A process that listens there without the key.
    let trap = TcpListener::bind(SocketAddrV4::new(Ipv4Addr::new(127, 83, 30, 3), 28030)).unwrap();
    let trapped = std::thread::spawn(move || {
        let (mut socket, _) = trap.accept().unwrap();
        socket.write_all(&[&b"gdsauth\x01"[..], &[7; 64]].concat()).unwrap();
        let mut got = Vec::new();
        let _ = socket.read_to_end(&mut got);
        got.len()
    });
    let at = SocketAddrV4::new(Ipv4Addr::new(127, 83, 30, 3), 28030);
    let refused = ask_until_answered(at, &own, (SPACE, 7), TIME).unwrap_err();
    assert_eq!(
        (refused.raw_os_error(), trapped.join().unwrap()),
        (Some(libc::EACCES), 40),
        "a random number and no more"
    );
}
