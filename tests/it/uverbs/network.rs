//! What the card's environment changes: faults, and a network between hosts. `-c` checks the data.

use crate::uverbs::support::{Pair, run, soft, tool};
use gdsync_test_support::folder::Folder;
use std::path::Path;

const FAULTS: &str =
    "seed=3; drop p=0.02; duplicate p=0.02; delay=200us p=0.02; rnr every=50; late=300us every=40";

/// Runs the tool as server and client with more in its environment.
fn succeeds_with(test: &str, name: &str, environment: &[&str], devices: &str, arguments: &[&str]) {
    let Some(tool) = tool(test, name) else { return };
    let temporary = Folder::new(test);
    let mut program = vec![Path::new("/usr/bin/env")];
    program.extend(environment.iter().map(Path::new));
    program.push(&tool);
    for ended in Pair::start_after(&program, devices, arguments, temporary.path(), || {}).end() {
        assert_eq!(ended.code, Some(0), "{name} {arguments:?} with {environment:?}: {}", ended.text);
    }
}

#[test]
fn programs_get_over_faults() {
    let faults = format!("SOFTHCA_FAULTS={FAULTS}");
    succeeds_with("faults_rc", "ibv_rc_pingpong", &[&faults], "ib", &["-n", "300", "-c"]);
    for more in [&["-c", "DC"][..], &["-c", "XRC"], &["--use-srq"]] {
        let arguments = [more, &["-s", "4096", "-n", "300"]].concat();
        succeeds_with("faults_shared", "ib_send_bw", &[&faults], "ib", &arguments);
    }
}

#[test]
fn programs_speak_over_tcp_with_and_without_faults() {
    let faults = format!("SOFTHCA_FAULTS={FAULTS}");
    let listen = "SOFTHCA_LISTEN=127.83.210.1:48300,127.83.210.2:48300";
    for environment in [&[listen][..], &[listen, &faults]] {
        succeeds_with("tcp_rc", "ibv_rc_pingpong", environment, "roce", &["-g", "3", "-n", "300", "-c"]);
    }
    let ud = ["-g", "1", "-n", "300", "-s", "1024", "-c"];
    succeeds_with("tcp_ud", "ibv_ud_pingpong", &[listen], "roce", &ud);
}

#[test]
fn soft_passes_a_plan_on_and_names_what_is_wrong_with_it() {
    let temporary = Folder::new("plan");
    let with = |plan: &str| {
        let mut command = soft("1", Path::new("/bin/sh"), temporary.path());
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        command = std::process::Command::new(command.get_program());
        command.arg("soft").args(["--faults", plan]).args(&arguments[1..]);
        command.env("TMPDIR", temporary.path()).args(["-c", "echo \"$SOFTHCA_FAULTS\""]);
        run(command)
    };
    assert_eq!(with("drop  nth=3; seed=9").succeeded(), "seed=9; drop nth=3\n");
    let ended = with("drop nth=0");
    assert_eq!((ended.code, ended.text.lines().count()), (Some(2), 1), "{}", ended.text);
    assert!(ended.text.contains("line 1, column 6, `nth=0`"), "{}", ended.text);
}
