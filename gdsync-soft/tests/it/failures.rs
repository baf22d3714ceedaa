//! Killed processes, vanished folders, exhausted cards: errors, no hangs, nothing left behind.

use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{Pair, run, soft, tool};
use std::path::Path;
use std::time::Duration;

/// Returns the names in /dev/shm, where the fabric's memory must never appear.
fn shared_memory_files() -> Vec<std::ffi::OsString> {
    let Ok(folder) = std::fs::read_dir("/dev/shm") else { return Vec::new() };
    let names = folder.map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.filter(|name| name.to_string_lossy().contains("soft")).collect();
    names.sort();
    names
}

/// Starts a pair that would run for a very long time. Both sides always have writes in flight: a side that only waits
/// for a message would also wait on hardware, as reliable connections do not check whether the other side lives.
fn endless(test: &str, temporary: &Path) -> Option<Pair> {
    let tool = tool(test, "ib_write_bw")?;
    let mut pair = Pair::start(&tool, "ib", &["-b", "-D", "200"], temporary);
    pair.has_met();
    // Time to get going, which does not affect the expected results.
    std::thread::sleep(Duration::from_millis(400));
    Some(pair)
}

#[test]
fn a_killed_client_is_an_error_for_the_server() {
    let temporary = Folder::new("killed-client");
    let Some(pair) = endless("a_killed_client_is_an_error_for_the_server", temporary.path()) else { return };
    pair.client.kill();
    assert_eq!(pair.client.end().code, Some(137));
    let server = pair.server.end();
    assert_ne!(server.code, Some(0), "{}", server.text);
    temporary.becomes_empty();
    assert_eq!(shared_memory_files(), [] as [&str; 0]);
}

#[test]
fn a_killed_server_is_an_error_for_the_client() {
    let temporary = Folder::new("killed-server");
    let Some(pair) = endless("a_killed_server_is_an_error_for_the_client", temporary.path()) else { return };
    pair.server.kill();
    assert_eq!(pair.server.end().code, Some(137));
    let client = pair.client.end();
    assert_ne!(client.code, Some(0), "{}", client.text);
    temporary.becomes_empty();
    assert_eq!(shared_memory_files(), [] as [&str; 0]);
}

#[test]
fn the_folder_may_vanish_under_running_programs() {
    let test = "the_folder_may_vanish_under_running_programs";
    let Some(tool) = tool(test, "ibv_rc_pingpong") else { return };
    let temporary = Folder::new("vanished");
    let vanishes = || {
        for entry in std::fs::read_dir(temporary.path()).unwrap() {
            std::fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
    };
    // The server listens, so it has its device.
    for ended in Pair::start_after(&[&tool], "ib", &["-n", "500"], temporary.path(), vanishes).end() {
        assert_eq!(ended.code, Some(0), "{}", ended.text);
    }
    assert_eq!(temporary.content(), 0);
}

#[test]
fn more_queue_entries_than_the_card_has_are_refused() {
    let Some(tool) = tool("more_queue_entries_than_the_card_has_are_refused", "ib_send_bw") else { return };
    let temporary = Folder::new("exhausted");
    let mut command = soft("ib", &tool, temporary.path());
    command.args(["-r", "1000000", "-n", "5"]);
    let ended = run(command);
    assert!(ended.code.is_some_and(|code| code != 0 && code < 128), "{ended:?}");
    assert_eq!(temporary.content(), 0);
}

#[test]
fn queue_pairs_need_no_files() {
    let test = "queue_pairs_need_no_files";
    let Some(tool) = tool(test, "ib_write_bw") else { return };
    let temporary = Folder::new("files");
    // libmlx5 takes many doorbell pages for so many queue pairs: one file holds all of them.
    let program = [Path::new("prlimit"), Path::new("--nofile=24:24"), &tool];
    for ended in Pair::start_after(&program, "ib", &["-q", "500", "-n", "5"], temporary.path(), || {}).end() {
        assert_eq!(ended.code, Some(0), "{}", ended.text);
    }
    assert_eq!(temporary.content(), 0);
}
