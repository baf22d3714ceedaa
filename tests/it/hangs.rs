//! Failures of all kinds, killed and stopped processes: the command ends, and names the cause.

use gdsync_test_support::command::{gdsync, text};
use gdsync_test_support::processes::{children_of, ends, has_sent, signal};
use gdsync_test_support::skipped_on_system;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Much longer than any of these takes, also on a busy machine, and shorter than a hang.
const LIMIT: Duration = Duration::from_secs(60);

fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Child {
    let mut command = gdsync(arguments);
    command.envs(environment.iter().copied()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Runs a pingpong that fails: it ends, and both sides name one of these causes and no consequences.
fn fails(options: &[&str], environment: &[(&str, &str)], causes: &[&str]) {
    let arguments = [&["pingpong", "--iters", "100000000"], options].concat();
    let what = format!("{options:?} with {environment:?}");
    let (status, said) = ends(start(&arguments, environment), LIMIT, &what);
    assert_eq!(status.code(), Some(1), "{what}: {said}");
    let own: Vec<&str> = said.lines().filter(|line| line.starts_with("gdsync: ")).collect();
    assert!(!own.is_empty() && own.iter().all(|line| names(line, causes)), "{what}: {said}");
}

fn names(line: &str, causes: &[&str]) -> bool {
    causes.iter().any(|cause| line.contains(cause))
}

const OPERATIONS: [&str; 3] = ["send", "write", "write-imm"];

#[test]
fn a_send_that_fails_ends_a_pingpong_and_is_named() {
    if skipped_on_system("a_send_that_fails_ends_a_pingpong_and_is_named") {
        return;
    }
    for op in OPERATIONS {
        for trigger in ["stream", "cpu"] {
            for procs in ["1", "2"] {
                let faults = ("SOFTHCA_FAULTS", "fail=retry-exceeded nth=500 kind=write,send");
                fails(
                    &["--op", op, "--trigger", trigger, "--procs", procs],
                    &[faults],
                    &["retries exceeded"],
                );
            }
        }
    }
}

#[test]
fn a_request_that_is_refused_ends_both_sides_of_a_pingpong() {
    if skipped_on_system("a_request_that_is_refused_ends_both_sides_of_a_pingpong") {
        return;
    }
    for op in OPERATIONS {
        for (fault, causes) in [
            ("remote-operation", ["remote operation error", "fatal error of the queue pair"]),
            ("remote-access", ["remote access error", "the remote side used a wrong rkey"]),
        ] {
            let plan = format!("fail={fault} nth=500 kind=write,send dir=in");
            fails(&["--op", op], &[("SOFTHCA_FAULTS", &plan)], &causes);
        }
    }
}

#[test]
fn a_receiver_that_is_never_ready_ends_a_pingpong() {
    if skipped_on_system("a_receiver_that_is_never_ready_ends_a_pingpong") {
        return;
    }
    for op in OPERATIONS {
        fails(&["--op", op], &[("SOFTHCA_FAULTS", "rnr"), FAST], &["receiver-not-ready retries exceeded"]);
    }
}

#[test]
fn a_card_that_falls_silent_ends_a_pingpong() {
    if skipped_on_system("a_card_that_falls_silent_ends_a_pingpong") {
        return;
    }
    for op in OPERATIONS {
        fails(&["--op", op], &[("SOFTHCA_FAULTS", "die nth=500"), FAST], &["retries exceeded"]);
    }
}

#[test]
fn a_message_that_is_lost_for_good_ends_a_pingpong() {
    if skipped_on_system("a_message_that_is_lost_for_good_ends_a_pingpong") {
        return;
    }
    for (transport, op) in [("uc", "write"), ("uc", "send"), ("ud", "send")] {
        let faults = ("SOFTHCA_FAULTS", "drop nth=500 kind=write,send,datagram");
        fails(&["--transport", transport, "--op", op], &[faults, FAST], &["this transport loses messages"]);
    }
}

/// Speeds up the cards' time-outs. A pingpong's retries last half a second on hardware.
const FAST: (&str, &str) = ("SOFTHCA_CLOCK", "20");

/// Stops a pingpong's peer process, which is at work, for longer than retries last, and continues it; repeats that up
/// to `times` times while the pingpong runs. Returns the pingpong's exit code and stderr.
fn with_stops(times: u32, options: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let arguments = [&["pingpong", "--check=false", "--warmup", "0"], options].concat();
    let mut parent = start(&arguments, environment);
    let peer = children_of(parent.id(), 1)[0];
    has_sent(peer, 20);
    for _ in 0..times {
        signal(peer, libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(300));
        signal(peer, libc::SIGCONT);
        std::thread::sleep(Duration::from_millis(100));
        if parent.try_wait().unwrap().is_some() {
            break;
        }
    }
    let (status, said) = ends(parent, 4 * LIMIT, &format!("{options:?} with {environment:?}"));
    (status.code(), said)
}

#[test]
fn a_pingpong_that_waits_for_stopped_peers_goes_on_after_its_peer_was_stopped() {
    if skipped_on_system("a_pingpong_that_waits_for_stopped_peers_goes_on_after_its_peer_was_stopped") {
        return;
    }
    for op in OPERATIONS {
        let wait = ("SOFTHCA_STOPPED", "wait");
        // Much more than its peer sent before the stop.
        let (code, said) = with_stops(1, &["--op", op, "--size", "4MiB", "--iters", "150"], &[FAST, wait]);
        assert_eq!((code, said.as_str()), (Some(0), ""), "{op}");
    }
}

#[test]
fn a_stopped_peer_is_an_error_that_both_sides_name() {
    if skipped_on_system("a_stopped_peer_is_an_error_that_both_sides_name") {
        return;
    }
    let between_hosts = ("SOFTHCA_LISTEN", "127.83.211.1:32000");
    for (op, more) in OPERATIONS.iter().flat_map(|op| [(op, None), (op, Some(between_hosts))]) {
        // If the stopped side was to send next, nothing is unacknowledged.
        let settings: Vec<_> = more.into_iter().chain([FAST]).collect();
        let (code, said) = with_stops(20, &["--op", op, "--iters", "100000000"], &settings);
        assert_eq!(code, Some(1), "{op}: {said}");
        let own: Vec<&str> = said.lines().filter(|line| line.starts_with("gdsync: ")).collect();
        assert!(!own.is_empty() && own.iter().all(|line| line.contains("retries exceeded")), "{op}: {said}");
    }
}

#[test]
fn a_pingpong_without_files_for_its_links_ends_and_says_so() {
    if skipped_on_system("a_pingpong_without_files_for_its_links_ends_and_says_so") {
        return;
    }
    let run = |files: u32| {
        let mut command = std::process::Command::new("prlimit");
        let pingpong = gdsync(&["pingpong", "--op", "write", "--iters", "50"]);
        command
            .arg(format!("--nofile={files}:{files}"))
            .arg(pingpong.get_program())
            .args(pingpong.get_args());
        command.env_remove("GDSYNC_LOG").stdout(Stdio::null()).stderr(Stdio::piped());
        let (status, said) = ends(command.spawn().unwrap(), LIMIT, &format!("with {files} files"));
        (status.success(), said)
    };
    let succeeds = |files: u32| {
        let (succeeds, said) = run(files);
        assert!(succeeds || said.contains("oo many open files"), "with {files} files: {said}");
        succeeds
    };
    // The fewest files with which it succeeds are between them.
    let (mut few, mut enough) = (10, 64);
    assert!(!succeeds(few) && succeeds(enough));
    while enough - few > 1 {
        let middle = (few + enough) / 2;
        *(if succeeds(middle) { &mut enough } else { &mut few }) = middle;
    }
    // With a few less, it fails at different places.
    assert!((enough.saturating_sub(5)..few).all(|files| !succeeds(files)), "{enough} are enough");
}

#[test]
fn counts_that_no_machine_reaches_are_refused() {
    for (option, value) in [("--iters", "18446744073709551615"), ("--warmup", "18446744073709551615")] {
        let output = gdsync(&["pingpong", option, value]).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains(value) && said.contains("281474976710656") && said.contains("give fewer"),
            "{said}"
        );
    }
}
