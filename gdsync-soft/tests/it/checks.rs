//! `gdsync soft --check-use` and `--watch`: who changes, destroys or reads too early is named, and a right program has no
//! finding.

use crate::orders::build_some;
use gdsync_test_support::compiler::Program;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{Ended, run, soft_with};
use gdsync_test_support::root;

const NAMES: [&str; 3] = ["send-reuse", "posted-reuse", "early-destroy"];
/// The check's findings in them.
const FOUND: [&str; 3] = [
    "use of a source buffer: RdmaWrite of 131072 bytes: the program has changed bytes in",
    "use of a source buffer: RdmaWrite of 1024 bytes: the program has changed bytes in",
    "end of an object in use: the queue pair is destroyed while RdmaWrite",
];

/// Runs a program in a search that only has the card acknowledge late, which is no reason for a failure.
fn explored(program: &Program) -> Ended {
    let temporary = Folder::new("checks");
    let options = ["--explore", "--check-use", "--runs", "4", "--kinds", "acknowledgements"];
    run(soft_with(&options, &program.path(), temporary.path()))
}

#[test]
fn what_is_used_too_early_is_named() {
    let Some(programs) = build_some("what_is_used_too_early_is_named", &[], &NAMES) else { return };
    for (program, found) in programs.iter().zip(FOUND) {
        let ended = explored(program);
        assert!(ended.code == Some(1) && ended.text.contains("the command has not failed"), "{}", ended.text);
        assert!(ended.text.contains(found), "{}", ended.text);
    }
    let temporary = Folder::new("checks");
    let schedule = temporary.path().join("schedule");
    std::fs::write(&schedule, "hold 10ms\nacknowledgements\n").unwrap();
    let mut options = vec!["--schedule", schedule.to_str().unwrap(), "--check-use"];
    let ended = run(soft_with(&options, &programs[0].path(), temporary.path()));
    assert!(ended.succeeded().contains(FOUND[0]) && ended.text.contains("found: "), "{}", ended.text);
    options.pop();
    let ended = run(soft_with(&options, &programs[0].path(), temporary.path()));
    assert_eq!(ended.succeeded(), "");
}

#[test]
fn programs_that_wait_use_nothing_too_early() {
    let test = "programs_that_wait_use_nothing_too_early";
    let Some(programs) = build_some(test, &["-DORDERED"], &NAMES) else { return };
    for program in &programs {
        let ended = explored(program);
        assert!(ended.succeeded().contains("nothing was found"), "{}", ended.text);
    }
}

/// Programs that read too early, by what.
const READERS: [(&str, &str); 4] = [
    ("relaxed-flag", "of the 4096 bytes at"),
    ("adaptive-flag", "of the 4096 bytes at"),
    ("read-poll", "for the result of request"),
    ("atomic-result", "of the 8 bytes at"),
];

/// Runs a program on a card that watches, and holds back what it has placed.
fn watched(program: &Program) -> Ended {
    let temporary = Folder::new("checks");
    let schedule = temporary.path().join("schedule");
    std::fs::write(&schedule, "hold 5ms\nrelaxed\nunordered\npieces\natomics\n").unwrap();
    let options = ["--schedule", schedule.to_str().unwrap(), "--watch"];
    run(soft_with(&options, &program.path(), temporary.path()))
}

#[test]
fn who_reads_too_early_is_named() {
    let names = READERS.map(|(name, _)| name);
    let Some(programs) = build_some("who_reads_too_early_is_named", &["-g"], &names) else { return };
    for (program, (name, what)) in programs.iter().zip(READERS) {
        // Most fail, too.
        let text = watched(program).text;
        // The compiler may put one function into another, so it is any of the program's.
        let said =
            text.split("read of what is not there yet: ").nth(1).unwrap_or_else(|| panic!("{name}: {text}"));
        let function = said.split('+').next().unwrap_or_default();
        let sources = [format!("{name}.c"), "peer.h".to_owned()]
            .map(|file| std::fs::read_to_string(root().join("gdsync-soft/tests/orders").join(file)).unwrap());
        assert!(!function.is_empty() && sources.concat().contains(&format!("{function}(")), "{name}: {text}");
        assert!(text.contains(what), "{name}: {text}");
    }
}

#[test]
fn programs_that_wait_read_nothing_too_early() {
    let names = READERS.map(|(name, _)| name);
    let test = "programs_that_wait_read_nothing_too_early";
    let Some(programs) = build_some(test, &["-DORDERED"], &names) else { return };
    for program in &programs {
        assert_eq!(watched(program).succeeded(), "");
    }
}
