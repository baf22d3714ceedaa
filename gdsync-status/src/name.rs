//! The abstract names of a user's processes and cards, as the kernel lists them, and the states of processes.
//!
//! A process's name has four parts: user, process id, start time of the process, and an index. A forked
//! child keeps its parent's socket, even after the parent's end, when another process may have the parent's id: the
//! start time differs.

use gdsync_sys::{host::process_stat, local::own_user};
use std::collections::HashSet;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::SocketAddr;

/// Most names with one process id: copies of the library in a process, and processes of several PID namespaces. Each
/// takes the first free name.
pub(crate) const MAX_NAMES: u32 = 64;

const SOCKET_TABLE: &str = "/proc/net/unix";

/// Returns the kernel's list of Unix sockets.
pub(crate) fn table() -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(SOCKET_TABLE)?).into_owned())
}

/// Returns the name under which a software card of this user holds its number on the fabric of this host. A card that
/// finds it taken adds a part.
pub fn card_name(number: u16) -> String {
    format!("{}{number}", card_prefix())
}

fn card_prefix() -> String {
    format!("gdsync-softhca/{}/", own_user())
}

fn prefix() -> String {
    format!("gdsync-status/{}/", own_user())
}

pub(crate) fn own(place: u32) -> io::Result<SocketAddr> {
    let pid = std::process::id();
    // Without a proc file system no process can see the name either.
    let start = start_of(pid).unwrap_or(0);
    SocketAddr::from_abstract_name(format!("{}{pid}/{start}/{place}", prefix()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameOwner {
    pub(crate) pid: u32,
    /// Its start time, in kernel ticks.
    start: u64,
}

impl NameOwner {
    /// Parses a name; `None` if this module did not create it.
    pub(crate) fn of(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?;
        let mut parts = name.split('/').skip(2);
        let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(NameOwner { pid, start })
    }

    /// Returns true if process `pid` exists and is the one that took the name.
    pub(crate) fn is_alive_as(&self, pid: u32) -> bool {
        start_of(pid).is_some_and(|start| start == self.start)
    }

    /// Returns true if the named process exists and belongs to this user, which is all that can be determined if the
    /// name accepts no connection.
    pub(crate) fn is_own(&self) -> bool {
        let user = std::fs::metadata(format!("/proc/{}", self.pid)).map(|folder| folder.uid());
        user.is_ok_and(|user| user == own_user()) && self.is_alive_as(self.pid)
    }
}

/// Returns a process's start time. `None` if it does not exist.
fn start_of(pid: u32) -> Option<u64> {
    /// Index of the start time after the name.
    const START: usize = 19;
    process_stat(pid)?.split_whitespace().nth(START)?.parse().ok()
}

/// Returns whether a process runs, as the kernel knows it.
pub(crate) fn state_of(pid: u32) -> ProcessState {
    match process_stat(pid).as_deref().map(|stat| stat.trim_start().as_bytes().first()) {
        None | Some(Some(b'Z' | b'X')) => ProcessState::Ended,
        Some(Some(b'T' | b't')) => ProcessState::Stopped,
        _ => ProcessState::Runs,
    }
}

/// The state of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProcessState {
    /// It is not known.
    #[default]
    Unknown,
    /// It runs, or can.
    Runs,
    /// A signal or a debugger has stopped it.
    Stopped,
    /// It has ended.
    Ended,
}

/// Returns this user's abstract names with a prefix.
fn with_prefix<'a>(table: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let names = table.lines().filter_map(|line| line.split_once('@').map(|(_, name)| name));
    names.filter(move |name| name.starts_with(prefix))
}

/// Returns the numbers of this user's cards on the fabric of this host.
pub(crate) fn cards(table: &str) -> HashSet<u16> {
    let prefix = card_prefix();
    let number = |name: &str| name[prefix.len()..].split('/').next()?.parse().ok();
    with_prefix(table, &prefix).filter_map(number).collect()
}

/// Returns this user's names in the text of `/proc/net/unix`, without duplicates.
pub(crate) fn listed(text: &str) -> Vec<String> {
    let mut names: Vec<String> = with_prefix(text, &prefix()).map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_user_are_found_among_others() {
        let prefix = prefix();
        let line = |name: &str| format!("0000000000000000: 00000002 00000000 00010000 0001 01 4711 {name}\n");
        let text = [
            "Num       RefCount Protocol Flags    Type St Inode Path\n".to_owned(),
            line("/run/dbus/socket"),
            line(&format!("@{prefix}12/7/0")),
            line(&format!("@{prefix}11/7/1")),
            line(&format!("@{prefix}12/7/0")),
            line("@gdsync-status/4000000000/3/7/0"),
            line("@other"),
            "nothing\n".to_owned(),
        ];
        assert_eq!(listed(&text.concat()), [format!("{prefix}11/7/1"), format!("{prefix}12/7/0")]);
    }

    #[test]
    fn a_name_states_a_process_and_is_not_believed_of_another_one() {
        let address = own(3).unwrap();
        let own = NameOwner::of(address.as_abstract_name().unwrap()).unwrap();
        assert_eq!(own.pid, std::process::id());
        assert!(own.is_own() && own.is_alive_as(own.pid));
        // The id belongs to another process by now.
        let before = NameOwner { start: own.start - 1, ..own };
        assert!(!before.is_own() && !before.is_alive_as(own.pid));
        assert!(!NameOwner { pid: u32::MAX, ..own }.is_own());
        for name in ["gdsync-status/1/2", "gdsync-status/1/x/3/0", "gdsync-status/1/2/-3/0", "", "other"] {
            assert_eq!(NameOwner::of(name.as_bytes()), None, "{name}");
        }
        assert_eq!(NameOwner::of(b"gdsync-status/\xff/2/3/0"), None);
    }
}
