//! `gdsync top`: beside processes that exchange messages, that stand still, that answer wrongly; and its live view on a
//! terminal.

use crate::command::{gdsync, json, run, succeeds, text};
use crate::processes::{as_from_a_terminal, children_of, signal};
use gdsync_test_support::on_system;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Much longer than any of these takes, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A pingpong of two processes that is killed at the end of the test.
struct Pingpong(Child);

impl Pingpong {
    fn start(faults: Option<&str>) -> Self {
        let mut command = gdsync(&["pingpong", "--iters", "100000000"]);
        command.envs(faults.map(|plan| ("SOFTHCA_FAULTS", plan)));
        Pingpong(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn pids(&self) -> [u32; 2] {
        [self.0.id(), children_of(self.0.id(), 1)[0]]
    }
}

impl Drop for Pingpong {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn process(view: &Value, pid: u32) -> Option<&Value> {
    view["processes"].as_array().unwrap().iter().find(|process| process["pid"] == pid)
}

/// Looks until both processes are there and satisfy `are_so`.
fn until(pids: [u32; 2], what: &str, are_so: impl Fn(&[Value; 2]) -> bool) -> [Value; 2] {
    let deadline = Instant::now() + LIMIT;
    loop {
        let view = json(&["top", "--once", "--json", "--interval", "300ms"]);
        let found = pids.map(|pid| process(&view, pid).cloned());
        if let [Some(one), Some(other)] = found {
            let both = [one, other];
            if are_so(&both) {
                return both;
            }
        }
        assert!(Instant::now() < deadline, "{what}: {view:#}");
    }
}

fn is_connected(process: &Value) -> bool {
    process["cards"][0]["queue_pairs"][0]["state"] == "Rts"
}

/// Prints tables until one is so.
fn table_until(what: &str, is_so: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let table = succeeds(&["top", "--once", "--interval", "100ms"]);
        if is_so(&table) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {table}");
    }
}

#[test]
fn two_processes_that_exchange_messages_are_seen_with_rates_and_peers() {
    if on_system() {
        return;
    }
    let pingpong = Pingpong::start(None);
    let pids = pingpong.pids();
    let moves = |process: &Value| {
        let rate = |way| process["cards"][0][way]["packets_per_s"].as_f64().unwrap_or(0.0);
        rate("sent") > 0.0 && rate("received") > 0.0 && is_connected(process)
    };
    let both = until(pids, "packets flow", |both| both.iter().all(moves));
    for (own, other) in [(0, 1), (1, 0)] {
        let (process, pair) = (&both[own], &both[own]["cards"][0]["queue_pairs"][0]);
        assert_eq!(pair["transport"], "Rc", "{process:#}");
        assert_eq!(pair["peer"]["pid"], pids[other], "{process:#}");
        let there = &both[other]["cards"][0];
        let number = there["queue_pairs"][0]["number"].as_u64().unwrap();
        let expected = format!("{} queue pair {number:#x}", there["address"].as_str().unwrap());
        assert_eq!(pair["peer"]["address"], expected);
        assert!(process["cards"][0]["sent"]["payload_bytes_per_s"].as_f64().unwrap() > 0.0, "{process:#}");
    }
    assert!(both[0]["name"].as_str().unwrap().starts_with("gdsync pingpong --iters"), "{:#}", both[0]);

    table_until("both have rates", |table| {
        let has_rate = |pid: u32| {
            let line = table.lines().find(|line| line.starts_with(&format!("{pid} "))).unwrap_or_default();
            line.contains("LID 0x") && line.contains("pkt/s")
        };
        pids.into_iter().all(has_rate) && table.contains("QUEUE PAIR") && table.contains("RTS")
    });

    // A process that has ended is not there, however it has ended.
    drop(pingpong);
    signal(pids[1], libc::SIGKILL);
    let deadline = Instant::now() + LIMIT;
    while pids
        .iter()
        .any(|pid| process(&json(&["top", "--once", "--json", "--interval", "100ms"]), *pid).is_some())
    {
        assert!(Instant::now() < deadline, "a process that has ended is seen");
    }
}

#[test]
fn a_stalled_wait_is_shown_with_what_and_whom_it_waits_for() {
    if on_system() {
        return;
    }
    // The completion of one of the receives becomes visible only after a minute: then both sides stand still.
    let pingpong = Pingpong::start(Some("late=60s dir=in nth=200"));
    let pids = pingpong.pids();
    let waits =
        |process: &Value| process["streams"][0]["wait"]["waited_ms"].as_f64().is_some_and(|ms| ms > 100.0);
    let faults = |process: &Value| process["cards"][0]["faults_injected"].as_u64().unwrap_or(0);
    let both = until(pids, "both streams stand still", |both| {
        both.iter().all(waits) && both.iter().map(faults).sum::<u64>() > 0
    });
    for (own, other) in [(0, 1), (1, 0)] {
        let stream = &both[own]["streams"][0];
        let wait = &stream["wait"];
        let what = wait["what"].as_str().unwrap();
        assert!(what.starts_with("completion ") && what.contains(" of queue 0x"), "{stream:#}");
        assert_eq!(wait["is_at_least"], true);
        let pair = &both[own]["cards"][0]["queue_pairs"][0];
        assert_eq!(wait["queue_pairs"][0], pair["number"]);
        assert_eq!(wait["peers"][0]["pid"], pids[other], "{stream:#}");
    }
    table_until("the wait is in the table", |table| {
        let peer = format!("(pid {})", pids[1]);
        let waiting = table.lines().find(|line| line.contains(&peer) && line.contains("completion "));
        waiting.is_some_and(|line| line.contains(" of queue pair 0x") && line.contains("peer LID 0x"))
    });
}

#[test]
fn a_stopped_process_is_named_and_holds_up_no_other() {
    if on_system() {
        return;
    }
    let pingpong = Pingpong::start(None);
    let pids = pingpong.pids();
    until(pids, "both are there", |both| both.iter().all(is_connected));
    signal(pids[1], libc::SIGSTOP);
    let view = json(&["top", "--once", "--json", "--interval", "100ms"]);
    let error = process(&view, pids[1]).and_then(|process| process["error"].as_str()).unwrap_or_default();
    let first = process(&view, pids[0]).is_some_and(|process| process["cards"][0]["link"] == "InfiniBand");
    signal(pids[1], libc::SIGKILL);
    assert_eq!(error, "it did not answer within 500 ms: it is stopped, or busy", "{view:#}");
    assert!(first, "{view:#}");
}

#[test]
fn a_name_of_another_program_is_said_to_answer_wrongly() {
    // SAFETY: no preconditions; cannot fail.
    let user = unsafe { libc::geteuid() };
    let name = format!("gdsync-status/{user}/{}/63", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    // Other tests ask it, too. It ends with the process.
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let _ = socket.write_all(b"\x1b[2J not what is expected");
        }
    });
    let said = succeeds(&["top", "--once", "--interval", "100ms"]);
    let own = std::process::id().to_string();
    let line =
        said.lines().find(|line| line.starts_with(&own) && line.contains("answers")).unwrap_or_default();
    assert!(line.ends_with("it answers with something else than the status of gdsync"), "{said}");
    assert!(!said.contains('\x1b'), "{said}");
}

#[test]
fn a_process_that_wants_to_is_not_seen() {
    if on_system() {
        return;
    }
    let mut command = gdsync(&["pingpong", "--iters", "100000000", "--procs", "1"]);
    let mut seen = Pingpong(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let has = |pid| process(&json(&["top", "--once", "--json", "--interval", "100ms"]), pid).is_some();
    let deadline = Instant::now() + LIMIT;
    while !has(seen.0.id()) {
        assert!(Instant::now() < deadline && seen.0.try_wait().unwrap().is_none());
    }
    command.env("GDSYNC_STATUS", "off").stdout(Stdio::piped());
    let mut unseen = Pingpong(command.spawn().unwrap());
    // Its card runs once its thread is there.
    let thread = || {
        let tasks =
            std::fs::read_dir(format!("/proc/{}/task", unseen.0.id())).into_iter().flatten().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.map(|name| name.trim().to_owned()).collect::<Vec<_>>()
    };
    while !thread().iter().any(|name| name == "gdsync-softhca") {
        assert!(Instant::now() < deadline, "{:?}", thread());
    }
    assert!(!thread().iter().any(|name| name == "gdsync-status"), "{:?}", thread());
    assert!(!has(unseen.0.id()));
    assert!(unseen.0.try_wait().unwrap().is_none());
}

#[test]
fn without_a_terminal_it_refuses_and_names_the_table() {
    let output = run(&["top"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    let said = text(&output.stderr);
    assert_eq!(
        said,
        "gdsync: the live view needs a terminal on stdin and stdout: `gdsync top --once` prints one table\n"
    );
}

/// A terminal of 30 lines and 100 columns, and the command on it.
struct OnTerminal {
    child: Child,
    keys: File,
    screen: Receiver<u8>,
    seen: Vec<u8>,
    /// Kept open, so that its settings can be read when the command has ended.
    slave: OwnedFd,
    before: libc::termios,
}

fn settings(terminal: &OwnedFd) -> libc::termios {
    // SAFETY: all-zero bytes are a valid value of this plain C structure.
    let mut settings: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place.
    assert_eq!(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut settings) }, 0);
    settings
}

impl OnTerminal {
    fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let (mut master, mut slave) = (0, 0);
        let size = libc::winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: valid places, and no name and no settings.
        let made =
            unsafe { libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null(), &size) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: both were just opened, and nothing else owns them.
        let (master, slave) = unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let end = || Stdio::from(slave.try_clone().unwrap());
        let mut command = gdsync(arguments);
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm").env_remove("NO_COLOR");
        command.envs(environment.iter().copied());
        take_terminal(as_from_a_terminal(&mut command));
        let before = settings(&slave);
        let child = command.spawn().unwrap();
        let mut screen = File::from(master.try_clone().unwrap());
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            // An error is the end: no process has the terminal any more.
            while let Ok(count @ 1..) = screen.read(&mut part) {
                if part[..count].iter().any(|byte| sender.send(*byte).is_err()) {
                    return;
                }
            }
        });
        OnTerminal { child, keys: File::from(master), screen: receiver, seen: Vec::new(), slave, before }
    }

    /// Waits until a text is on its way to the screen, after what was waited for before.
    fn shows(&mut self, what: &str) {
        let deadline = Instant::now() + LIMIT;
        let mut since = Vec::new();
        while !since.windows(what.len()).any(|part| part == what.as_bytes()) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(byte) => since.push(byte),
                Err(error) => panic!("{what} is not shown, {error}: {}", text(&since)),
            }
        }
        self.seen.extend(since);
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for its end. The terminal is as it was.
    fn ends(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    self.child.kill().unwrap();
                    panic!("it does not end");
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let now = settings(&self.slave);
        assert_eq!(
            (now.c_lflag, now.c_iflag, now.c_oflag),
            (self.before.c_lflag, self.before.c_iflag, self.before.c_oflag)
        );
        while let Ok(byte) = self.screen.recv_timeout(Duration::from_millis(200)) {
            self.seen.push(byte);
        }
        let seen = text(&self.seen);
        // The other screen and the hidden cursor, and both back: the last of each.
        for [on, off] in [["\x1b[?1049h", "\x1b[?1049l"], ["\x1b[?25l", "\x1b[?25h"]] {
            assert!(seen.rfind(on).is_some_and(|on| seen.rfind(off).is_some_and(|off| off > on)), "{seen:?}");
        }
        (status.code(), seen)
    }
}

/// The command becomes the leader of a session on the terminal that is its stdin.
fn take_terminal(command: &mut Command) {
    let take = || {
        // SAFETY: no memory is involved.
        let taken = unsafe { libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 };
        if taken { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec this only makes system calls.
    unsafe { command.pre_exec(take) };
}

#[test]
fn the_live_view_draws_sorts_pauses_and_leaves_the_terminal_as_it_was() {
    let _pingpong = (!on_system()).then(|| Pingpong::start(None));
    let mut top = OnTerminal::start(&["top", "--interval", "100ms"], &[]);
    top.shows("\x1b[?1049h");
    top.shows("process");
    top.press("s");
    top.shows("rat");
    top.press("p");
    top.shows("PAUSED");
    top.press("\x1b[B\x1b[6~q");
    assert_eq!(top.ends().0, Some(0));
}

#[test]
fn signals_end_the_live_view_and_leave_the_terminal_as_it_was() {
    for (number, status) in [(libc::SIGTERM, 143), (libc::SIGINT, 130)] {
        let mut top = OnTerminal::start(&["top"], &[("NO_COLOR", "1")]);
        top.shows("gdsync");
        signal(top.child.id(), number);
        let (code, seen) = top.ends();
        assert_eq!(code, Some(status), "{seen}");
        // No color, but what is bold or reversed.
        assert!(!seen.contains("\x1b[38;5;") && !seen.contains("\x1b[31m"), "{seen:?}");
    }
}

#[test]
fn control_c_is_a_key_that_ends_the_live_view() {
    let mut top = OnTerminal::start(&["top"], &[]);
    top.shows("gdsync");
    top.press("\x03");
    assert_eq!(top.ends().0, Some(0));
}

#[test]
fn a_process_that_ends_while_it_is_shown_ends_nothing() {
    if on_system() {
        return;
    }
    let mut pingpong = Pingpong::start(None);
    let pids = pingpong.pids();
    until(pids, "both are there", |both| both.iter().all(is_connected));
    let mut top = OnTerminal::start(&["top", "--interval", "100ms"], &[]);
    top.shows("RTS");
    pingpong.0.kill().unwrap();
    pingpong.0.wait().unwrap();
    signal(pids[1], libc::SIGKILL);
    top.press("p");
    top.shows("PAUSED");
    top.press("q");
    assert_eq!(top.ends().0, Some(0));
}
