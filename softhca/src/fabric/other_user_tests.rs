//! Attacks by another user of the host: holding the names of cards, and connecting to them. Root can become
//! another user, so these tests run as root, in a separate network namespace.

use super::network::Network;
use super::packet::{NUMBERS, SendOutcome};
use super::shared::Shared;
use super::{Node, PayloadPart, names};
use crate::os::socket;
use crate::speed::Speed;
use crate::testing::{again, role, skipped, until};
use gdsync_auth::{Key, own_user};
use gdsync_sys::local;
use std::io::{BufRead, BufReader, Lines, Write};
use std::ops::RangeInclusive;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};

fn card() -> Shared {
    Shared::bind(Speed::default()).unwrap()
}

const OTHER: libc::uid_t = 65534;
/// The role of a test's body, in the namespace.
const ALONE: &str = "alone";

/// Runs the calling test again, alone in a process, and asserts that it passes there. Returns true in that
/// process, which has its own network namespace and its own folder for the key.
fn is_alone(name: &str) -> bool {
    if role().as_deref() == Some(ALONE) {
        // SAFETY: no memory is involved. Sockets of this thread belong to the new namespace.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
            return true;
        }
        skipped(name, &format!("no network namespace: {}", std::io::Error::last_os_error()));
        return false;
    }
    if role().is_some() {
        return false;
    }
    if own_user() != 0 {
        skipped(name, "only root can become another user");
        return false;
    }
    let folder = Folder::new(name);
    let test = format!("fabric::other_user_tests::{name}");
    let mut command = again(&test, ALONE);
    command.env("XDG_RUNTIME_DIR", &folder.0).env_remove("SOFTHCA_KEY").env_remove("SOFTHCA_KEY_FILE");
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{name}: {}\n{said}", output.status);
    false
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gdsync-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The body of the child process: another user, who holds the names of cards, or connects to a card.
#[test]
fn other_user() {
    let Some(role) = role() else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let number = |i: usize| words[i].parse::<u16>().unwrap();
    let numbers = match words[0] {
        "hold" => number(1)..=number(2),
        "connect" => number(1)..=number(1),
        _ => return,
    };
    // The names are the victim's.
    let names: Vec<Vec<u8>> = numbers.map(names::plain).collect();
    // SAFETY: no memory is involved; all threads of this process become that user.
    unsafe {
        assert_eq!((libc::setresgid(OTHER, OTHER, OTHER), libc::setresuid(OTHER, OTHER, OTHER)), (0, 0));
    }
    // The test harness prints as well: the prefix marks our lines.
    let say = |words: String| println!("\nCHILD {words}");
    if words[0] == "connect" {
        let stream = local::connect(&names[0]).unwrap();
        let (_, memory) = crate::os::memory::SharedMemory::create(4096).unwrap();
        let greeting = socket::send_with_fd(&stream, b"gdsft3\0\x07", std::os::fd::AsFd::as_fd(&memory));
        stream.set_nonblocking(false).unwrap();
        // The card may have closed the connection before the greeting.
        let is_closed = |error: &std::io::Error| {
            matches!(error.kind(), std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe)
        };
        let answer = greeting.and_then(|_| std::io::Read::read(&mut &stream, &mut [0; 64]));
        let ended = answer.map_or_else(|error| is_closed(&error), |count| count == 0);
        return say(format!("closed: {ended}"));
    }
    let hold = |name: &Vec<u8>| {
        let address = SocketAddr::from_abstract_name(name).unwrap();
        UnixListener::bind_addr(&address).ok()
    };
    let held: Vec<UnixListener> = names.iter().filter_map(hold).collect();
    say(format!("held {}", held.len()));
    if held.len() == 1 {
        let (stream, _) = held[0].accept().unwrap();
        let mut bytes = [0; 64];
        let (got, memory) = socket::receive_with_fd(&stream, &mut bytes).unwrap();
        say(format!("received {got} bytes and a ring: {}", memory.is_some()));
    }
    // Until the test ends it.
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// A process of the other user, killed on drop.
struct Other {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start(role: &str) -> Self {
        let mut command = again("fabric::other_user_tests::other_user", role);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Other { child, lines }
    }

    fn holds(numbers: RangeInclusive<u16>) -> Self {
        Other::start(&format!("hold {} {}", numbers.start(), numbers.end()))
    }

    fn hear(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("the process lives").unwrap();
            if let Some(words) = line.strip_prefix("CHILD ") {
                return words.to_owned();
            }
        }
    }

    fn end(mut self) {
        let mut input = self.child.stdin.take().unwrap();
        input.write_all(b"\n").unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(fabric: &mut Shared, number: u16, header: &[u8]) -> SendOutcome {
    let payload = b"what root sends";
    // SAFETY: a slice that outlives the call.
    unsafe { fabric.try_send(number.into(), header, &[(payload.as_ptr(), payload.len())]) }
}

/// A packet goes from one card to another.
fn talk(from: &mut Shared, to: &mut Shared) {
    assert_eq!(send(from, to.number(), b"hello"), SendOutcome::Sent);
    until("arrival", || {
        let mut seen = None;
        to.poll(1, &mut |number: Node, header: &[u8], _: [PayloadPart; 2]| {
            seen = Some((number, header.to_vec()))
        });
        seen.map(|seen| assert_eq!(seen, (Node::from(from.number()), b"hello".to_vec())))
    });
}

#[test]
fn another_user_that_takes_the_number_of_a_dead_card_gets_no_packets() {
    if !is_alone("another_user_that_takes_the_number_of_a_dead_card_gets_no_packets") {
        return;
    }
    let (mut fabric, dead) = (card(), card());
    let number = dead.number();
    drop(dead);
    let mut thief = Other::holds(number..=number);
    assert_eq!(thief.hear(), "held 1");
    assert_eq!(send(&mut fabric, number, b"header"), SendOutcome::Unreachable);
    assert_eq!(thief.hear(), "received 0 bytes and a ring: false");
    assert!(!fabric.is_alive(number.into()));
}

#[test]
fn another_user_that_connects_is_refused() {
    if !is_alone("another_user_that_connects_is_refused") {
        return;
    }
    let mut fabric = card();
    let mut stranger = Other::start(&format!("connect {}", fabric.number()));
    let poller = std::thread::spawn(move || stranger.hear());
    until("the refusal", || {
        fabric.poll(1, &mut |_: Node, _: &[u8], _: [PayloadPart; 2]| panic!("a packet of another user"));
        poller.is_finished().then_some(())
    });
    assert_eq!(poller.join().unwrap(), "closed: true");
}

#[test]
fn another_user_that_holds_all_names_stops_no_card() {
    if !is_alone("another_user_that_holds_all_names_stops_no_card") {
        return;
    }
    let mut early = card();
    let mut other = Other::holds(NUMBERS);
    let held = other.hear();
    let count = held.strip_prefix("held ").unwrap().parse::<usize>().unwrap();
    assert_eq!(count, NUMBERS.len() - 1, "all but that of the first card");

    let (mut a, mut b) = (card(), card());
    let numbers = [early.number(), a.number(), b.number()];
    assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2], "{numbers:?}");
    talk(&mut a, &mut b);
    talk(&mut b, &mut a);
    talk(&mut early, &mut a);
    talk(&mut b, &mut early);

    // The plain names are free again: no card takes the number of a card with a secret name, nor the reverse.
    other.end();
    assert!(names::claim_plain(a.number()).unwrap().is_none());
    let key = Key::of_user_if_made().unwrap().unwrap();
    assert!(names::claim_secret(&key, early.number()).unwrap().is_none());
    let free = NUMBERS.into_iter().find(|number| !numbers.contains(number)).unwrap();
    assert!(names::claim_plain(free).unwrap().is_some());
    assert!(names::claim_secret(&key, free).unwrap().is_some());
    let mut late = card();
    talk(&mut late, &mut a);
    talk(&mut a, &mut late);
}
