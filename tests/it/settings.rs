//! Invalid settings in the environment give a clear error, never a run without them.

use gdsync_test_support::command::{gdsync, text};
use gdsync_test_support::on_system;
use gdsync_test_support::settings::{WRONG, set};

#[test]
fn the_command_refuses_them() {
    if on_system() {
        return;
    }
    for (name, value, said) in WRONG {
        let with = |arguments: &[&str]| set(&mut gdsync(arguments), name, value).output().unwrap();
        let output = with(&["pingpong", "--iters", "10", "--procs", "1"]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(said) && message.lines().count() == 1, "{message}");
        let output = with(&["devices"]);
        let listing = text(&output.stdout);
        assert!(listing.contains(said) && !listing.contains("softhca0"), "{listing}");
    }
    let schedule = [("SOFTHCA_SCHEDULE", "/dev/null"), ("SOFTHCA_LIBERTIES", "7")];
    let output = gdsync(&["pingpong", "--iters", "10", "--procs", "1"]).envs(schedule).output().unwrap();
    let message = text(&output.stderr);
    let said = "SOFTHCA_SCHEDULE is `/dev/null`: SOFTHCA_LIBERTIES is set, too: a card follows one of them; unset the other";
    assert!(output.status.code() == Some(1) && message.contains(said), "{message}");
    let output = gdsync(&["devices"]).env("GDSYNC_LOG", "softhca=loud").output().unwrap();
    let message = text(&output.stderr);
    assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
    assert!(message.contains("GDSYNC_LOG is `softhca=loud`"), "{message}");
}
