//! The messages between runs, and the channel of each run, on one connection: lines of JSON.

use crate::failure::Failure;
use crate::sides::channel::{Channel, is_last};
use crate::sides::side::RemoteGpu;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long to wait for the other side between runs.
const ANSWER: Duration = Duration::from_secs(30);
const MAX_LINE: u64 = 1 << 16;
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The first line of each side. Fields may be added; `gdsync` stays, so that versions can be compared.
#[derive(Debug, Serialize, Deserialize)]
struct Opening {
    gdsync: String,
    /// The measurement: the words of its command.
    #[serde(default)]
    command: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request<M> {
    Run(Box<M>),
    /// The session ends without an error.
    End,
    /// The client cannot do what it was asked for.
    Failed {
        reason: String,
    },
}

/// The server's answers to a request for a run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    /// The run begins; `gpu` holds the server's messages, if any does.
    Begin {
        gpu: Option<RemoteGpu>,
    },
    Refused {
        reason: String,
    },
}

type Lines = Arc<Mutex<BufReader<TcpStream>>>;

/// A connection between sides of the same version and measurement.
pub(super) struct Session {
    lines: Lines,
    socket: TcpStream,
    /// `the client` or `the server`.
    other: &'static str,
}

impl Session {
    /// Compares versions and commands. `other` names the other side in errors.
    pub(super) fn open(socket: TcpStream, other: &'static str, own: &str) -> Result<Self, Failure> {
        let lines = Arc::new(Mutex::new(BufReader::new(socket.try_clone()?)));
        let session = Session { lines, socket, other };
        session.send(&Opening { gdsync: VERSION.to_owned(), command: own.to_owned() })?;
        let Opening { gdsync, command } = session.receive()?;
        if gdsync != VERSION {
            return Err(format!(
                "{other} is gdsync {gdsync} and this side is gdsync {VERSION}: install the same version on both hosts"
            )
            .into());
        }
        if command != own {
            return Err(format!(
                "{other} is `gdsync {command}` and this side is `gdsync {own}`: start the same command on both hosts"
            )
            .into());
        }
        Ok(session)
    }

    pub(super) fn send(&self, what: &impl Serialize) -> Result<(), Failure> {
        let line = serde_json::to_string(what)? + "\n";
        (&self.socket).write_all(line.as_bytes()).map_err(|error| self.gone(&error))
    }

    pub(super) fn receive<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        self.socket.set_read_timeout(Some(ANSWER))?;
        let mut line = Vec::new();
        match next_line(&mut lock(&self.lines), &mut line) {
            Ok(()) if line.is_empty() => Err(self.gone(&"the connection has ended")),
            Ok(()) => serde_json::from_slice(&line).map_err(|error| self.unknown(&error)),
            Err(error) if error.kind() == ErrorKind::InvalidData => Err(self.unknown(&error)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(format!("{} does not answer within {ANSWER:?}", self.other).into())
            }
            Err(error) => Err(self.gone(&error)),
        }
    }

    fn unknown(&self, why: &dyn std::fmt::Display) -> Failure {
        format!("{} says what this version does not know: {why}", self.other).into()
    }

    fn gone(&self, why: &dyn std::fmt::Display) -> Failure {
        format!("{} is gone: {why}; its own output may say more", self.other).into()
    }

    /// Returns the channel of a run. The run ends when the [`Run`] is dropped; the session then continues if both sides
    /// have reported that they have finished.
    pub(super) fn run(&self) -> Result<(Channel, Run), Failure> {
        self.socket.set_read_timeout(None)?;
        let (end, ended) = channel::<Infallible>();
        let (lines, mut was_last) = (Arc::clone(&self.lines), false);
        // Yields lines up to the other side's last, and then blocks until the run ends: a channel that ends earlier
        // means that the other side is gone.
        let of_run = std::iter::from_fn(move || {
            if was_last {
                // Nothing is ever sent: this returns when the sender is dropped.
                let _ = ended.recv();
                return None;
            }
            let mut line = Vec::new();
            next_line(&mut lock(&lines), &mut line).ok()?;
            let line = String::from_utf8(line).ok().filter(|line| !line.is_empty())?;
            was_last = is_last(&line);
            Some(line)
        });
        Ok((Channel::of_lines(of_run, Box::new(self.socket.try_clone()?))?, Run { _end: end }))
    }
}

pub(super) struct Run {
    _end: Sender<Infallible>,
}

fn lock(lines: &Lines) -> MutexGuard<'_, BufReader<TcpStream>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Appends a line with its terminator; nothing at the end of the connection.
fn next_line(lines: &mut BufReader<TcpStream>, line: &mut Vec<u8>) -> io::Result<()> {
    lines.take(MAX_LINE).read_until(b'\n', line)?;
    match line.last() {
        None | Some(b'\n') => Ok(()),
        Some(_) if line.len() as u64 == MAX_LINE => {
            Err(io::Error::new(ErrorKind::InvalidData, format!("a line has more than {MAX_LINE} bytes")))
        }
        Some(_) => Err(ErrorKind::UnexpectedEof.into()),
    }
}
