//! `gdsync run`: output by rank, the first cause of a failure, and no process left, however the launcher ends.

use gdsync::{Device, ProtectionDomain};
use gdsync_notify::bootstrap::{Bootstrap, BootstrapError, Job};
use gdsync_notify::{Team, TeamConfig};
use gdsync_test_support::command::{gdsync, run, text};
use gdsync_test_support::process::{arguments, role};
use gdsync_test_support::processes::{children_of, is_running, signal, start};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout};
use std::time::{Duration, Instant};

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The arguments of a run of so many ranks of a shell's script.
fn of_script<'a>(ranks: &'a str, script: &'a str) -> [&'a str; 7] {
    ["run", "-n", ranks, "--", "sh", "-c", script]
}

/// Starts such a run, and reads a line of each of its two ranks, which is returned without the rank.
fn started(script: &str) -> (Child, BufReader<ChildStdout>, [String; 2]) {
    let mut launcher = start(&of_script("2", script));
    let mut output = BufReader::new(launcher.stdout.take().unwrap());
    let mut lines = [String::new(), String::new()];
    for _ in 0..2 {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let (rank, rest) = line.trim_end().split_once(' ').unwrap();
        rest.clone_into(&mut lines[usize::from(rank == "[1]")]);
    }
    assert!(lines.iter().all(|line| !line.is_empty()), "{lines:?}");
    (launcher, output, lines)
}

pub(crate) fn have_ended(processes: &[u32]) {
    let deadline = Instant::now() + LONG;
    while let Some(left) = processes.iter().find(|process| is_running(**process)) {
        assert!(Instant::now() < deadline, "process {left} is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn lines_are_whole_and_have_their_rank() {
    let script = "i=0; while [ $i -lt 300 ]; do printf '%s of' $GDSYNC_RANK; echo \" $GDSYNC_SIZE: $i\"; i=$((i+1)); done; \
                  echo oops >&2; printf \"$GDSYNC_JOB${GDSYNC_ROOT-}\"";
    let output =
        gdsync(&of_script("3", script)).env("GDSYNC_RANK", "9").env("GDSYNC_ROOT", "x:1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    let mut jobs = Vec::new();
    for rank in 0..3 {
        let prefix = format!("[{rank}] ");
        let own: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        let expected: Vec<String> = (0..300).map(|i| format!("{rank} of 3: {i}")).collect();
        assert_eq!(own[..300], expected);
        jobs.extend_from_slice(&own[300..]);
    }
    assert_eq!(said.lines().count(), 3 * 301);
    assert!(jobs.len() == 3 && jobs[0].len() > 10 && jobs.iter().all(|job| *job == jobs[0]), "{jobs:?}");
    let mut errors: Vec<String> = text(&output.stderr).lines().map(str::to_owned).collect();
    errors.sort();
    assert_eq!(errors, ["[0] oops", "[1] oops", "[2] oops"]);
    // Another run is another job.
    let other = text(&run(&of_script("1", "echo $GDSYNC_JOB")).stdout);
    assert_ne!(other.trim_end(), format!("[0] {}", jobs[0]));
}

#[test]
fn output_that_is_read_late_is_whole() {
    // 60 KB of each rank fit its pipe, so the ranks end. The launcher's own pipe has room for 64 KiB of all.
    let script = "i=0; while [ $i -lt 1500 ]; do printf '%039d\\n' $i; i=$((i+1)); done";
    let mut launcher = start(&of_script("2", script));
    // Longer than output may be silent.
    std::thread::sleep(Duration::from_millis(3500));
    let mut said = String::new();
    launcher.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(launcher.wait().unwrap().success());
    assert_eq!(said.lines().count(), 3000);
}

#[test]
fn the_first_failure_is_told_and_ends_the_others() {
    for (how, code, told) in [
        ("echo boom >&2; echo >&2; exit 3", 3, "exit status: 3); its last line of standard error: boom"),
        ("kill -SEGV $$", 139, "signal: 11 (SIGSEGV)); it wrote nothing to standard error"),
    ] {
        let script = format!("[ $GDSYNC_RANK = 1 ] || {{ echo other >&2; sleep 1000; }}; {how}");
        let output = run(&of_script("3", &script));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        let last = format!("gdsync: rank 1 was the first to fail ({told}");
        assert_eq!(said.lines().last(), Some(last.as_str()), "{said}");
    }
}

/// Ranks that ignore SIGTERM, their children, and the children that a successful rank leaves.
#[test]
fn what_does_not_end_by_itself_is_killed() {
    let script = "trap '' TERM; sleep 1000 & echo $!; read line < /dev/null; [ $GDSYNC_RANK = 0 ] && sleep 1000; exit 7";
    let (mut launcher, _output, pids) = started(script);
    assert_eq!(launcher.wait().unwrap().code(), Some(7));
    have_ended(&pids.map(|pid| pid.parse().unwrap()));
    let (mut launcher, _output, pids) = started("sleep 1000 & echo $!");
    assert!(launcher.wait().unwrap().success());
    have_ended(&pids.map(|pid| pid.parse().unwrap()));
}

#[test]
fn signals_are_passed_on() {
    let script = "trap 'echo caught; exit 0' INT; echo ready; while :; do sleep 0.01; done";
    let (mut launcher, mut output, _) = started(script);
    signal(launcher.id(), libc::SIGINT);
    let mut said = String::new();
    output.read_to_string(&mut said).unwrap();
    assert_eq!(said.matches("caught\n").count(), 2, "{said}");
    assert!(launcher.wait().unwrap().success());

    let (launcher, _output, _) = started("echo ready; exec sleep 1000");
    signal(launcher.id(), libc::SIGTERM);
    let output = launcher.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{said}");
    assert!(said.starts_with("gdsync: signal 15 was passed on to all ranks; rank "), "{said}");

    // The second interrupt ends ranks that ignore the first.
    let (mut launcher, _output, pids) = started("trap '' INT; echo $$; sleep 1000 & wait; sleep 1000");
    signal(launcher.id(), libc::SIGINT);
    gdsync_test_support::processes::has_taken(launcher.id(), libc::SIGINT);
    signal(launcher.id(), libc::SIGINT);
    assert_eq!(launcher.wait().unwrap().code(), Some(137));
    have_ended(&pids.map(|pid| pid.parse().unwrap()));
}

#[test]
fn a_killed_launcher_leaves_no_process() {
    let (mut launcher, _output, pids) = started("trap '' TERM HUP; sleep 1000 & echo $!; wait; sleep 1000");
    // The ranks and the watcher.
    let mut all = children_of(launcher.id(), 3);
    all.extend(pids.map(|pid| pid.parse::<u32>().unwrap()));
    assert_eq!(all.len(), 5);
    launcher.kill().unwrap();
    assert_eq!(launcher.wait().unwrap().signal(), Some(libc::SIGKILL));
    have_ended(&all);
}

#[test]
fn a_program_that_is_not_there_is_told() {
    let output = run(&["run", "-n", "2", "--", "/nowhere/at/all"]);
    let told = "gdsync: /nowhere/at/all: No such file or directory (os error 2)\n";
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(127), told));
}

/// A team on software cards: this test is the program of its ranks, too.
#[test]
fn ranks_are_a_team() {
    if role().is_none() {
        let mut launcher = gdsync(&["run", "-n", "4", "--"]);
        let words = arguments(module_path!(), "ranks_are_a_team");
        launcher.arg(std::env::current_exe().unwrap()).args(words);
        let output = launcher.env(gdsync_test_support::process::ROLE, "rank").output().unwrap();
        let said = text(&output.stdout);
        assert!(output.status.success(), "{said}{}", text(&output.stderr));
        for rank in 0..4 {
            let told = format!("[{rank}] notified by rank {}\n", (rank + 3) % 4);
            assert!(said.contains(&told), "{said}");
        }
        return;
    }
    println!("\nnotified by rank {}", play_ring());
}

/// Notifies the next rank of a team on software cards, and returns the rank that has notified this one.
pub(crate) fn play_ring() -> u32 {
    let job = Job::from_env().unwrap();
    let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
    let team = Team::new(&pd, Bootstrap::join(&job, LONG).unwrap(), TeamConfig::default()).unwrap();
    let segment = team.allocate(64, 1).unwrap();
    let queue = team.queue(0).unwrap();
    let next = (team.rank() + 1) % team.size();
    queue.write_notify(&segment.slice(..32).unwrap(), next, &segment, 32, 0, team.rank() + 1).unwrap();
    let id = segment.notify_waitsome(0..1, LONG).unwrap().unwrap();
    let notified_by = segment.notify_reset(id).unwrap() - 1;
    queue.flush(LONG).unwrap();
    team.barrier().unwrap();
    notified_by
}

#[test]
fn a_program_without_a_launcher_is_told_how_to_start() {
    let said = BootstrapError::NoLauncher.to_string();
    for word in
        ["gdsync run -n", "GDSYNC_RANK", "GDSYNC_SIZE", "GDSYNC_JOB", "GDSYNC_ROOT", "GDSYNC_KEY_FILE"]
    {
        assert!(said.contains(word), "{said}");
    }
}
