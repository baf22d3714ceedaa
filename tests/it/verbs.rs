//! Verbs whose programs are next to the command, on PATH, or missing.

use gdsync_test_support::command::{error_in, program, text};
use gdsync_test_support::folder::Folder;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Verbs of other programs, with valid arguments.
const ELSEWHERE: [(&str, &[&str]); 8] = [
    ("gdsync-lab", &["bench", "card"]),
    ("gdsync-lab", &["soak", "--minutes", "1"]),
    ("gdsync-lab", &["copybw"]),
    ("gdsync-lab", &["copylat"]),
    ("gdsync-lab", &["sanity"]),
    ("gdsync-lab", &["man"]),
    ("gdsync-soft", &["soft", "--", "true"]),
    ("gdsync-top", &["top", "--once"]),
];

/// The command alone in a folder, with that folder as PATH.
struct Alone(Folder);

impl Alone {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        // Copied by a separate process: a file that this process writes is busy while another test forks.
        let copied = Command::new("cp").arg(program("gdsync")).arg(folder.path()).status().unwrap();
        assert!(copied.success());
        Alone(folder)
    }

    fn run(&self, path: &Path, arguments: &[&str]) -> Output {
        Command::new(self.0.path().join("gdsync")).args(arguments).env("PATH", path).output().unwrap()
    }

    /// Adds a program to `folder` that prints its name and its arguments.
    fn add(folder: &Path, name: &str) {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\necho {name}: \"$@\"\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn a_verb_that_is_not_installed_is_one_line_with_the_command_that_installs_it() {
    let alone = Alone::new("verbs-missing");
    for (tool, arguments) in ELSEWHERE {
        let output = alone.run(alone.0.path(), arguments);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{arguments:?}: {said}");
        let remedy = format!("`cargo install --locked --path {tool}`");
        assert!(said.starts_with(&format!("gdsync: {tool} is not installed")), "{arguments:?}: {said}");
        assert!(said.contains(&remedy) && said.lines().count() == 1, "{arguments:?}: {said}");
        // Wrong usage is reported before that, as everywhere.
        let wrong = alone.run(alone.0.path(), &[arguments[0], "--no-such-option"]);
        assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong.stderr));
    }
    let output = alone.run(alone.0.path(), &["bench", "card", "--json"]);
    assert!(error_in(&output.stdout).contains("gdsync-lab is not installed"), "{}", text(&output.stdout));
    // A plot needs the program that draws, and nothing is measured without it.
    let output = alone.run(alone.0.path(), &["pingpong", "--plot", "x.svg", "--iters", "100000000"]);
    assert!(text(&output.stderr).contains("gdsync-lab is not installed"), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn help_completions_and_pages_list_the_verbs_that_are_installed() {
    let alone = Alone::new("verbs-listed");
    let listed = |words: &[&str]| text(&alone.run(alone.0.path(), words).stdout);
    let all = [&["help"][..], &["completions", "bash"]];
    for words in all {
        let said = listed(words);
        assert!(said.contains("pingpong") && said.contains("bench"), "{words:?}: {said}");
        assert!(!said.contains("copybw") && !said.contains("sanity"), "{words:?}: {said}");
    }
    Alone::add(alone.0.path(), "gdsync-lab");
    for words in all {
        let said = listed(words);
        assert!(
            said.contains("copybw") && said.contains("lab") && said.contains("sanity"),
            "{words:?}: {said}"
        );
    }
}

#[test]
fn a_verb_is_performed_by_the_program_beside_the_command_or_on_path() {
    let (alone, elsewhere) = (Alone::new("verbs-found"), Folder::new("verbs-path"));
    let path = std::env::join_paths([elsewhere.path(), Path::new("/bin")]).unwrap();
    let said = |arguments: &[&str]| {
        let output = alone.run(Path::new(&path), arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    for tool in ["gdsync-lab", "gdsync-soft", "gdsync-top", "gdsync-another"] {
        Alone::add(elsewhere.path(), tool);
    }
    for (tool, arguments) in ELSEWHERE {
        assert_eq!(said(arguments), format!("{tool}: {}\n", arguments.join(" ")));
    }
    // A third-party program.
    assert_eq!(said(&["another", "--word", "x"]), "gdsync-another: another --word x\n");
    // The program next to the command takes precedence.
    let path = alone.0.path().join("gdsync-top");
    fs::write(&path, "#!/bin/sh\necho beside\n").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(said(&["top", "--once"]), "beside\n");
    // A word that is not a program's name is wrong usage.
    let output = alone.run(Path::new("/bin"), &["flood"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}
