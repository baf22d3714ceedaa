//! Settings of the card's environment: a network between hosts, and plans of faults. `-c` checks the data.

use crate::faults::LOSSY_ANSWERED;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{leftover, run, soft};
use std::path::Path;

#[test]
fn programs_speak_over_tcp_with_and_without_faults() {
    let faults = format!("SOFTHCA_FAULTS={LOSSY_ANSWERED}");
    let listen = "SOFTHCA_LISTEN=127.83.210.1:28300,127.83.210.2:28300";
    // The key remains the user's.
    for environment in [&[listen][..], &[listen, &faults]] {
        leftover("tcp_rc", "ibv_rc_pingpong", environment, "roce", &["-g", "3", "-n", "300", "-c"]);
    }
    let ud = ["-g", "1", "-n", "300", "-s", "1024", "-c"];
    leftover("tcp_ud", "ibv_ud_pingpong", &[listen], "roce", &ud);
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
    assert_eq!(ended.code, Some(2), "{}", ended.text);
    assert!(ended.text.contains("line 1, column 6, `nth=0`"), "{}", ended.text);
}
