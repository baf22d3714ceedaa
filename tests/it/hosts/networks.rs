//! Both sides in separate network namespaces, connected by a cable. The software cards use TCP.

use super::runs::TRANSPORTS;
use super::{ENDLESS, Setting, end};
use gdsync_test_support::networks::Namespaces;
use gdsync_test_support::{skipped, skipped_on_system};

const KEY: &str = "the key of both hosts";

/// Returns a setting with the server in the first namespace and the client in the second. `None` if that is not
/// possible: the test is skipped.
fn apart(test: &str) -> Option<(Namespaces, Setting)> {
    if skipped_on_system(test) {
        return None;
    }
    let namespaces = match Namespaces::new() {
        Ok(namespaces) => namespaces,
        Err(why) => {
            skipped(test, &format!("{why} (needs root)"));
            return None;
        }
    };
    let mut setting = Setting::loopback(test).with("GDSYNC_KEY", KEY);
    setting.address = Namespaces::ADDRESSES[0].to_owned();
    setting.under =
        namespaces.names().each_ref().map(|name| ["ip", "netns", "exec", name].map(str::to_owned).to_vec());
    // One list for both: a device has the address of its host.
    let setting = setting.with("SOFTHCA_LISTEN", &Namespaces::ADDRESSES.join(","));
    Some((namespaces, setting.with("SOFTHCA_KEY", KEY)))
}

#[test]
fn every_transport_between_two_networks() {
    let Some((_namespaces, setting)) = apart("every_transport_between_two_networks") else { return };
    for (transport, op) in TRANSPORTS {
        setting.is_verified(&["--transport", transport, "--op", op, "--size", "3000", "--iters", "100"], 100);
    }
    setting.succeeds(&["--sizes", "1..64K", "--iters", "10"]);
}

#[test]
fn every_operation_between_two_networks() {
    let Some((_namespaces, mut setting)) = apart("every_operation_between_two_networks") else { return };
    setting.words = super::net::NET;
    for operation in super::net::OPERATIONS {
        super::net::is_verified(&setting, &["--operation", operation, "--qps", "2", "--iters", "100"], 100);
    }
}

#[test]
fn a_cable_that_is_cut_ends_both_sides() {
    let Some((namespaces, setting)) = apart("a_cable_that_is_cut_ends_both_sides") else { return };
    // Only time-outs reveal the cut.
    let setting = setting.with("SOFTHCA_CLOCK", "20");
    for transport in ["rc", "ud"] {
        let server = setting.server(&[], &[]);
        let client = setting.client(&server, &[&ENDLESS[..], &["--transport", transport]].concat(), &[]);
        // More than both sides exchange before they begin.
        namespaces.await_bytes(1 << 18).unwrap();
        namespaces.set_cable(false).unwrap();
        for ended in [end(client, "the client"), end(server.child, "the server")] {
            assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{ended:?}");
            assert!(ended.said.contains("gdsync: "), "{ended:?}");
        }
        namespaces.set_cable(true).unwrap();
    }
}

#[test]
fn a_software_card_that_listens_nowhere_is_named() {
    let Some((_namespaces, setting)) = apart("a_software_card_that_listens_nowhere_is_named") else { return };
    let without = [("SOFTHCA_LISTEN", "")];
    let server = setting.server(&[], &[]);
    let client = end(setting.client(&server, &[], &without), "the client");
    let server = end(server.child, "the server");
    assert!(client.said.contains("set SOFTHCA_LISTEN to an address of this host"), "{client:?}");
    assert!(server.said.contains("the client cannot do it: the software card"), "{server:?}");
    let server = setting.server(&[], &without);
    let client = end(setting.client(&server, &[], &[]), "the client");
    let server = end(server.child, "the server");
    assert!(client.said.contains("the server cannot do this: the software card of this side"), "{client:?}");
    assert!(server.said.contains("cannot be done here: the software card of this side"), "{server:?}");
    assert_eq!([client.code, server.code], [Some(1); 2]);
}
