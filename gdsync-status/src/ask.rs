//! The client side.

use crate::name::{self, NameOwner};
use crate::status::Status;
use crate::wire::{LONGEST, WireError, decode, printable};
use gdsync_sys::local;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longest name of a process, in characters.
const MAX_LENGTH: usize = 32;
/// Most bytes read of a command line, which may be very long.
const MAX_COMMAND_LINE: u64 = 4096;
/// Processes queried at the same time: fewer than the files that a process may have open.
const MAX_CONCURRENT: usize = 256;
/// Bytes read from one process before the others have their turn.
const READ_BUDGET: usize = 64 << 10;

/// Reasons why a process did not report its status.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The process is stopped or too busy.
    #[error("it did not answer within {} ms: it is stopped, or busy", .within.as_millis())]
    Silent {
        /// The time limit.
        within: Duration,
    },
    /// The answer cannot be decoded.
    #[error(transparent)]
    Answer(#[from] WireError),
    /// Another system error.
    #[error("it cannot be asked: {0}")]
    System(#[source] io::Error),
}

/// A process of this user.
#[derive(Debug)]
pub struct Process {
    /// Its process id; 0 for a process of an invisible PID namespace.
    pub pid: u32,
    /// Its shortened command line, without the program's folder; `?` if unknown.
    pub name: String,
    /// Its status, merged from all copies of the library in the process.
    pub status: Result<Status, AskError>,
}

type Answer = (u32, Result<Status, AskError>);

/// Queries all processes of this user, in the order of their ids. Up to 256 processes share the time limit `within`:
/// one silent process costs as much as many.
///
/// # Errors
/// The list of names cannot be read.
pub fn ask_all(within: Duration) -> io::Result<Vec<Process>> {
    Ok(ask_listed(&name::listed(&name::table()?), within))
}

/// Queries the processes with these names, as [`ask_all`] does.
pub(crate) fn ask_listed(names: &[String], within: Duration) -> Vec<Process> {
    let mut found: BTreeMap<u32, Process> = BTreeMap::new();
    for part in names.chunks(MAX_CONCURRENT) {
        for (pid, status) in ask(part, within) {
            match (found.get_mut(&pid).map(|known| &mut known.status), status) {
                (None, status) => _ = found.insert(pid, Process { pid, name: name_of(pid), status }),
                (Some(Ok(known)), Ok(more)) => join(known, more),
                // A part of the status is better than none.
                (Some(known @ Err(_)), more) => *known = more,
                (Some(Ok(_)), Err(_)) => {}
            }
        }
    }
    found.into_values().collect()
}

fn name_of(pid: u32) -> String {
    let mut words = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/cmdline")) {
        // A process that ends meanwhile has no command line any more.
        let _ = file.take(MAX_COMMAND_LINE).read_to_end(&mut words);
    }
    shorten(&String::from_utf8_lossy(&words))
}

/// Shortens a command line of zero-terminated words.
fn shorten(words: &str) -> String {
    let mut words = words.split('\0').filter(|word| !word.is_empty());
    let Some(program) = words.next() else { return "?".to_owned() };
    let program = program.rsplit('/').next().unwrap_or(program);
    let text = std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ");
    // Processes choose their names, which are shown on a terminal.
    let mut name: String = text.chars().map(printable).take(MAX_LENGTH + 1).collect();
    if name.chars().count() > MAX_LENGTH {
        name = name.chars().take(MAX_LENGTH - 1).chain(['…']).collect();
    }
    name
}

fn join(known: &mut Status, more: Status) {
    known.cards.extend(more.cards);
    known.card_count = known.card_count.saturating_add(more.card_count);
    known.streams.extend(more.streams);
    known.stream_count = known.stream_count.saturating_add(more.stream_count);
}

/// Queries the processes with these names, all at once. Skips processes of other users, and those that have ended.
pub(crate) fn ask(names: &[String], within: Duration) -> Vec<Answer> {
    let mut answers = Vec::new();
    let mut asked = Vec::new();
    for name in names {
        match Query::connect(name.as_bytes(), within) {
            Some(Ok(one)) => asked.push(one),
            Some(Err((pid, error))) => answers.push((pid, Err(error))),
            None => {}
        }
    }
    let deadline = Instant::now() + within;
    while !asked.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let ready = match local::readable(&asked, left) {
            Ok(ready) => ready,
            Err(error) => {
                // The same error for all of them.
                let again = || io::Error::new(error.kind(), error.to_string());
                answers.extend(asked.drain(..).map(|one| (one.pid, Err(AskError::System(again())))));
                break;
            }
        };
        let mut ready = ready.into_iter();
        // `ready` has the same length and order.
        asked.retain_mut(|one| {
            if ready.next() != Some(true) {
                return true;
            }
            match one.read() {
                Ok(false) => return true,
                Ok(true) if one.bytes.is_empty() => {}
                Ok(true) => answers.push((one.pid, decode(&one.bytes).map_err(AskError::Answer))),
                Err(error) => answers.push((one.pid, Err(AskError::System(error)))),
            }
            false
        });
        if left.is_zero() {
            answers.extend(asked.drain(..).map(|one| (one.pid, Err(AskError::Silent { within }))));
        }
    }
    answers
}

struct Query {
    pid: u32,
    socket: UnixStream,
    bytes: Vec<u8>,
}

impl AsFd for Query {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Query {
    /// Returns `None` for a process of another user or one that has ended; an error for one of this user that cannot
    /// be queried.
    fn connect(name: &[u8], within: Duration) -> Option<Result<Query, (u32, AskError)>> {
        let owner = NameOwner::of(name)?;
        let socket = match local::connect(name) {
            Ok(socket) => socket,
            // The process has ended.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return None,
            Err(_) if !owner.is_own() => return None,
            // The process has many clients and accepts none.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Some(Err((owner.pid, AskError::Silent { within })));
            }
            Err(error) => return Some(Err((owner.pid, AskError::System(error)))),
        };
        let peer = local::peer(&socket).ok().filter(|peer| peer.uid == local::own_user())?;
        let pid = u32::try_from(peer.pid).unwrap_or(0);
        // A forked child may hold the name of its parent, which has ended.
        let is_owner = pid == 0 || owner.is_alive_as(pid);
        is_owner.then(|| Ok(Query { pid, socket, bytes: Vec::new() }))
    }

    /// Reads available bytes; stops at most one turn beyond the limit of an answer. Returns true at the end.
    fn read(&mut self) -> io::Result<bool> {
        let mut part = [0; 16 << 10];
        let end = self.bytes.len() + READ_BUDGET;
        while self.bytes.len() < end {
            match self.socket.read(&mut part) {
                Ok(0) => return Ok(true),
                Ok(count) => self.bytes.extend_from_slice(&part[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => return Ok(false),
                    // The process refuses, or has ended.
                    ErrorKind::ConnectionReset => {
                        self.bytes.clear();
                        return Ok(true);
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(self.bytes.len() > LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_steers_no_terminal() {
        assert_eq!(shorten("/usr/bin/gdsync\0pingpong\0--json\0"), "gdsync pingpong --json");
        assert_eq!(shorten("a\x1b[2J\0"), "a\u{fffd}[2J");
        assert_eq!(shorten(&"x".repeat(100)), "x".repeat(31) + "…");
        assert_eq!(shorten(&"x".repeat(32)), "x".repeat(32));
        assert_eq!([shorten(""), name_of(u32::MAX)], ["?", "?"]);
    }
}
