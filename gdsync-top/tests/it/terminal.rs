//! The live view on a terminal, which it restores.

use crate::view::{LIMIT, Pingpong, is_connected, until};
use gdsync_sys::local::readable;
use gdsync_test_support::command::{gdsync, text};
use gdsync_test_support::on_system;
use gdsync_test_support::processes::{as_from_a_terminal, signal};
use gdsync_test_support::terminal::{open, printed};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The command on a terminal of 30 lines and 100 columns.
struct OnTerminal {
    child: Child,
    keys: File,
    screen: Receiver<u8>,
    seen: Vec<u8>,
    /// Kept open to read its settings when the command has ended.
    slave: OwnedFd,
    before: libc::termios,
    /// Set to stop reading the output.
    is_over: Arc<AtomicBool>,
    reader: JoinHandle<()>,
}

fn settings(terminal: &OwnedFd) -> libc::termios {
    // SAFETY: all-zero bytes are a valid value of this plain C structure.
    let mut settings: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid.
    assert_eq!(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut settings) }, 0);
    settings
}

impl OnTerminal {
    fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_with(arguments, environment, libc::SIG_DFL)
    }

    /// Starts the command with this disposition of SIGHUP.
    fn start_with(arguments: &[&str], environment: &[(&str, &str)], hang_up: libc::sighandler_t) -> Self {
        let (master, slave) = open(100, 30);
        let end = || Stdio::from(slave.try_clone().unwrap());
        let mut command = gdsync(arguments);
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm").env_remove("NO_COLOR");
        command.envs(environment.iter().copied());
        take_terminal(as_from_a_terminal(&mut command), hang_up);
        let before = settings(&slave);
        let child = command.spawn().unwrap();
        let mut screen = master.try_clone().unwrap();
        let (sender, receiver) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let is_read_no_more = is_over.clone();
        let reader = std::thread::spawn(move || {
            let mut part = [0; 4096];
            while !is_read_no_more.load(Ordering::Relaxed) {
                if readable(&[&screen], Duration::from_millis(20)).unwrap() == [false] {
                    continue;
                }
                // An error is the end: no process has the terminal any more.
                let Ok(count @ 1..) = screen.read(&mut part) else { return };
                if part[..count].iter().any(|byte| sender.send(*byte).is_err()) {
                    return;
                }
            }
        });
        OnTerminal { child, keys: master, screen: receiver, seen: Vec::new(), slave, before, is_over, reader }
    }

    /// Waits for a text in the output, after the previous one.
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

    /// Closes the terminal, as closing its window does, and waits for the end.
    fn goes_away(self) -> Option<i32> {
        let OnTerminal { mut child, keys, is_over, reader, .. } = self;
        is_over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        drop(keys);
        end_of(&mut child).code()
    }

    /// Waits for its end, and checks that the terminal is restored.
    fn ends(mut self) -> (Option<i32>, String) {
        let status = end_of(&mut self.child);
        let now = settings(&self.slave);
        assert_eq!(
            (now.c_lflag, now.c_iflag, now.c_oflag),
            (self.before.c_lflag, self.before.c_iflag, self.before.c_oflag)
        );
        while let Ok(byte) = self.screen.recv_timeout(Duration::from_millis(200)) {
            self.seen.push(byte);
        }
        let seen = text(&self.seen);
        // The alternate screen and the hidden cursor, and the reverse: the last of each.
        for [on, off] in [["\x1b[?1049h", "\x1b[?1049l"], ["\x1b[?25l", "\x1b[?25h"]] {
            assert!(seen.rfind(on).is_some_and(|on| seen.rfind(off).is_some_and(|off| off > on)), "{seen:?}");
        }
        (status.code(), seen)
    }
}

fn end_of(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + LIMIT;
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status,
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                panic!("it does not end");
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Makes the command the leader of a session on the terminal that is its stdin.
fn take_terminal(command: &mut Command, hang_up: libc::sighandler_t) {
    let take = move || {
        // SAFETY: no memory is involved, and no handler.
        let taken = unsafe {
            libc::setsid() >= 0
                && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0
                && libc::signal(libc::SIGHUP, hang_up) != libc::SIG_ERR
        };
        if taken { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: makes only system calls between fork and exec.
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
    for (number, status) in [(libc::SIGTERM, 143), (libc::SIGINT, 130), (libc::SIGHUP, 129)] {
        let mut top = OnTerminal::start(&["top"], &[("NO_COLOR", "1")]);
        top.shows("gdsync");
        signal(top.child.id(), number);
        let (code, seen) = top.ends();
        assert_eq!(code, Some(status), "{seen}");
        // No color, but bold and reversed text.
        assert!(!seen.contains("\x1b[38;5;") && !seen.contains("\x1b[31m"), "{seen:?}");
    }
}

#[test]
fn a_terminal_that_goes_away_ends_the_live_view() {
    // Also if SIGHUP is ignored, as under nohup.
    for (hang_up, status) in [(libc::SIG_DFL, 129), (libc::SIG_IGN, 1)] {
        let mut top = OnTerminal::start_with(&["top"], &[], hang_up);
        top.shows("gdsync");
        assert_eq!(top.goes_away(), Some(status));
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

#[test]
fn a_table_at_80_columns_says_what_is_waited_for() {
    if on_system() {
        return;
    }
    let pingpong = Pingpong::start(Some("late=60s dir=in nth=200"));
    let waits =
        |process: &Value| process["streams"][0]["wait"]["waited_ms"].as_f64().is_some_and(|ms| ms > 100.0);
    until(pingpong.pids(), "both streams stand still", |both| both.iter().all(waits));
    let table = printed(80, &["top", "--once", "--interval", "100ms"]);
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let streams = table.lines().skip_while(|line| !line.contains("STREAM")).collect::<Vec<_>>().join("\n");
    assert!(streams.contains("WAITS FOR") && streams.contains("completion "), "{table}");
}
