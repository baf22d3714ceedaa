//! `gdsync soft --strict` names acts that a card would not accept, and ends with another status.

use crate::orders::compiler_of_verbs;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{Ended, run, soft_with};
use gdsync_test_support::root;

#[test]
fn a_program_that_succeeds_with_what_a_card_would_not_accept_ends_with_3() {
    let test = "a_program_that_succeeds_with_what_a_card_would_not_accept_ends_with_3";
    let Some(compiler) = compiler_of_verbs(test, &[]) else { return };
    let program = compiler.build(&root().join("gdsync-soft/tests/strict/beyond.c"));
    let ended = |options: &[&str], words: &[&str]| -> Ended {
        let temporary = Folder::new("strict");
        let mut command = soft_with(options, &program.path(), temporary.path());
        let ended = run({
            command.args(words);
            command
        });
        assert_eq!(temporary.content(), 0);
        ended
    };
    assert_eq!(
        ended(&["--strict"], &[]).succeeded(),
        "gdsync: strict: the command did nothing that a card would not accept\n"
    );
    let wrong = ended(&["--strict"], &["wrong"]);
    let [first, last] = wrong.text.lines().collect::<Vec<_>>()[..] else { panic!("{wrong:?}") };
    assert!(
        first.starts_with("gdsync: a card would not accept: program") && first.contains("rkey"),
        "{wrong:?}"
    );
    assert_eq!(last, "gdsync: strict: a card would not accept 1 act of the command, of 1 kind");
    assert_eq!(wrong.code, Some(3));
    assert_eq!(ended(&[], &["wrong"]).succeeded(), "");
    // The command's own failure is kept.
    let shell = ["-c", "\"$0\" wrong; exit 7", program.path().to_str().unwrap()].map(str::to_owned);
    let temporary = Folder::new("strict");
    let mut command = soft_with(&["--strict"], "/bin/sh".as_ref(), temporary.path());
    command.args(shell);
    let ended = run(command);
    assert!(ended.code == Some(7) && ended.text.contains("would not accept 1 act"), "{ended:?}");
}
