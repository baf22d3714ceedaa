//! The side that asks.

use crate::name::{self, Holder};
use crate::status::Status;
use crate::wire::{LONGEST, WireError, decode};
use gdsync_sys::local;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Where the kernel lists abstract names.
const NAMES: &str = "/proc/net/unix";
/// Processes that are asked at the same time: a part of the files that a process may have open.
const TOGETHER: usize = 256;
/// Bytes that are read of one before the others have their turn.
const TURN: usize = 64 << 10;

/// Why a process did not say its status.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// It is stopped, or too busy.
    #[error("it did not answer within {} ms: it is stopped, or busy", .within.as_millis())]
    Silent {
        /// The time that it had.
        within: Duration,
    },
    /// What it has answered cannot be read.
    #[error(transparent)]
    Answer(#[from] WireError),
    /// Another error of the system.
    #[error("it cannot be asked: {0}")]
    System(#[source] io::Error),
}

/// A process of this user.
#[derive(Debug)]
pub struct Process {
    /// Its number, as the kernel gives it. Of a process of a PID namespace that this one does not see, 0.
    pub pid: u32,
    /// What it has said; of several copies of the library in the process, together.
    pub status: Result<Status, AskError>,
}

type Answer = (u32, Result<Status, AskError>);

/// Asks all processes of this user. Up to 256 of them have `within` together: as much for one that does not answer as
/// for many. In the order of their numbers.
///
/// # Errors
/// The list of names cannot be read.
pub fn ask_all(within: Duration) -> io::Result<Vec<Process>> {
    let names = name::listed(&String::from_utf8_lossy(&std::fs::read(NAMES)?));
    let mut found: BTreeMap<u32, Process> = BTreeMap::new();
    for part in names.chunks(TOGETHER) {
        for (pid, status) in ask(part, within) {
            match (found.get_mut(&pid).map(|known| &mut known.status), status) {
                (None, status) => _ = found.insert(pid, Process { pid, status }),
                (Some(Ok(known)), Ok(more)) => join(known, more),
                // One part that is seen is more than none.
                (Some(known @ Err(_)), more) => *known = more,
                (Some(Ok(_)), Err(_)) => {}
            }
        }
    }
    Ok(found.into_values().collect())
}

fn join(known: &mut Status, more: Status) {
    known.cards.extend(more.cards);
    known.card_count = known.card_count.saturating_add(more.card_count);
    known.streams.extend(more.streams);
    known.stream_count = known.stream_count.saturating_add(more.stream_count);
}

/// Asks those who hold names, all at once. Processes of other users, and those that have ended, are left out.
pub(crate) fn ask(names: &[String], within: Duration) -> Vec<Answer> {
    let mut answers = Vec::new();
    let mut asked = Vec::new();
    for name in names {
        match Asked::connect(name.as_bytes(), within) {
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
                // The same for all of them.
                let again = || io::Error::new(error.kind(), error.to_string());
                answers.extend(asked.drain(..).map(|one| (one.pid, Err(AskError::System(again())))));
                break;
            }
        };
        let mut ready = ready.into_iter();
        // As long as the list of answers, in the same order.
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

/// A process that is being asked.
struct Asked {
    pid: u32,
    socket: UnixStream,
    bytes: Vec<u8>,
}

impl AsFd for Asked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Asked {
    /// `None` of a process of another user, and of one that has ended; the error of one of this user that cannot be
    /// asked.
    fn connect(name: &[u8], within: Duration) -> Option<Result<Asked, (u32, AskError)>> {
        let holder = Holder::of(name)?;
        let socket = match local::connect(name) {
            Ok(socket) => socket,
            // It has ended since.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return None,
            Err(_) if !holder.is_own() => return None,
            // It has many askers and takes none of them.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Some(Err((holder.pid, AskError::Silent { within })));
            }
            Err(error) => return Some(Err((holder.pid, AskError::System(error)))),
        };
        let peer = local::peer(&socket).ok().filter(|peer| peer.uid == local::own_user())?;
        let pid = u32::try_from(peer.pid).unwrap_or(0);
        // A forked child may hold the name of its parent, which has ended.
        let is_holder = pid == 0 || holder.is_alive_as(pid);
        is_holder.then(|| Ok(Asked { pid, socket, bytes: Vec::new() }))
    }

    /// Takes what has come, of what is too long one turn more than an answer may have at most. True at the end.
    fn read(&mut self) -> io::Result<bool> {
        let mut part = [0; 16 << 10];
        let end = self.bytes.len() + TURN;
        while self.bytes.len() < end {
            match self.socket.read(&mut part) {
                Ok(0) => return Ok(true),
                Ok(count) => self.bytes.extend_from_slice(&part[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => return Ok(false),
                    // It refuses, or has ended.
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
