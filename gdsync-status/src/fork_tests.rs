//! Children of a fork.

use crate::publish::{Kept, Source, publish};
use crate::status::{Status, Stream};
use crate::{Process, ask_all};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const ROLE: &str = "GDSYNC_TEST_ROLE";

/// A source that reports a stream with this number.
struct Numbered(u64);

impl Source for Numbered {
    fn add_to(&self, status: &mut Status, _: &mut Kept) {
        status.streams.push(Stream { number: self.0, ..Stream::default() });
    }
}

/// A source that announces that it is queried, and continues once the other end is closed.
struct Waits(Sender<()>, parking_lot::Mutex<Receiver<()>>);

impl Source for Waits {
    fn add_to(&self, _: &mut Status, _: &mut Kept) {
        let _ = self.0.send(());
        let _ = self.1.lock().recv();
    }
}

/// Returns the stream numbers of a process, if it is visible.
fn streams_of(pid: u32) -> Option<Vec<u64>> {
    let all: Vec<Process> = ask_all(LONG).unwrap();
    let status = all.into_iter().find(|process| process.pid == pid)?.status.ok()?;
    Some(status.streams.iter().map(|stream| stream.number).collect())
}

/// Runs one of these tests alone, as `role`.
fn again(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("fork_tests::{test}"), "--nocapture"]).env(ROLE, role);
    command
}

/// Returns true in the process that runs the test alone; in the other one, the test has then passed.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ROLE).is_some() {
        return true;
    }
    let output = again(test, "alone").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{}\n{said}", output.status);
    false
}

/// Returns the exit code of a forked child, which ends without unwinding.
fn in_child(finds: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child uses no lock that another thread of its parent may hold, which the test verifies, and the
    // allocator, which the C library prepares for children; it ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let finds = finds();
        // SAFETY: the call ends the child immediately.
        unsafe { libc::_exit(if finds { 0 } else { 1 }) };
    }
    assert!(child > 0);
    child
}

fn succeeds(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: `status` is a valid place; `fork` has returned the child's id.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
}

#[test]
fn a_child_answers_for_itself_and_its_parent_goes_on() {
    if !is_alone("a_child_answers_for_itself_and_its_parent_goes_on") {
        return;
    }
    let parents = std::process::id();
    let first = publish(Arc::new(Numbered(1)));
    let mut first = Some(first);
    succeeds(in_child(|| {
        let own = std::process::id();
        let unseen = streams_of(own).is_none();
        // The copy of the parent's registration: dropping it has no effect.
        first = None;
        let second = publish(Arc::new(Numbered(2)));
        let seen = streams_of(own) == Some(vec![2]) && streams_of(parents) == Some(vec![1]);
        drop(second);
        unseen && seen && streams_of(own).is_none()
    }));
    assert_eq!(streams_of(parents), Some(vec![1]));
    drop(first);
    assert_eq!(streams_of(parents), None);
}

#[test]
fn a_child_of_a_process_that_is_being_asked_is_held_up_by_no_lock() {
    if !is_alone("a_child_of_a_process_that_is_being_asked_is_held_up_by_no_lock") {
        return;
    }
    let (asked, is_asked) = channel();
    let (go_on, goes_on) = channel::<()>();
    let waits = publish(Arc::new(Waits(asked, parking_lot::Mutex::new(goes_on))));
    let mut waits = Some(waits);
    let own = std::process::id();
    let client = std::thread::spawn(move || streams_of(own));
    is_asked.recv().unwrap();
    // The status thread holds the lock now; the child keeps the client's socket until it ends.
    let (mut stay, mut end) = std::io::pipe().unwrap();
    let child = in_child(|| {
        waits = None;
        let own = publish(Arc::new(Numbered(2)));
        let seen = streams_of(std::process::id()) == Some(vec![2]);
        drop(own);
        // The child inherits the parent's end of the pipe, so the end is marked by a byte.
        seen && std::io::Read::read_exact(&mut stay, &mut [0]).is_ok()
    });
    // Others may query it as well, such as concurrent tests.
    drop(go_on);
    // The answer is complete although the child still has the socket.
    assert_eq!(client.join().unwrap(), Some(Vec::new()));
    end.write_all(&[1]).unwrap();
    succeeds(child);
    drop(waits);
    assert_eq!(streams_of(own), None);
}

#[test]
fn a_process_that_has_ended_is_not_there_although_its_child_has_its_socket() {
    const TEST: &str = "a_process_that_has_ended_is_not_there_although_its_child_has_its_socket";
    const CHILD: &str = "CHILD ";
    if std::env::var_os(ROLE).is_some() {
        let published = publish(Arc::new(Numbered(1)));
        assert_eq!(streams_of(std::process::id()), Some(vec![1]));
        // SAFETY: the child makes one system call, until it is killed.
        let child = in_child(|| unsafe { libc::pause() } == 0);
        std::io::stdout().write_all(format!("\n{CHILD}{child}\n").as_bytes()).unwrap();
        std::mem::forget(published);
        // SAFETY: the call ends the process, as a signal could.
        unsafe { libc::_exit(0) };
    }
    let mut parent = again(TEST, "parent").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let pid = parent.id();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines().map_while(Result::ok);
    let child: libc::pid_t = lines.find_map(|line| line.strip_prefix(CHILD)?.parse().ok()).unwrap();
    assert!(parent.wait().unwrap().success());
    let listed = std::fs::read_to_string("/proc/net/unix").unwrap();
    let is_listed = listed.contains(&format!("/{pid}/"));
    let seen = ask_all(LONG).unwrap().iter().any(|process| process.pid == pid);
    // SAFETY: sends a signal to the process forked above, which lives until then.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    assert!(is_listed, "the child has the socket");
    assert!(!seen);
}
