//! Where a rank's part of a segment lies: the data, and behind it the notifications.

use crate::error::NotifyError;
use gdsync::RemoteMemory;
use gdsync::verbs::{Error, ParseError};

/// Notifications begin at a multiple of this, so that no cache line holds data and a notification.
const ALIGNMENT: usize = 64;
/// Bytes of a notification.
pub(crate) const WORD: usize = size_of::<u32>();

/// Where a rank's part of a segment is, as plain data: for code that writes to it without the calls
/// of this library, such as a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteSegment {
    /// The data.
    pub data: RemoteMemory,
    /// The notifications: 32-bit words in the byte order of that rank's host, by their number.
    pub notifications: RemoteMemory,
}

/// Where the notifications begin behind `len` bytes of data.
pub(crate) fn words_at(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT)
}

/// Bytes of data and notifications.
pub(crate) fn total(len: usize, notifications: u32) -> Result<usize, NotifyError> {
    let words = (notifications as usize).checked_mul(WORD);
    let total =
        len.checked_next_multiple_of(ALIGNMENT).zip(words).and_then(|(data, words)| data.checked_add(words));
    total.ok_or_else(|| {
        let source = std::io::ErrorKind::OutOfMemory.into();
        Error::Memory { len, source }.into()
    })
}

impl RemoteSegment {
    /// The description of a part that a rank sends to the others.
    pub(crate) fn describe(whole: RemoteMemory, len: usize, notifications: u32) -> String {
        format!("{whole} {len} {notifications}")
    }

    /// Reads the description of a part.
    pub(crate) fn parse(text: &str) -> Result<Self, NotifyError> {
        let bad = || {
            let reason = format!("{text:?} is not addr:len:rkey len notifications");
            Error::Parse(ParseError { what: "segment", reason })
        };
        let fields: Vec<&str> = text.split(' ').collect();
        let [whole, len, notifications] = fields[..] else { return Err(bad().into()) };
        let whole: RemoteMemory = whole.parse()?;
        let (len, count): (usize, u32) = match (len.parse(), notifications.parse()) {
            (Ok(len), Ok(count)) => (len, count),
            _ => return Err(bad().into()),
        };
        if total(len, count)? as u64 != whole.len {
            return Err(bad().into());
        }
        Ok(RemoteSegment { data: whole.slice(..len)?, notifications: whole.slice(words_at(len)..)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_ranks_tell_is_read_back_and_parts_do_not_overlap(addr in 0u64..1 << 48, len in 0usize..1 << 20, count in 0u32..5000, rkey: u32) {
            let whole = RemoteMemory { addr, len: total(len, count).unwrap() as u64, rkey };
            let remote = RemoteSegment::parse(&RemoteSegment::describe(whole, len, count)).unwrap();
            prop_assert_eq!((remote.data.len, remote.notifications.len), (len as u64, u64::from(count) * 4));
            prop_assert!(remote.data.addr + remote.data.len <= remote.notifications.addr);
            prop_assert_eq!(remote.notifications.addr + remote.notifications.len, addr + whole.len);
            prop_assert_eq!((remote.notifications.addr - addr) % 64, 0);
        }

        #[test]
        fn what_makes_no_sense_is_refused(text: String, len in 0usize..1000, count in 0u32..100) {
            prop_assert!(RemoteSegment::parse(&text).is_err());
            let short = RemoteMemory { addr: 0, len: total(len, count).unwrap() as u64 + 1, rkey: 0 };
            let told = format!("{short} {len} {count}");
            prop_assert!(RemoteSegment::parse(&told).is_err());
        }
    }
}
