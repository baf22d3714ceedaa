//! Clients that hang, disappear, or belong to another user.

use super::*;
use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::process::Command;

/// Longer than any test: a test that waits for it never ends.
const FOR_EVER: Duration = Duration::from_secs(1 << 20);
/// More than a socket buffers for a client that does not read.
const LARGE: usize = 4 << 20;

fn small() -> Vec<u8> {
    b"small".to_vec()
}

fn large() -> Vec<u8> {
    vec![7; LARGE]
}

fn name(what: &str) -> String {
    format!("gdsync-status-server/{}/{what}", std::process::id())
}

fn server(what: &str, make: fn() -> Vec<u8>, patience: Duration) -> Server {
    let address = SocketAddr::from_abstract_name(name(what)).unwrap();
    Server::on(UnixListener::bind_addr(&address).unwrap(), make, patience).unwrap()
}

fn reader(what: &str) -> UnixStream {
    let socket = local::connect(name(what).as_bytes()).unwrap();
    socket.set_nonblocking(false).unwrap();
    socket
}

fn all_of(mut socket: UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Waits for the first byte of an answer.
fn first_byte(socket: &mut UnixStream) {
    socket.read_exact(&mut [0]).unwrap();
}

#[test]
fn many_readers_that_hang_hold_up_no_other_and_no_end() {
    let server = server("hang", small, FOR_EVER);
    let hanging: Vec<UnixStream> = (0..100).map(|_| reader("hang")).collect();
    assert_eq!(all_of(reader("hang")), small());
    drop(server);
    drop(hanging);
    assert_eq!(local::connect(name("hang").as_bytes()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_reader_that_takes_no_large_answer_loses_it_and_holds_up_no_end() {
    let patient = server("patient", large, FOR_EVER);
    let mut hangs = reader("patient");
    first_byte(&mut hangs);
    // It writes to a client that reads nothing, without a time limit; the end does not wait for that.
    drop(patient);
    assert!(all_of(hangs).len() < LARGE - 1);

    let server = server("impatient", large, Duration::from_millis(1));
    let mut hangs = reader("impatient");
    first_byte(&mut hangs);
    // It is answered once the first client has lost its answer.
    let mut next = reader("impatient");
    first_byte(&mut next);
    assert!(all_of(hangs).len() < LARGE - 1);
    drop(server);
}

#[test]
fn a_large_answer_comes_whole() {
    let _server = server("whole", large, FOR_EVER);
    assert!(all_of(reader("whole")) == large());
}

#[test]
fn a_reader_that_goes_away_ends_no_program() {
    const ROLE: &str = "GDSYNC_TEST_ROLE";
    if std::env::var_os(ROLE).is_none() {
        let test = "server::tests::a_reader_that_goes_away_ends_no_program";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", test]).env(ROLE, "alone").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{}\n{said}", output.status);
        return;
    }
    // As in a program that is not written in Rust.
    // SAFETY: the call changes a signal's disposition, without a handler.
    assert_ne!(unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) }, libc::SIG_ERR);
    let _server = server("away", large, FOR_EVER);
    for _ in 0..10 {
        first_byte(&mut reader("away"));
    }
    assert_eq!(all_of(reader("away")).len(), LARGE);
}

#[test]
fn another_user_gets_nothing() {
    const OTHER: libc::uid_t = 65_534;
    if local::own_user() != 0 {
        let line = "SKIPPED another_user_gets_nothing: only root can be another user\n";
        io::stderr().write_all(line.as_bytes()).unwrap();
        return;
    }
    let _server = server("user", small, FOR_EVER);
    // Created before the fork: the child makes only system calls, and what `connect` and `read` need.
    let name = name("user");
    // SAFETY: the child uses sockets only, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let gets_nothing = || {
            // SAFETY: no memory is involved.
            if unsafe { libc::setuid(OTHER) } != 0 {
                return false;
            }
            let Ok(mut socket) = local::connect(name.as_bytes()) else { return false };
            let got = socket.set_nonblocking(false).and_then(|()| socket.read(&mut [0; 16]));
            matches!(got, Ok(0)) || got.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
        };
        // SAFETY: the call ends the child immediately.
        unsafe { libc::_exit(if gets_nothing() { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place; `fork` has returned the child's id.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    assert_eq!(all_of(reader("user")), small());
}
