//! The abstract names at which processes of a user answer.

use gdsync_sys::local::own_user;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;

/// Copies of the library in a process, and processes of one number in several PID namespaces: each takes the first
/// name that is free.
pub(crate) const PLACES: u32 = 64;

fn prefix() -> String {
    format!("gdsync-status/{}/", own_user())
}

/// A name of this process.
pub(crate) fn own(place: u32) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{}{}/{place}", prefix(), std::process::id()))
}

/// The names of this user in the text of `/proc/net/unix`, each once.
pub(crate) fn listed(text: &str) -> Vec<String> {
    let prefix = prefix();
    let names = text.lines().filter_map(|line| line.split_once('@').map(|(_, name)| name));
    let mut names: Vec<String> = names.filter(|name| name.starts_with(&prefix)).map(str::to_owned).collect();
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
            line(&format!("@{prefix}12/0")),
            line(&format!("@{prefix}11/1")),
            line(&format!("@{prefix}12/0")),
            line("@gdsync-status/4000000000/3/0"),
            line("@other"),
            "nothing\n".to_owned(),
        ];
        assert_eq!(listed(&text.concat()), [format!("{prefix}11/1"), format!("{prefix}12/0")]);
    }
}
