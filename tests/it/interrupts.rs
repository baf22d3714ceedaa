//! Runs that the user interrupts: as from a terminal, which sends SIGINT to every process of the run.

use crate::command::{gdsync, row, rows_in, text};
use crate::processes::{as_from_a_terminal, children_of, signal};
use serde_json::Value;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Starts the command in a process group of its own, with SIGINT as a terminal's shell leaves it.
fn start(arguments: &[&str]) -> Child {
    start_command(gdsync(arguments))
}

fn start_command(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    as_from_a_terminal(&mut command).spawn().unwrap()
}

fn interrupt(run: &Child) {
    // SAFETY: no memory is involved; the group is that of a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(-(run.id() as libc::pid_t), libc::SIGINT) }, 0);
}

/// Interrupts a run that has started so many processes, once it is at work.
fn interrupted(arguments: &[&str], processes: usize) -> Output {
    let run = start(arguments);
    // By then it catches the signal.
    children_of(run.id(), processes);
    std::thread::sleep(Duration::from_secs(2));
    interrupt(&run);
    run.wait_with_output().unwrap()
}

#[test]
fn a_pingpong_prints_what_it_has() {
    for op in ["send", "write"] {
        for trigger in ["stream", "cpu"] {
            let arguments =
                ["pingpong", "--op", op, "--trigger", trigger, "--iters", "1000000000", "--warmup", "10"];
            let output = interrupted(&[&arguments[..], &["--json"]].concat(), 1);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(130), "{said}");
            assert_eq!(said, "gdsync: interrupted: what was measured until then has been printed\n");
            let report: Value = row(&output.stdout);
            assert_eq!(
                (&report["interrupted_of"], &report["verified"]),
                (&1_000_000_000.into(), &true.into())
            );
            assert!(report["iterations"].as_u64().unwrap() > 0, "{report}");
            assert!(report["memory_operations_per_iteration"].as_f64().unwrap() >= 3.0, "{report}");
        }
    }
    let output = interrupted(&["pingpong", "--iters", "1000000000"], 1);
    assert!(
        text(&output.stdout).contains(", INTERRUPTED before 1000000000 exchanges\n"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn a_pingpong_that_has_measured_nothing_says_so() {
    let output = interrupted(&["pingpong", "--warmup", "1000000000"], 1);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(130), 0));
    assert_eq!(text(&output.stderr), "gdsync: interrupted before anything was measured\n");
}

#[test]
fn the_second_interrupt_ends_a_run_at_once() {
    let run = start(&["pingpong", "--iters", "1000000000"]);
    let peer = children_of(run.id(), 1)[0];
    std::thread::sleep(Duration::from_millis(500));
    // A stopped side does not agree on an end.
    signal(peer, libc::SIGSTOP);
    interrupt(&run);
    std::thread::sleep(Duration::from_millis(500));
    interrupt(&run);
    let output = run.wait_with_output().unwrap();
    assert_eq!((output.status.signal(), output.stdout.len()), (Some(libc::SIGINT), 0));
}

#[test]
fn a_soak_accounts_for_everything_until_then() {
    let arguments = ["soak", "--minutes", "100", "--procs", "2", "--links", "4", "--faults", "none"];
    let output = interrupted(&arguments, 2);
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{said}\n{out}");
    assert!(out.contains("\nINTERRUPTED after "), "{out}");
    assert!(out.ends_with("\nlost 0, duplicated 0, wrong 0, unaccounted 0, hung 0\n"), "{out}");
    let report = interrupted(&[&arguments[..], &["--json"]].concat(), 2);
    let report: Value = row(&report.stdout);
    assert!(
        report["interrupted_s"].as_f64().unwrap() > 1.0 && report["operations"].as_u64().unwrap() > 0,
        "{report}"
    );
}

#[test]
fn a_benchmark_prints_the_rounds_that_it_has() {
    let run = start(&["bench", "first", "--json"]);
    children_of(run.id(), 1);
    interrupt(&run);
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let rows = rows_in(&output.stdout);
    let rows: Vec<_> = rows.iter().filter(|row| row["on"] == rows[0]["on"]).collect();
    assert!((1..10).contains(&rows[0]["runs"].as_u64().unwrap()) && rows.len() == 1 + 18, "{rows:?}");
}

#[test]
fn a_benchmark_of_one_process_prints_the_rounds_that_it_has() {
    let mut command = gdsync(&["bench", "checked", "--json"]);
    // Some 20 s, of which the interrupt ends the most.
    command.env("SOFTHCA_FAULTS", "delay=2ms every=1");
    let run = start_command(command);
    std::thread::sleep(Duration::from_secs(4));
    interrupt(&run);
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let report = row(&output.stdout);
    assert!(report["what"] == "a software stream" && report["gdsync_us"].as_f64().unwrap() > 0.0, "{report}");
}

#[test]
fn a_network_benchmark_prints_what_it_has() {
    for mode in ["rate", "latency"] {
        let report = interrupted(&["bench", "net", "--mode", mode, "--iters", "1000000000", "--json"], 1);
        assert_eq!(report.status.code(), Some(130), "{}", text(&report.stderr));
        let report = row(&report.stdout);
        assert_eq!((&report["interrupted_of"], &report["verified"]), (&1_000_000_000.into(), &true.into()));
        assert!(report["messages"].as_u64().unwrap() > 0, "{report}");
    }
    let table = interrupted(&["bench", "net", "--iters", "1000000000"], 1);
    let table = text(&table.stdout);
    assert!(table.contains(", INTERRUPTED before 1000000000 messages\n"), "{table}");
}
