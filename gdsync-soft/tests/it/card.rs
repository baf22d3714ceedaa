//! Sends that a word releases, through the unmodified libibverbs and libmlx5.

use gdsync::verbs::provider;
use gdsync_test_support::command::program;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{lacks, run, soft};

#[test]
fn a_word_releases_sends_of_queues_of_verbs_and_of_commands() {
    if let Err(why) = provider::system() {
        return lacks("a_word_releases_sends_of_queues_of_verbs_and_of_commands", &why.to_string());
    }
    for queues in ["verbs", "devx"] {
        for (devices, more) in [("ib", ["--op", "write-imm"]), ("roce", ["--transport", "uc"])] {
            let temporary = Folder::new(&format!("card-{queues}-{devices}"));
            let mut command = soft(devices, &program("gdsync"), temporary.path());
            command.args(["pingpong", "--hca", "mlx5_0", "--doorbells", "card", "--queues", queues]);
            command.args(["--iters", "200"]).args(more);
            let ended = run(command);
            let said = ended.succeeded();
            assert!(said.contains("doorbells card") && said.contains("every byte verified"), "{said}");
            assert_eq!(temporary.content(), 0);
        }
    }
}
