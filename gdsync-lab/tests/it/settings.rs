//! Invalid settings in the environment give a clear error, and are never ignored.

use gdsync_test_support::command::{gdsync, text};
use gdsync_test_support::on_system;
use gdsync_test_support::settings::{WRONG, set};

#[test]
fn measurements_refuse_settings_that_are_not_understood() {
    if on_system() {
        return;
    }
    for (name, value, said) in WRONG {
        for arguments in [&["soak", "--minutes", "0.01"][..], &["bench", "card"]] {
            let output = set(&mut gdsync(arguments), name, value).output().unwrap();
            let message = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
            assert!(message.contains(said) && message.lines().count() == 1, "{arguments:?}: {message}");
        }
    }
}
