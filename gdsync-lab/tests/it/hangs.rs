//! Soaks whose processes are killed and stopped: all end.

use gdsync_test_support::command::gdsync;
use gdsync_test_support::processes::{children_of, ends, has_sent, is_running, signal};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Much longer than any of these takes, also on a busy machine, and shorter than a hang.
const LIMIT: Duration = Duration::from_secs(60);

fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Child {
    let mut command = gdsync(arguments);
    command.envs(environment.iter().copied()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn workers_of_a_killed_soak_end_at_once() {
    let mut soak = gdsync(&["soak", "--minutes", "30", "--procs", "4", "--links", "8"]);
    let mut soak = soak.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let workers = children_of(soak.id(), 4);
    workers.iter().for_each(|worker| has_sent(*worker, 1));
    // A stopped process ends, too.
    signal(workers[1], libc::SIGSTOP);
    soak.kill().unwrap();
    soak.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while workers.iter().any(|worker| is_running(*worker)) {
        assert!(Instant::now() < deadline, "workers go on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_soak_ends_when_a_worker_is_killed_and_another_stopped() {
    let soak = start(&["soak", "--minutes", "30", "--procs", "3", "--links", "6"], &[]);
    let workers = children_of(soak.id(), 3);
    workers.iter().for_each(|worker| has_sent(*worker, 100));
    signal(workers[2], libc::SIGSTOP);
    signal(workers[1], libc::SIGKILL);
    let (status, said) = ends(soak, LIMIT, "a soak");
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("signal: 9") || said.contains("is gone"), "{said}");
}
