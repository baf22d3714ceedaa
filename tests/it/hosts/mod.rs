//! Measurements between a server and a client that are started separately.

mod ends;
mod net;
mod networks;
mod refusals;
mod runs;
mod stranger;

use gdsync_test_support::command::{gdsync, row};
use gdsync_test_support::folder::Folder;
use gdsync_test_support::processes::{as_from_a_terminal, ends};
use serde_json::Value;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Much longer than any of these takes, also on a busy machine, but shorter than a hang.
const LIMIT: Duration = Duration::from_secs(120);

/// Options of endless runs.
const ENDLESS: [&str; 2] = ["--iters", "1000000000"];

/// Environment of both sides, and the way to start them.
struct Setting {
    folder: Folder,
    environment: Vec<(&'static str, String)>,
    /// Wrappers of the server and the client: a program and its arguments.
    under: [Vec<String>; 2],
    address: String,
    /// The words of the command on both sides.
    words: &'static [&'static str],
}

impl Setting {
    /// Uses the loopback address for both sides.
    fn loopback(test: &str) -> Self {
        let folder = Folder::new(test);
        Setting {
            folder,
            environment: Vec::new(),
            under: Default::default(),
            address: "127.0.0.1".to_owned(),
            words: &["pingpong"],
        }
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    fn command(&self, arguments: &[&str], side: usize) -> Command {
        let own = gdsync(arguments);
        let mut command = match &self.under[side][..] {
            [] => own,
            [program, words @ ..] => {
                let mut around = Command::new(program);
                around.args(words).arg(own.get_program()).args(own.get_args());
                for (name, _) in own.get_envs() {
                    around.env_remove(name);
                }
                around
            }
        };
        for name in ["GDSYNC_KEY", "GDSYNC_KEY_FILE", "SOFTHCA_KEY", "SOFTHCA_KEY_FILE", "GDSYNC_RANK"] {
            command.env_remove(name);
        }
        command.env("XDG_RUNTIME_DIR", self.folder.path());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        as_from_a_terminal(&mut command);
        command
    }

    /// Starts a server at a free port, and waits until it listens.
    fn server(&self, options: &[&str], environment: &[(&str, &str)]) -> Server {
        let at = format!("{}:0", self.address);
        let arguments = [self.words, &["--server", "--listen", &at], options].concat();
        let mut child = self.command(&arguments, 0).envs(environment.iter().copied()).spawn().unwrap();
        let line = first_line(&mut child);
        let port = line.rsplit_once(':').and_then(|(_, port)| port.trim().parse().ok());
        Server { port: port.unwrap_or_else(|| panic!("{line}")), child }
    }

    /// Starts a client of a server.
    fn client(&self, server: &Server, options: &[&str], environment: &[(&str, &str)]) -> Child {
        let host = format!("{}:{}", self.address, server.port);
        let arguments = [self.words, &[&host], options].concat();
        self.command(&arguments, 1).envs(environment.iter().copied()).spawn().unwrap()
    }

    /// Runs server and client, which succeed; returns their stdout. The server prints only its address on stderr.
    fn succeeds(&self, options: &[&str]) -> [String; 2] {
        let server = self.server(&["--json"], &[]);
        let client = end(self.client(&server, options, &[]), "the client");
        let server = end(server.child, "the server");
        for ended in [&client, &server] {
            assert_eq!(
                (ended.code, ended.said.as_str()),
                (Some(0), ""),
                "{options:?}: {client:?} {server:?}"
            );
        }
        [server.out, client.out]
    }

    /// Like [`Self::succeeds`]; checks that every byte of `exchanges` exchanges was verified on both sides.
    fn is_verified(&self, options: &[&str], exchanges: u64) -> Value {
        let [server, client] = self.succeeds(&[options, &["--json"]].concat());
        let [server, client]: [Value; 2] = [server, client].map(|text| row(text.as_bytes()));
        for said in [&server, &client] {
            assert_eq!(said["verified"], Value::Bool(true), "{options:?}: {said}");
            assert_eq!(said["iterations"].as_u64(), Some(exchanges), "{options:?}: {said}");
        }
        assert_eq!(client["server"].as_str(), Some(self.address.as_str()));
        client
    }
}

struct Server {
    child: Child,
    port: u16,
}

/// Reads the first line of stderr, and no byte of the next.
fn first_line(child: &mut Child) -> String {
    let stderr = child.stderr.as_mut().unwrap();
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') && stderr.read(&mut byte).unwrap() == 1 {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    said: String,
}

/// Waits for the end of a side with short output.
fn end(mut child: Child, what: &str) -> Ended {
    let mut stdout = child.stdout.take().unwrap();
    let (status, said) = ends(child, LIMIT, what);
    let mut out = String::new();
    stdout.read_to_string(&mut out).unwrap();
    Ended { code: status.code(), out, said }
}
