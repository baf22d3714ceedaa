//! Impossible requests are refused, with the side and the remedy.

use super::stranger::{self, options};
use super::{Setting, end};
use gdsync_test_support::command::{run, text};
use gdsync_test_support::networks::free_port;
use serde_json::json;
use std::net::{TcpListener, TcpStream};

const KEY: &str = "the key of both sides";
/// All addresses of this host, which others can reach.
const ALL: &str = "0.0.0.0";

/// Runs a client whose only line of error contains these words.
fn client_fails(setting: &Setting, host: &str, words: &[&str]) {
    let client = end(setting.command(&["pingpong", host], 1).spawn().unwrap(), "the client");
    assert_eq!((client.code, client.out.as_str()), (Some(1), ""), "{client:?}");
    assert!(client.said.starts_with("gdsync: ") && client.said.lines().count() == 1, "{client:?}");
    assert!(words.iter().all(|word| client.said.contains(word)), "{client:?}");
}

#[test]
fn no_server_and_no_host_are_named() {
    let setting = Setting::loopback("hosts-nothing");
    let free = format!("127.0.0.1:{}", free_port());
    client_fails(&setting, &free, &["no server answers at 127.0.0.1:", "gdsync pingpong --server"]);
    client_fails(&setting, "no-such-host.invalid", &["no-such-host.invalid is no host that is known here"]);
}

#[test]
fn keys_are_wanted_between_hosts_and_compared() {
    let setting = Setting::loopback("hosts-keys");
    let server = setting.command(&["pingpong", "--server", "--listen", ALL, "--port", "28211"], 0).spawn();
    let server = end(server.unwrap(), "the server");
    assert_eq!(server.code, Some(1));
    for word in ["other hosts reach 0.0.0.0:28211", "GDSYNC_KEY_FILE", "--listen 127.0.0.1"] {
        assert!(server.said.contains(word), "{word}: {server:?}");
    }
    let server = setting.server(&[], &[("GDSYNC_KEY", KEY)]);
    let client = end(setting.client(&server, &[], &[("GDSYNC_KEY", "another key than that")]), "the client");
    assert!(client.said.contains("has another key: give both sides the same GDSYNC_KEY"), "{client:?}");
    // The server still waits for its client, and silent strangers do not block it.
    let _silent: Vec<_> = (0..20).map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap()).collect();
    let client = setting.client(&server, &["--iters", "5"], &[("GDSYNC_KEY", KEY)]);
    assert_eq!([end(client, "the client").code, end(server.child, "the server").code], [Some(0); 2]);
    let exposed = setting.folder.path().join("exposed.key");
    std::fs::write(&exposed, KEY).unwrap();
    // The key is needed once a server exists.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let client = setting.command(&["pingpong", &address], 1).env("GDSYNC_KEY_FILE", &exposed).spawn();
    let client = end(client.unwrap(), "the client");
    assert!(client.code == Some(1) && client.said.contains(exposed.to_str().unwrap()), "{client:?}");
}

#[test]
fn what_listens_and_is_no_server_is_named() {
    let setting = Setting::loopback("hosts-other-program");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let other = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut socket, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        // Stays open until the client has read it.
        std::io::Read::read_to_end(&mut socket, &mut Vec::new()).ok();
    });
    client_fails(&setting, &address, &["what answers at 127.0.0.1:", "is no `gdsync pingpong --server`"]);
    other.join().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    let server = setting.command(&["pingpong", "--server", "--listen", &taken.to_string()], 0).spawn();
    let server = end(server.unwrap(), "the server");
    let said = format!("the server cannot listen at port {} of 127.0.0.1", taken.port());
    assert!(server.code == Some(1) && server.said.contains(&said), "{server:?}");
}

#[test]
fn versions_that_differ_are_both_named() {
    let setting = Setting::loopback("hosts-versions").with("GDSYNC_KEY", KEY);
    let own = env!("CARGO_PKG_VERSION");
    let server = setting.server(&[], &[]);
    let mut client = stranger::connect(server.port, KEY);
    client.say(&json!({ "gdsync": "9.9.9", "news": 1 }));
    assert_eq!(client.hear()["gdsync"], own, "the client can say it as well");
    let server = end(server.child, "the server");
    let said = format!("the client is gdsync 9.9.9 and this side is gdsync {own}: install the same version");
    assert!(server.code == Some(1) && server.said.contains(&said), "{server:?}");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let mut server = stranger::accept(&listener, KEY);
        server.say(&json!({ "gdsync": "0.0.9" }));
        server.hear();
    });
    let said = format!("the server is gdsync 0.0.9 and this side is gdsync {own}");
    client_fails(&setting, &address, &[&said]);
    server.join().unwrap();
}

#[test]
fn runs_that_the_server_cannot_do_end_both_sides() {
    let setting = Setting::loopback("hosts-refused").with("GDSYNC_KEY", KEY);
    let no_gpu = if std::path::Path::new("/proc/driver/nvidia").exists() { None } else { Some(json!("0")) };
    for (change, value, said) in [
        ("size", Some(json!(1u64 << 40)), "1099511627776 bytes are more than the 1073741824"),
        ("batch", Some(json!(0)), "0 exchanges at a time are not from 1 to 1024"),
        ("batch", Some(json!(5000)), "5000 exchanges at a time are not from 1 to 1024"),
        ("warmup", Some(json!(u64::MAX)), "are together more than the 281474976710656 exchanges"),
        ("op", Some(json!("write")), "--op write is not for --transport ud"),
        ("gpu", no_gpu, "CUDA"),
    ] {
        let Some(value) = value else { continue };
        let server = setting.server(&[], &[]);
        let mut client = stranger::greeted(server.port, KEY);
        client.say(&json!({ "run": options(change, value) }));
        let answer = client.hear();
        let reason = answer["refused"]["reason"].as_str().unwrap_or_else(|| panic!("{answer}"));
        let server = end(server.child, "the server");
        assert!(reason.contains(said) && server.said.contains(reason), "{reason} {server:?}");
        assert!(
            server.code == Some(1) && server.said.contains("what the client wants cannot be done here: ")
        );
    }
}

#[test]
fn a_client_that_says_nonsense_or_leaves_is_named() {
    let setting = Setting::loopback("hosts-nonsense").with("GDSYNC_KEY", KEY);
    let server = setting.server(&[], &[]);
    stranger::greeted(server.port, KEY).say(&json!({ "dance": true }));
    let server = end(server.child, "the server");
    assert!(server.said.contains("the client says what this version does not know: "), "{server:?}");

    let server = setting.server(&[], &[]);
    let mut client = stranger::greeted(server.port, KEY);
    client.say(&json!("x".repeat(1 << 16)));
    let server = end(server.child, "the server");
    assert!(server.said.contains("a line has more than 65536 bytes"), "{server:?}");

    let server = setting.server(&[], &[]);
    drop(stranger::greeted(server.port, KEY));
    let server = end(server.child, "the server");
    assert!(server.said.contains("the client is gone: "), "{server:?}");

    let server = setting.server(&[], &[]);
    stranger::greeted(server.port, KEY).say(&json!("end"));
    let server = end(server.child, "the server");
    assert!(server.said.contains("the client has ended before a run"), "{server:?}");
}

#[test]
fn options_of_the_other_side_are_not_taken() {
    for (arguments, words) in [
        (&["--server", "--size", "64K"][..], "the argument '--server' cannot be used with '--size <BYTES>'"),
        (&["--server", "node7"], "cannot be used with"),
        (&["node7", "--procs", "1"], "cannot be used with"),
        (&["--listen", "127.0.0.1"], "the following required arguments were not provided:\n  --server"),
        (&["--port", "7"], "--port 7 is that of a server: give HOST, or --server"),
        (&["node7:8", "--port", "7"], "node7:8 and --port 7 both name a port: give one"),
        (&["node7:0"], "the port of HOST is 0"),
        (&["node7", "--port", "0"], "0 is not a port from 1 to 65535"),
    ] {
        let output = run(&[&["pingpong"], arguments].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}
