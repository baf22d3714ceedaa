//! A fake side, which has the key and sends arbitrary messages.

use gdsync_auth::{Exchange, Key};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

/// The purpose of the proof.
const PURPOSE: &[u8] = b"gdsync pingpong 1";

pub(super) struct Stranger(BufReader<TcpStream>);

impl Stranger {
    fn proven(mut socket: TcpStream, exchange: std::io::Result<Exchange>) -> Self {
        assert!(exchange.unwrap().advance(&mut socket).unwrap());
        Stranger(BufReader::new(socket))
    }

    pub(super) fn say(&mut self, what: &Value) {
        // In one write: the other side may end before the last of several parts.
        self.0.get_mut().write_all(format!("{what}\n").as_bytes()).unwrap();
    }

    pub(super) fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

fn key(key: &str) -> Key {
    Key::new(key.as_bytes()).unwrap()
}

/// Connects a client that has proven the key.
pub(super) fn connect(port: u16, secret: &str) -> Stranger {
    let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    Stranger::proven(socket, Exchange::connecting(&key(secret), PURPOSE))
}

/// Connects a client of a pingpong that has also sent its version.
pub(super) fn greeted(port: u16, secret: &str) -> Stranger {
    greeted_as(port, secret, "pingpong")
}

/// Connects a client of that command that has also sent its version.
pub(super) fn greeted_as(port: u16, secret: &str, command: &str) -> Stranger {
    let mut client = connect(port, secret);
    client.say(&json!({ "gdsync": env!("CARGO_PKG_VERSION"), "command": command }));
    client.hear();
    client
}

/// Accepts a client that has proven the key.
pub(super) fn accept(listener: &TcpListener, secret: &str) -> Stranger {
    let (socket, _) = listener.accept().unwrap();
    Stranger::proven(socket, Exchange::accepting(&key(secret), PURPOSE))
}

/// Returns options of a run over datagrams, with one value replaced.
pub(super) fn options(name: &str, value: Value) -> Value {
    let mut options = json!({
        "iters": 10, "warmup": 0, "size": 8, "transport": "ud", "op": "send", "procs": 2, "trigger": "stream",
        "hca": null, "gid_index": null, "mtu": null, "gpu": null,
        "layout": { "cq": "host", "dbrec": "host", "wq": "host" },
        "doorbells": "auto", "queues": "verbs", "batch": 16, "liberties": null, "check": true, "json": false,
    });
    options[name] = value;
    options
}
