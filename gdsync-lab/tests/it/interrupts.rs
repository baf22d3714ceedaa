//! Runs interrupted by the user: a terminal sends SIGINT to every process of the run.

use gdsync_test_support::command::{gdsync, row, rows_in, text};
use gdsync_test_support::processes::{AT_WORK, children_of, ends, has_sent, interrupt, start, start_command};
use serde_json::Value;
use std::io::Read;
use std::process::Output;
use std::time::Duration;

/// Interrupts a soak while its two workers are working.
fn interrupted_soak(arguments: &[&str]) -> Output {
    let run = start(arguments);
    children_of(run.id(), 2).into_iter().for_each(|worker| has_sent(worker, AT_WORK));
    interrupt(&run);
    run.wait_with_output().unwrap()
}

#[test]
fn a_soak_accounts_for_everything_until_then() {
    let arguments = ["soak", "--minutes", "100", "--procs", "2", "--links", "4", "--faults", "none"];
    let output = interrupted_soak(&arguments);
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{said}\n{out}");
    assert!(out.contains("\nINTERRUPTED after "), "{out}");
    assert!(out.ends_with("\nlost 0, duplicated 0, wrong 0, unaccounted 0, hung 0\n"), "{out}");
    let report = interrupted_soak(&[&arguments[..], &["--json"]].concat());
    let report: Value = row(&report.stdout);
    assert!(
        report["interrupted_s"].as_f64().unwrap() > 0.0 && report["operations"].as_u64().unwrap() > 0,
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
    assert!((1..10).contains(&rows[0]["runs"].as_u64().unwrap()) && rows.len() == 1 + 17, "{rows:?}");
}

#[test]
fn a_benchmark_of_one_process_prints_the_rounds_that_it_has() {
    let mut command = gdsync(&["bench", "checked", "--json"]);
    // Some 10 s, most of which the interrupt saves.
    command.env("SOFTHCA_FAULTS", "delay=500us every=1");
    let run = start_command(command);
    // The 200 warm-up rounds are two writes each, and their acknowledgements.
    has_sent(run.id(), 1200);
    interrupt(&run);
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let report = row(&output.stdout);
    assert!(report["what"] == "a software stream" && report["gdsync_us"].as_f64().unwrap() > 0.0, "{report}");
}

/// Runs whose first round would take hours.
#[test]
fn a_round_under_way_ends_soon() {
    for words in [
        &["alltoall"][..],
        &["alltoall", "--ranks", "3"],
        &["persistent"],
        &["exchange", "--procs", "1"],
        &["exchange", "--procs", "2"],
    ] {
        let run = start(&[&["bench"], words, &["--iters", "1000000000", "--json"]].concat());
        has_sent(run.id(), AT_WORK);
        interrupt(&run);
        let mut run = run;
        let mut stdout = run.stdout.take().unwrap();
        let (status, said) = ends(run, Duration::from_secs(120), &words.join(" "));
        assert_eq!(status.code(), Some(130), "{words:?}: {said}");
        let mut printed = Vec::new();
        stdout.read_to_end(&mut printed).unwrap();
        for row in rows_in(&printed) {
            let ours = row["gdsync_us"].as_f64().or(row["rust_us"].as_f64());
            assert!(ours.is_some_and(|time| time > 0.0), "{words:?}: {row}");
        }
    }
}

#[test]
fn a_simulation_says_what_it_has_performed() {
    let run = start(&["simulate", "--iters", "1e15", "--jobs", "1"]);
    let catches = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", run.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim();
        u64::from_str_radix(caught, 16).unwrap() & 1 << (2 - 1) != 0
    };
    while !catches() {
        std::thread::yield_now();
    }
    interrupt(&run);
    let output = run.wait_with_output().unwrap();
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(out.contains(" operations in ") && out.contains("; hash "), "{out}");
    let [first, last] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert!(first.starts_with("gdsync: interrupted: the run ends after what is under way"), "{said}");
    assert_eq!(last, "gdsync: interrupted: what was measured until then has been printed");
}
