//! Programs that poll completion queues where cores are few.

use crate::orders::compiler_of_verbs;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{run, soft, succeeds_with};
use gdsync_test_support::root;
use std::path::Path;

#[test]
fn a_poll_works_for_the_card_where_cores_are_few_only() {
    let Some(compiler) = compiler_of_verbs("a_poll_works_for_the_card_where_cores_are_few_only", &[]) else {
        return;
    };
    let program = compiler.build(&root().join("gdsync-soft/tests/seen/polling.c"));
    let temporary = Folder::new("polling");
    let file = |most: usize| {
        let mut command = soft("ib", Path::new("/usr/bin/taskset"), temporary.path());
        command.args(["-c", &format!("0-{}", most - 1)]).arg(program.path());
        run(command).succeeded().to_owned()
    };
    for cores in [1, 2] {
        assert_eq!(file(cores), "libsofthca_uverbs.so\n");
    }
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 2) {
        assert_ne!(file(64), "libsofthca_uverbs.so\n");
    }
}

#[test]
fn a_thread_is_cancelled_after_its_poll_has_worked_for_the_card() {
    let test = "a_thread_is_cancelled_after_its_poll_has_worked_for_the_card";
    let Some(compiler) = compiler_of_verbs(test, &["-pthread"]) else { return };
    let program = compiler.build(&root().join("gdsync-soft/tests/seen/cancelled.c"));
    let temporary = Folder::new("cancelled");
    let mut command = soft("ib", Path::new("/usr/bin/taskset"), temporary.path());
    command.args(["-c", "0-1"]).arg(program.path());
    run(command).succeeded();
}

#[test]
fn two_processes_that_poll_share_one_core() {
    // The tools poll without a pause: the card's thread of neither gets the core for long.
    let on_one = ["/usr/bin/taskset", "-c", "0"];
    let test = "two_processes_that_poll_share_one_core";
    for (tool, arguments) in [("ib_send_lat", ["-n", "200"]), ("ib_write_bw", ["-n", "2000"])] {
        for devices in ["ib", "roce"] {
            succeeds_with(test, tool, &on_one, devices, &arguments);
        }
    }
}
