//! Unknown or malformed settings in the environment: a clear error, never a run without them.

use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{run, soft, soft_with, tool};
use gdsync_test_support::settings::WRONG;
use std::path::Path;

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
fn soft_refuses_partition_keys_without_an_infiniband_port() {
    let temporary = Folder::new("settings-pkeys");
    for (devices, code) in [("roce", 1), ("ib,roce", 0)] {
        let mut command = soft(devices, Path::new("/bin/true"), temporary.path());
        // The option counts, not the variable.
        command.env("SOFTHCA_PKEYS", "0xffff,0x8001").env("SOFTHCA_DEVICES", "roce");
        let ended = run(command);
        assert_eq!(ended.code, Some(code), "{devices}: {}", ended.text);
        let is_said =
            ended.text.contains("SOFTHCA_PKEYS") && ended.text.contains("no device has an InfiniBand port");
        assert_eq!(is_said, code == 1, "{devices}: {}", ended.text);
    }
    assert_eq!(temporary.content(), 0);
}

#[test]
fn soft_refuses_a_schedule_and_liberties_together_unless_an_option_chooses() {
    let temporary = Folder::new("settings-schedule");
    let schedule = temporary.path().join("schedule");
    std::fs::write(&schedule, "fetch").unwrap();
    let script = "echo \"${SOFTHCA_SCHEDULE-no schedule}, ${SOFTHCA_LIBERTIES-no liberties}\"";
    let with = |options: &[&str], variables: &[(&str, &Path)]| {
        let mut command = soft_with(options, Path::new("/bin/sh"), temporary.path());
        command.args(["-c", script]).envs(variables.iter().copied());
        run(command)
    };
    let [seven, file] = [Path::new("7"), &schedule];
    let (liberties, scheduled) = (("SOFTHCA_LIBERTIES", seven), ("SOFTHCA_SCHEDULE", file));
    let ended = with(&[], &[liberties, scheduled]);
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    assert!(
        ended.text.contains("SOFTHCA_LIBERTIES is set, too: a card follows one of them"),
        "{}",
        ended.text
    );
    let ended = with(&["--liberties", "8"], &[scheduled]);
    assert_eq!((ended.code, ended.text.trim()), (Some(0), "no schedule, 8"));
    let ended = with(&["--schedule", file.to_str().unwrap()], &[liberties]);
    let expected = format!("{}, no liberties", file.canonicalize().unwrap().display());
    assert_eq!((ended.code, ended.text.trim()), (Some(0), &*expected));
    let ended = with(&["--explore", "--runs", "1", "--expect", "no liberties"], &[liberties]);
    assert!(ended.text.contains("no card of the job has decided anything"), "{}", ended.text);
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
