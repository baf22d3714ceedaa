//! The side that asks.

use crate::name;
use crate::status::Status;
use crate::wire::{LONGEST, WireError, decode};
use gdsync_sys::local;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Where the kernel lists abstract names.
const NAMES: &str = "/proc/net/unix";

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

/// Asks all processes of this user, each for `within` at most. In the order of their numbers.
///
/// # Errors
/// The list of names cannot be read.
pub fn ask_all(within: Duration) -> io::Result<Vec<Process>> {
    let mut found: BTreeMap<u32, Process> = BTreeMap::new();
    for name in name::listed(&String::from_utf8_lossy(&std::fs::read(NAMES)?)) {
        let Some((pid, status)) = ask(name.as_bytes(), within) else { continue };
        match found.entry(pid) {
            std::collections::btree_map::Entry::Vacant(entry) => _ = entry.insert(Process { pid, status }),
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                let known = &mut entry.get_mut().status;
                match (known, status) {
                    (Ok(known), Ok(more)) => join(known, more),
                    // One part that is seen is more than none.
                    (known @ Err(_), more) => *known = more,
                    (Ok(_), Err(_)) => {}
                }
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

/// Asks who holds a name. `None` if it is a process of another user, or one that has ended.
pub(crate) fn ask(name: &[u8], within: Duration) -> Option<(u32, Result<Status, AskError>)> {
    let socket = match local::connect(name) {
        Ok(socket) => socket,
        // It has many askers and takes none of them.
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            return Some((pid_in(name), Err(AskError::Silent { within })));
        }
        // It has ended since.
        Err(_) => return None,
    };
    let peer = local::peer(&socket).ok().filter(|peer| peer.uid == local::own_user())?;
    let pid = u32::try_from(peer.pid).unwrap_or(0);
    // A forked child may hold the name of its parent, which has ended.
    if pid != 0 && !std::path::Path::new(&format!("/proc/{pid}")).exists() {
        return None;
    }
    match receive(socket, within) {
        // It has ended meanwhile.
        Ok(bytes) if bytes.is_empty() => None,
        Ok(bytes) => Some((pid, decode(&bytes).map_err(AskError::Answer))),
        Err(error) => Some((pid, Err(error))),
    }
}

/// The number of the process that has taken a name, as the name has it.
fn pid_in(name: &[u8]) -> u32 {
    let name = String::from_utf8_lossy(name);
    name.split('/').nth(2).and_then(|pid| pid.parse().ok()).unwrap_or(0)
}

/// All that comes until the end, one byte more than an answer may have at most.
fn receive(mut socket: UnixStream, within: Duration) -> Result<Vec<u8>, AskError> {
    let deadline = Instant::now() + within;
    socket.set_nonblocking(false).map_err(AskError::System)?;
    let mut bytes = Vec::new();
    let mut part = [0; 16 << 10];
    while bytes.len() <= LONGEST {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(AskError::Silent { within });
        }
        socket.set_read_timeout(Some(left)).map_err(AskError::System)?;
        match socket.read(&mut part) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::WouldBlock | ErrorKind::TimedOut => return Err(AskError::Silent { within }),
                // It refuses, or has ended.
                ErrorKind::ConnectionReset => return Ok(Vec::new()),
                _ => return Err(AskError::System(error)),
            },
        }
    }
    Ok(bytes)
}
