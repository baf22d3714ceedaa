//! Multicast groups of this host, and the cards with members.
//!
//! A card with members holds an abstract socket name with the group's GID and its number. Senders find the names
//! in `/proc/net/unix`, which lists those of the network namespace. A card thus gets every packet sent after
//! it joined, and a card without members gets none. No socket connects to the name. If another user holds a
//! name, it leads to a card that drops the packet.

use super::names::{self, Name};
use super::packet::NUMBERS;
use gdsync_auth::own_user;
use std::collections::{BTreeSet, HashMap};
use std::io;

pub(crate) type Group = [u8; 16];

/// The abstract sockets of the network namespace (proc(5)).
const SOCKETS: &str = "/proc/net/unix";

#[derive(Debug, Default)]
pub(super) struct Groups {
    /// The socket that holds each name; `None` if another user holds it, who cannot take the number.
    joined: HashMap<Group, Option<Name>>,
}

fn prefix(group: &Group) -> String {
    format!("gdsync-softhca/{}/group/{:032x}/", own_user(), u128::from_be_bytes(*group))
}

impl Groups {
    /// Joins a group; no effect if it is joined already.
    pub(super) fn join(&mut self, group: &Group, number: u16) -> io::Result<()> {
        if !self.joined.contains_key(group) {
            let name = names::listen(format!("{}{number}", prefix(group)).as_bytes())?;
            self.joined.insert(*group, name);
        }
        Ok(())
    }

    pub(super) fn leave(&mut self, group: &Group) {
        self.joined.remove(group);
    }
}

/// The numbers of the cards that have joined a group.
pub(super) fn members(group: &Group) -> BTreeSet<u16> {
    match std::fs::read(SOCKETS) {
        Ok(sockets) => named(&sockets, &prefix(group)).filter(|number| NUMBERS.contains(number)).collect(),
        Err(error) => {
            tracing::warn!(%error, "{SOCKETS} cannot be read: multicast reaches no card");
            BTreeSet::new()
        }
    }
}

/// Returns the numbers after a prefix in the names of a list of sockets: each line ends with a name, in which
/// an abstract one has `@` for its zero byte. Other names may have any bytes.
fn named(sockets: &[u8], prefix: &str) -> impl Iterator<Item = u16> {
    let of_line = move |line: &[u8]| {
        let name = line.rsplit(|byte| *byte == b' ').next()?.strip_prefix(b"@")?;
        str::from_utf8(name.strip_prefix(prefix.as_bytes())?).ok()?.parse().ok()
    };
    sockets.split(|byte| *byte == b'\n').filter_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_between_others() {
        let list = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 22422 @a/7\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 22423 /run/a/8\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 22424\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 22425 @a/\xff\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 22426 @a/65536\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 22427 @a/9";
        assert_eq!(named(list, "a/").collect::<Vec<_>>(), [7, 9]);
    }

    #[test]
    fn a_card_is_a_member_from_joining_until_leaving() {
        let mut group = [0xff; 16];
        group[8..].copy_from_slice(&(0x6772_6f75_0000_0000 | u64::from(std::process::id())).to_be_bytes());
        let (mut one, mut other) = (Groups::default(), Groups::default());
        assert!(members(&group).is_empty());
        one.join(&group, 5).unwrap();
        one.join(&group, 5).unwrap();
        other.join(&group, 510).unwrap();
        assert_eq!(members(&group), BTreeSet::from([5, 510]));
        group[2] = 0;
        assert!(members(&group).is_empty(), "another group");
        group[2] = 0xff;
        one.leave(&group);
        assert_eq!(members(&group), BTreeSet::from([510]));
        drop(other);
        assert!(members(&group).is_empty());
    }
}
