//! Conventions of commands besides their results: help, completions, manual pages, colours.

use gdsync_test_support::command::{gdsync, run, succeeds, text};
use gdsync_test_support::folder::Folder;
use gdsync_test_support::terminal::printed;

/// Child processes of commands, hidden from users.
const INTERNAL: [&str; 8] = [
    "pingpong-peer",
    "net-peer",
    "bench-first",
    "bench-scale",
    "soak-worker",
    "exchange-peer",
    "soft-watch",
    "run-watch",
];
const COMMANDS: [&str; 16] = [
    "doctor",
    "devices",
    "pingpong",
    "bench",
    "run",
    "soft",
    "top",
    "trace",
    "explain",
    "accept",
    "sanity",
    "copybw",
    "copylat",
    "lab",
    "completions",
    "man",
];
/// Commands of commands.
const INNER: [&str; 4] = ["bench-net", "lab-bench", "lab-soak", "lab-simulate"];

#[test]
fn the_name_alone_prints_the_commands_that_matter() {
    let brief = succeeds(&[]);
    assert_eq!(brief.lines().count(), 9, "{brief}");
    assert!(brief.contains("gdsync doctor") && brief.contains("gdsync help"), "{brief}");
}

#[test]
fn completions_have_every_command_and_no_internal_one() {
    for shell in ["bash", "zsh", "fish"] {
        let script = succeeds(&["completions", shell]);
        assert!(COMMANDS.iter().all(|command| script.contains(command)), "{shell}");
        assert!(!INTERNAL.iter().any(|name| script.contains(name)), "{shell}");
        assert!(script.contains("turnaround") && script.contains("stand-in"), "values of options: {shell}");
    }
}

#[test]
fn help_lists_what_users_need_first_and_maintainers_work_under_lab() {
    let help = succeeds(&["help"]);
    let listed: Vec<&str> =
        help.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    let listed: Vec<&str> =
        listed.into_iter().filter(|word| !word.is_empty() && !word.starts_with('-')).collect();
    assert_eq!(listed[..COMMANDS.len()], COMMANDS, "{help}");
    let lab = succeeds(&["help", "lab"]);
    assert!(["bench", "soak", "simulate"].iter().all(|verb| lab.contains(&format!("\n  {verb} "))), "{lab}");
    assert!(succeeds(&["help", "lab", "bench"]).contains("overlap"));
    assert!(!succeeds(&["help", "bench"]).contains("overlap"));
    // As before, without `lab`.
    let [short, long] = [&["simulate"][..], &["lab", "simulate"]]
        .map(|verb| succeeds(&[verb, &["--iters", "100", "--seed", "3"]].concat()));
    assert_eq!(short, long);
}

#[test]
fn bash_completes_commands_and_values() {
    let folder = Folder::new("completions");
    let script = folder.path().join("gdsync");
    std::fs::write(&script, succeeds(&["completions", "bash"])).unwrap();
    for (words, expected) in [
        ("gdsync pi", "pingpong\n"),
        ("gdsync pingpong --op wr", "write\nwrite-imm\n"),
        ("gdsync so", "soft\n"),
        ("gdsync lab s", "soak\nsimulate\n"),
        ("gdsync bench ne", "net\n"),
        ("gdsync bench net --mode la", "latency\n"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let list = words.join(" ");
        let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
        let ask = format!(
            "source {}; COMP_WORDS=({list}); COMP_CWORD={}; _gdsync gdsync '{last}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display(),
            words.len() - 1
        );
        let output = std::process::Command::new("bash").args(["-c", &ask]).output().unwrap();
        assert_eq!(text(&output.stdout), expected, "{words:?}: {}", text(&output.stderr));
    }
}

#[test]
fn manual_pages_say_how_a_command_ends() {
    let folder = Folder::new("manual");
    succeeds(&["man", "--all", folder.path().to_str().unwrap()]);
    let pages: Vec<String> =
        COMMANDS.iter().chain(&INNER).map(|command| format!("gdsync-{command}.1")).collect();
    for page in pages.iter().map(String::as_str).chain(["gdsync.1"]) {
        let said = std::fs::read_to_string(folder.path().join(page)).unwrap().replace("\\-", "-");
        for section in
            [".TH gdsync", ".SH NAME", ".SH SYNOPSIS", "EXIT STATUS", ".SH ENVIRONMENT", ".SH EXAMPLES"]
        {
            assert!(said.contains(section), "{page} has no {section}:\n{said}");
        }
        assert!(!INTERNAL.iter().any(|name| said.contains(name)), "{page}");
    }
    assert_eq!(folder.content(), pages.len() + 1);
    let page = succeeds(&["man", "soft"]);
    assert_eq!(page, std::fs::read_to_string(folder.path().join("gdsync-soft.1")).unwrap());
    assert!(page.contains("127"), "{page}");
    assert!(succeeds(&["man"]).contains("gdsync\\-pingpong(1)"));
}

#[test]
fn colors_are_for_terminals() {
    let colored = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command = gdsync(arguments);
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
            command.env_remove(name);
        }
        let output = command.envs(variables.iter().copied()).output().unwrap();
        [output.stdout, output.stderr].concat().contains(&0x1b)
    };
    for arguments in [&["doctor"][..], &["doctor", "--root", "/nowhere/at/all"], &["flood"], &["help"]] {
        assert!(!colored(&[], arguments), "{arguments:?} into a pipe");
        assert!(colored(&[("CLICOLOR_FORCE", "1")], arguments), "{arguments:?} where it is asked for");
        let both = [("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")];
        assert!(!colored(&both, arguments), "{arguments:?} where it is forbidden");
    }
    assert!(!colored(&[("CLICOLOR_FORCE", "1")], &["doctor", "--json"]), "JSON has no colors");
}

#[test]
fn a_terminal_of_80_columns_has_room_for_help_tables_and_mistakes() {
    let pingpong = ["pingpong", "--procs", "1", "--iters", "20"];
    for arguments in [
        &["help"][..],
        &["help", "bench", "net"],
        &["soft", "--help"],
        &["pingpong", "--size", "-1"],
        &["doctor"],
        &["devices"],
        &["explain", "--example", "halo"],
        &pingpong,
    ] {
        let seen = printed(80, arguments);
        let wide: Vec<&str> = seen.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty() && !seen.is_empty(), "{arguments:?}: {wide:#?}");
    }
    let seen = printed(80, &pingpong);
    let titles = seen.lines().find(|line| line.starts_with("SIZE")).unwrap();
    assert!(titles.contains("P99 µs") && !titles.contains("MEMOPS"), "{seen}");
    assert!(seen.contains("(80 columns leave out MEMOPS/ITER, "), "{seen}");
    assert!(printed(200, &pingpong).contains("MEMOPS/ITER"));
}

#[test]
fn sizes_are_understood_in_every_spelling() {
    let sizes = ["4K", "4k", "4KiB", "4096"].map(|size| {
        let arguments = ["pingpong", "--procs", "1", "--iters", "5", "--size", size];
        let table = succeeds(&arguments);
        table.lines().nth(2).unwrap().split("  ").next().unwrap().to_owned()
    });
    assert_eq!(sizes, ["4 KiB"; 4]);
    assert_eq!(run(&["copylat", "--stand-in", "--max-size", "4kB"]).status.code(), Some(0));
}
