//! Sides that die or are interrupted: the other side ends, too.

use super::{ENDLESS, Setting, end};
use gdsync_test_support::command::{error_in, row};
use gdsync_test_support::processes::{has_sent, signal};
use std::process::Child;

/// More packets than the warm-up sends: something has been measured.
const AT_WORK: u64 = 200;

/// Starts a server and its client in an endless run, and waits until they are at work.
fn at_work(setting: &Setting, options: &[&str]) -> (Child, Child) {
    let server = setting.server(&["--json"], &[]);
    let client = setting.client(&server, &[&ENDLESS[..], &["--warmup", "10"], options].concat(), &[]);
    [&client, &server.child].into_iter().for_each(|side| has_sent(side.id(), AT_WORK));
    (server.child, client)
}

#[test]
fn the_death_of_either_side_ends_the_other() {
    // Time-outs reveal the end of a peer.
    let setting = Setting::loopback("hosts-death").with("SOFTHCA_CLOCK", "20");
    for options in [
        &["--op", "send"][..],
        &["--op", "write"],
        &["--transport", "uc", "--op", "write"],
        &["--transport", "ud", "--trigger", "cpu"],
    ] {
        for dies in ["server", "client"] {
            let (server, client) = at_work(&setting, options);
            let (dying, other) = if dies == "server" { (server, client) } else { (client, server) };
            signal(dying.id(), libc::SIGKILL);
            assert_eq!(end(dying, dies).code, None);
            let ended = end(other, &format!("what the death of the {dies} leaves, {options:?}"));
            assert_eq!(ended.code, Some(1), "{ended:?}");
            // The server prints JSON.
            if dies == "client" {
                assert!(ended.said.contains(&error_in(ended.out.as_bytes())), "{ended:?}");
            } else {
                assert_eq!(ended.out, "");
            }
            let causes = ["the other side is gone", "retries exceeded"];
            assert!(causes.iter().any(|cause| ended.said.contains(cause)), "{dies}, {options:?}: {ended:?}");
        }
    }
}

#[test]
fn an_interrupted_client_prints_what_it_has_and_the_server_ends_well() {
    let setting = Setting::loopback("hosts-interrupted");
    let (server, client) = at_work(&setting, &["--json"]);
    signal(client.id(), libc::SIGINT);
    let (client, server) = (end(client, "the client"), end(server, "the server"));
    assert_eq!(client.code, Some(130), "{client:?}");
    assert_eq!((server.code, server.said.as_str()), (Some(0), ""), "{server:?}");
    let [client, server] = [&client.out, &server.out].map(|out| {
        let said = row(out.as_bytes());
        (said["iterations"].as_u64().unwrap(), said["verified"].as_bool().unwrap())
    });
    assert!(client.0 > 0 && client == server && client.1, "{client:?} {server:?}");
}

#[test]
fn an_interrupted_server_ends_at_once_and_its_client_says_so() {
    let setting = Setting::loopback("hosts-interrupted-server");
    let (server, client) = at_work(&setting, &[]);
    signal(server.id(), libc::SIGINT);
    assert_eq!(end(server, "the server").code, None, "it ends by the signal");
    let client = end(client, "the client");
    assert_eq!((client.code, client.out.as_str()), (Some(1), ""), "{client:?}");
    assert!(client.said.contains("gone") || client.said.contains("retries exceeded"), "{client:?}");
}

#[test]
fn a_failure_of_one_side_is_told_by_both() {
    let setting = Setting::loopback("hosts-failure");
    let fails = [("SOFTHCA_FAULTS", "fail=retry-exceeded nth=200 kind=write,send")];
    if gdsync_test_support::skipped_on_system("a_failure_of_one_side_is_told_by_both") {
        return;
    }
    let server = setting.server(&[], &fails);
    let client = end(setting.client(&server, &ENDLESS, &[]), "the client");
    let server = end(server.child, "the server");
    assert_eq!([client.code, server.code], [Some(1); 2]);
    assert!(
        client.said.contains("the other side: ") && client.said.contains("retries exceeded"),
        "{client:?}"
    );
    assert!(
        server.said.contains("retries exceeded") && !server.said.contains("the other side"),
        "{server:?}"
    );
}
