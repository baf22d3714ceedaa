//! `gdsync soft --explore` and `--schedule`: the twelve programs of docs/missing-order.md, and the command's own ways.

use crate::orders::{NAMES, build, build_some, wants_all};
use gdsync_test_support::compiler::Program;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::processes::signal;
use gdsync_test_support::programs::{Ended, Running, run, soft};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// `gdsync soft` with these options before its command.
fn with(options: &[&str], program: &Path, temporary: &Folder) -> Command {
    let whole = soft("ib", program, temporary.path());
    let mut command = Command::new(whole.get_program());
    let mut arguments: Vec<_> = whole.get_args().collect();
    let command_at = arguments.iter().position(|argument| *argument == "--").unwrap();
    arguments.splice(command_at..command_at, options.iter().map(AsRef::as_ref));
    command.args(arguments).process_group(0);
    for (name, value) in whole.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env_remove("SOFTHCA_LIBERTIES").env_remove("SOFTHCA_FAULTS").current_dir(temporary.path());
    command
}

fn explore(options: &[&str], program: &Path, temporary: &Folder) -> Ended {
    run(with(&[&["--explore"], options].concat(), program, temporary))
}

/// The programs to explore.
fn chosen(programs: Vec<Program>) -> Vec<(&'static str, Program)> {
    let (some, all) = (["relaxed-flag", "last-byte", "two-queues"], wants_all());
    let named = NAMES.into_iter().zip(programs);
    named.filter(|(name, _)| all || some.contains(name)).collect()
}

#[test]
fn a_missing_order_is_found_named_and_repeated() {
    let Some(programs) = build("a_missing_order_is_found_named_and_repeated", &[]) else { return };
    for (name, program) in chosen(programs) {
        let temporary = Folder::new("explore");
        let ended = explore(&["--minutes", "1"], &program.path(), &temporary);
        assert_eq!(ended.code, Some(1), "{name}: {}", ended.text);
        let text = &ended.text;
        let parts = [
            "the command fails where the card ",
            "Orders that would: ",
            "Breaks on: ",
            "Repeat: gdsync soft",
        ];
        assert!(parts.iter().all(|part| text.contains(part)), "{name}: {text}");
        let schedule = std::fs::read_to_string(temporary.path().join("missing-order.txt")).unwrap();
        assert!(schedule.lines().count() < 12, "{name} is shrunk: {schedule}");
        // A program that fails by the time that it takes fails nearly always.
        let repeat = || run(with(&["--schedule", "missing-order.txt"], &program.path(), &temporary)).code;
        assert!((0..5).any(|_| repeat() == Some(1)), "{name} fails under {schedule}");
        std::fs::remove_file(temporary.path().join("missing-order.txt")).unwrap();
        assert_eq!(temporary.content(), 0, "{name}");
    }
}

#[test]
fn absent_kinds_are_refused_and_what_was_found_is_printed_though_its_file_cannot_be_written() {
    let test = "absent_kinds_are_refused_and_what_was_found_is_printed_though_its_file_cannot_be_written";
    let Some(programs) = build_some(test, &[], &["relaxed-flag"]) else { return };
    let temporary = Folder::new("explore-unwritable");
    let ended = explore(&["--kinds", "atomics"], &programs[0].path(), &temporary);
    assert_eq!(ended.code, Some(2), "{}", ended.text);
    assert!(ended.text.contains("it leaves the card no choice of the kinds atomics"), "{}", ended.text);
    let ended = explore(&["--output", "/nowhere/found"], &programs[0].path(), &temporary);
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    for part in ["the command fails where the card ", "cannot write /nowhere/found: "] {
        assert!(ended.text.contains(part), "{}", ended.text);
    }
    assert_eq!(temporary.content(), 0);
}

#[test]
fn nothing_is_found_in_a_program_that_has_the_order() {
    let test = "nothing_is_found_in_a_program_that_has_the_order";
    let Some(programs) = build(test, &["-DORDERED"]) else { return };
    for (name, program) in chosen(programs) {
        let temporary = Folder::new("explore-right");
        let ended = explore(&["--runs", "10", "--json"], &program.path(), &temporary);
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.text);
        let printed: Value = serde_json::from_str(&ended.text).unwrap();
        let result = &printed["rows"][0];
        assert!(result["found"].is_null(), "{name}: {result}");
        assert_eq!((&result["runs"], &result["stopped"]), (&10.into(), &false.into()));
        assert!(result["decisions"]["fetch"].as_u64() > Some(0), "{name}: {result}");
        assert_eq!(temporary.content(), 0, "{name}");
    }
}

#[test]
fn faults_to_which_a_plan_gives_chances_are_decisions() {
    let test = "faults_to_which_a_plan_gives_chances_are_decisions";
    let Some(wrong) = build_some(test, &[], &["send-reuse"]) else { return };
    let Some(right) = build_some(test, &["-DORDERED"], &["send-reuse"]) else { return };
    let temporary = Folder::new("explore-faults");
    // By chance the program would hardly pass.
    let plan = ["--faults", "drop p=0.9", "--kinds", "drop"];
    let ended = explore(&plan, &wrong[0].path(), &temporary);
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    for part in [
        "the command fails where the card drops packet ",
        "Repeat: gdsync soft --faults 'seed=0; drop p=0.9' ",
    ] {
        assert!(ended.text.contains(part), "{}", ended.text);
    }
    let file = temporary.path().join("missing-order.txt");
    let schedule = std::fs::read_to_string(&file).unwrap();
    assert!(schedule.contains("faults drop\ndrop in ") && schedule.lines().count() < 12, "{schedule}");
    for more in [&[][..], &plan[..2]] {
        let options = [more, &["--schedule", "missing-order.txt"]].concat();
        let repeat = || run(with(&options, &wrong[0].path(), &temporary)).code;
        assert!((0..5).any(|_| repeat() == Some(1)), "{more:?}: it fails under {schedule}");
    }
    std::fs::remove_file(file).unwrap();
    let ended = explore(&[&plan[..], &["--runs", "6", "--json"]].concat(), &right[0].path(), &temporary);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    let printed: Value = serde_json::from_str(&ended.text).unwrap();
    assert!(printed["rows"][0]["decisions"]["drop"].as_u64() > Some(0), "{printed}");
    assert_eq!(temporary.content(), 0);
}

#[test]
fn what_cannot_be_explored_is_refused() {
    let temporary = Folder::new("explore-refused");
    for (program, why) in [
        ("/bin/false", "it fails on a prompt and orderly card, too: status 1; its last line is: no output"),
        ("/bin/true", "no card of the job has decided anything: does it use the software card?"),
    ] {
        let ended = explore(&[], Path::new(program), &temporary);
        assert_eq!(ended.code, Some(2), "{}", ended.text);
        assert!(ended.text.contains(why), "{}", ended.text);
    }
    let ended = explore(&["--expect", "done"], Path::new("/bin/true"), &temporary);
    assert!(ended.text.contains("its output lacks `done`"), "{}", ended.text);
    let ended = explore(&[], Path::new("/nowhere"), &temporary);
    assert!(ended.code == Some(1) && ended.text.contains("/nowhere: "), "{}", ended.text);
    for (text, why) in
        [("order", "line 1: `order` is none of its words"), ("hold 2s", "no time from 1us to 1000ms")]
    {
        std::fs::write(temporary.path().join("s"), text).unwrap();
        let ended = run(with(&["--schedule", "s"], Path::new("/bin/true"), &temporary));
        assert!(ended.code == Some(1) && ended.text.contains(why), "{}", ended.text);
    }
    let ended = run(with(&["--schedule", "absent"], Path::new("/bin/true"), &temporary));
    assert!(ended.code == Some(1) && ended.text.contains("absent: "), "{}", ended.text);
}

#[test]
fn a_signal_ends_the_search_which_says_what_it_has() {
    let test = "a_signal_ends_the_search_which_says_what_it_has";
    let Some(programs) = build(test, &["-DORDERED"]) else { return };
    let temporary = Folder::new("explore-signal");
    let search = Running::start(with(&["--explore", "--minutes", "10"], &programs[7].path(), &temporary));
    let began = Instant::now();
    // The journals of a run show that the search is on its way.
    let is_running = || {
        let runs = std::fs::read_dir(temporary.path()).unwrap();
        runs.flatten()
            .any(|run| run.path().join("job/journals").read_dir().is_ok_and(|mut all| all.next().is_some()))
    };
    while !is_running() {
        assert!(began.elapsed() < Duration::from_secs(20), "no run has begun");
        std::thread::yield_now();
    }
    signal(search.child.id(), libc::SIGTERM);
    let ended = search.end();
    assert_eq!(ended.code, Some(128 + libc::SIGTERM), "{}", ended.text);
    assert!(ended.text.contains("nothing was found before the end was asked for"), "{}", ended.text);
    assert_eq!(temporary.content(), 0);
}
