//! Calls of the preload library's threads to the C library's memory functions.

use gdsync_test_support::compiler::Compiler;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{Running, free_port, lacks, run, soft, tool, wait_for_listener};
use gdsync_test_support::root;
use std::path::Path;

/// Packets that faults delay are copied: the card's thread allocates memory for them, and frees it.
const DELAYS: &str = "seed=3; delay=100us p=0.3; late=100us every=3";

/// Returns both sides' reports of their threads' calls in so many exchanges.
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

/// MPI libraries and libfabric patch the code of these functions while the card's thread runs, so it calls
/// none of them while it works.
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
    // The calls of its threads at their start and end are the same.
    assert_eq!(few, many);
    assert!(few.iter().all(|said| said.ends_with("unmapped 0")), "{few:?}");
}
