//! Sends that a word releases, through the unmodified libibverbs and libmlx5.

use crate::uverbs::support::{lacks, run, soft};
use gdsync::verbs::provider;
use gdsync_test_support::folder::Folder;
use std::path::Path;

#[test]
fn a_word_releases_sends_of_queues_of_verbs_and_of_commands() {
    if let Err(why) = provider::system() {
        return lacks("a_word_releases_sends_of_queues_of_verbs_and_of_commands", &why.to_string());
    }
    for queues in ["verbs", "devx"] {
        for (devices, more) in [("ib", ["--op", "write-imm"]), ("roce", ["--transport", "uc"])] {
            let temporary = Folder::new(&format!("card-{queues}-{devices}"));
            let mut command = soft(devices, Path::new(env!("CARGO_BIN_EXE_gdsync")), temporary.path());
            command.args(["pingpong", "--hca", "mlx5_0", "--doorbells", "card", "--queues", queues]);
            command.args(["--iters", "200"]).args(more);
            let ended = run(command);
            let said = ended.succeeded();
            assert!(said.contains("doorbells card") && said.contains("every byte verified"), "{said}");
            assert_eq!(temporary.content(), 0);
        }
    }
}
