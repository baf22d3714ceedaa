//! Settings in the environment that are not understood: a clear error, never a run without them.

use crate::command::{gdsync, text};
use crate::uverbs::support::{run, soft, tool};
use gdsync_test_support::folder::Folder;
use gdsync_test_support::on_system;
use std::path::Path;

/// Settings, and what is said of them.
const WRONG: [(&str, &str, &str); 11] = [
    (
        "SOFTHCA_CLOCK",
        "21",
        "SOFTHCA_CLOCK is `21`: it is no whole number from 1 to 20: give how many times as fast",
    ),
    (
        "SOFTHCA_FAULTS",
        "drp nth=3",
        "SOFTHCA_FAULTS is `drp nth=3`: fault plan, line 1, column 1, `drp`: a rule begins with drop",
    ),
    (
        "SOFTHCA_LISTEN",
        "localhost",
        "SOFTHCA_LISTEN is `localhost`: `localhost` is not ADDRESS or ADDRESS:PORT",
    ),
    (
        "SOFTHCA_WAITS",
        "on",
        "SOFTHCA_WAITS is `on`: `on` is none of its words, which are off, no-cd and errors-hold",
    ),
    (
        "SOFTHCA_LIBERTIES",
        "1 order",
        "SOFTHCA_LIBERTIES is `1 order`: `order` is none of its words, which are fetch, pieces",
    ),
    ("SOFTHCA_DEVICES", "99", "SOFTHCA_DEVICES is `99`: it is neither a number from 1 to 8 nor a list"),
    (
        "SOFTHCA_FAULT",
        "drop nth=3",
        "SOFTHCA_FAULT is set, but there is no such setting: the settings are SOFTHCA_CLOCK, SOFTHCA_DEVICES",
    ),
    ("SOFTHCA_DEVICE", "", "SOFTHCA_DEVICE is set, but there is no such setting"),
    (
        "SOFTHCA_LISTEN",
        "192.0.2.1",
        "a card at 192.0.2.1:4791 is reached from other hosts, which needs a key",
    ),
    ("SOFTHCA_KEY", "too short", "SOFTHCA_KEY: the key has 9 bytes, and must have 16 to 4096"),
    ("SOFTHCA_KEY_FILE", "/nowhere/key", "SOFTHCA_KEY_FILE: the key file /nowhere/key cannot be read"),
];

#[test]
fn the_command_refuses_them() {
    if on_system() {
        return;
    }
    for (name, value, said) in WRONG {
        for arguments in [
            &["pingpong", "--iters", "10", "--procs", "1"][..],
            &["soak", "--minutes", "0.01"],
            &["bench", "card"],
        ] {
            let output = gdsync(arguments).env(name, value).output().unwrap();
            let message = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
            assert!(message.contains(said) && message.lines().count() == 1, "{arguments:?}: {message}");
        }
        let output = gdsync(&["devices"]).env(name, value).output().unwrap();
        let listing = text(&output.stdout);
        assert!(listing.contains(said) && !listing.contains("softhca0"), "{listing}");
    }
    let output = gdsync(&["devices"]).env("GDSYNC_LOG", "softhca=loud").output().unwrap();
    let message = text(&output.stderr);
    assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
    assert!(message.contains("GDSYNC_LOG is `softhca=loud`"), "{message}");
}

#[test]
fn soft_refuses_them_before_the_command_starts() {
    let temporary = Folder::new("settings");
    let log = ("SOFTHCA_LOG", "softhca=loud", "SOFTHCA_LOG is `softhca=loud`");
    for (name, value, said) in WRONG.into_iter().chain([log]) {
        let mut command = soft("1", Path::new("/bin/echo"), temporary.path());
        command.arg("started").env(name, value);
        let ended = run(command);
        assert_eq!((ended.code, ended.text.lines().count()), (Some(1), 1), "{}", ended.text);
        assert!(ended.text.contains(said) && !ended.text.contains("started"), "{}", ended.text);
    }
    assert_eq!(temporary.content(), 0);
}

#[test]
fn the_preload_library_refuses_them_itself() {
    let Some(tool) = tool("the_preload_library_refuses_them_itself", "ibv_devinfo") else { return };
    let temporary = Folder::new("settings-preload");
    let log = ("SOFTHCA_LOG", "softhca=loud", "SOFTHCA_LOG is `softhca=loud`");
    for (name, value, said) in WRONG.into_iter().chain([log]) {
        // Set where `gdsync soft` does not see it.
        let mut command = soft("1", Path::new("/usr/bin/env"), temporary.path());
        command.arg(format!("{name}={value}")).arg(&tool).args(["-d", "mlx5_0"]);
        let ended = run(command);
        assert!(ended.code.is_some_and(|code| code != 0), "{}", ended.text);
        assert!(
            ended.text.lines().any(|line| line.starts_with("softhca: ") && line.contains(said)),
            "{}",
            ended.text
        );
    }
}
