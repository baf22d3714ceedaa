//! `gdsync top` next to processes that exchange messages, hang, or answer wrongly.

use gdsync_test_support::command::{gdsync, json, run, succeeds, text};
use gdsync_test_support::on_system;
use gdsync_test_support::processes::{children_of, signal};
use serde_json::Value;
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Much longer than any of these takes, also on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A pingpong of two processes that is killed at the end of the test.
pub(crate) struct Pingpong(pub(crate) Child);

impl Pingpong {
    pub(crate) fn start(faults: Option<&str>) -> Self {
        let mut command = gdsync(&["pingpong", "--iters", "100000000"]);
        command.envs(faults.map(|plan| ("SOFTHCA_FAULTS", plan)));
        Pingpong(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn pids(&self) -> [u32; 2] {
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

/// Samples until both processes are visible and satisfy `are_so`.
pub(crate) fn until(pids: [u32; 2], what: &str, are_so: impl Fn(&[Value; 2]) -> bool) -> [Value; 2] {
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

pub(crate) fn is_connected(process: &Value) -> bool {
    process["cards"][0]["queue_pairs"][0]["state"] == "Rts"
}

/// Prints tables until one satisfies `is_so`.
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
        let number = both[other]["cards"][0]["queue_pairs"][0]["number"].as_u64().unwrap();
        assert_eq!(pair["peer"]["address"], format!("queue pair {number:#x}"));
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

    // An ended process is not visible, however it ended.
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
    // The completion of one receive becomes visible only after a minute: until then both sides hang.
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
        waiting.is_some_and(|line| line.contains(": queue pair 0x") && line.contains("peer queue pair 0x"))
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
    let stopped = "it did not answer within 500 ms: it is stopped, or busy";
    until(pids, "one is stopped, and the other one is shown", |[first, second]| {
        let peer = &first["cards"][0]["queue_pairs"][0]["peer"];
        second["error"] == stopped && peer["pid"] == pids[1] && peer["state"] == "stopped"
    });
    table_until("it is said below the table", |table| {
        table.lines().any(|line| line.starts_with(&format!("{} ", pids[1])) && line.ends_with(stopped))
    });
    signal(pids[1], libc::SIGKILL);
}

#[test]
fn a_name_of_another_program_is_said_to_answer_wrongly() {
    // SAFETY: no preconditions; cannot fail.
    let user = unsafe { libc::geteuid() };
    let status = std::fs::read_to_string("/proc/self/stat").unwrap();
    let start = status.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap();
    let name = format!("gdsync-status/{user}/{}/{start}/63", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    // Other tests query it, too. It ends with the process.
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
    // Its card runs once its thread exists.
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
