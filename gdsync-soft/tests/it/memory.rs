//! What the threads of the preload library do to the memory functions of the C library.

use gdsync_test_support::compiler::Compiler;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{Running, free_port, lacks, run, soft, tool, wait_for_listener};
use gdsync_test_support::root;
use std::path::Path;

/// Packets that faults delay are copied: the card's thread takes memory for them, and gives it back.
const DELAYS: &str = "seed=3; delay=100us p=0.3; late=100us every=3";

/// What both sides say of their threads' calls in so many exchanges.
fn calls(shim: &Path, tool: &Path, exchanges: &str) -> [String; 2] {
    let (temporary, port) = (Folder::new("memory"), free_port().to_string());
    let command = || {
        let mut command = soft("ib", tool, temporary.path());
        command.args(["-p", &port, "-n", exchanges, "-s", "20000"]);
        command.env("LD_PRELOAD", shim).env("SOFTHCA_FAULTS", DELAYS);
        command
    };
    let mut server = Running::start(command());
    wait_for_listener(port.parse().unwrap(), &mut server, true);
    let mut client = command();
    client.arg("localhost");
    [run(client), server.end()].map(|ended| {
        let said = ended.succeeded().lines().find(|line| line.starts_with("ibv_rc_pingpong: taken"));
        said.unwrap_or_else(|| panic!("it did not say its calls: {}", ended.text)).to_owned()
    })
}

/// MPI libraries and libfabric write over the code of these functions while the card's thread runs: at its work it
/// calls none of them.
#[test]
fn the_cards_threads_leave_the_c_librarys_memory_alone() {
    let test = "the_cards_threads_leave_the_c_librarys_memory_alone";
    let Some(tool) = tool(test, "ibv_rc_pingpong") else { return };
    let compiler = Compiler::c("gnu11").options(["-shared", "-fPIC"]);
    if let Err(why) = compiler.probe("") {
        return lacks(test, &why);
    }
    let shim = compiler.build(&root().join("gdsync-soft/tests/interop/memory_calls.c"));
    let [few, many] = ["10", "500"].map(|exchanges| calls(&shim.path(), &tool, exchanges));
    // What its threads do as they start and end is the same.
    assert_eq!(few, many);
    assert!(few.iter().all(|said| said.ends_with("unmapped 0")), "{few:?}");
}
