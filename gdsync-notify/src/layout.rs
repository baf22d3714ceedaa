//! Where a rank's part of a segment lies: the data, and the notifications, behind the data where the library
//! has allocated both.

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

/// Bytes of notifications.
pub(crate) fn words_bytes(notifications: u32) -> usize {
    notifications as usize * WORD
}

/// Bytes of data and notifications.
pub(crate) fn total(len: usize, notifications: u32) -> Result<usize, NotifyError> {
    let data = len.checked_next_multiple_of(ALIGNMENT);
    data.and_then(|data| data.checked_add(words_bytes(notifications))).ok_or_else(|| {
        let source = std::io::ErrorKind::OutOfMemory.into();
        Error::Memory { len, source }.into()
    })
}

impl RemoteSegment {
    /// The description of a part that a rank sends to the others.
    pub(crate) fn describe(&self) -> String {
        format!("{} {}", self.data, self.notifications)
    }

    /// Reads the description of a part.
    pub(crate) fn parse(text: &str) -> Result<Self, NotifyError> {
        let bad = || {
            let reason = format!("{text:?} is not the addr:len:rkey of data and that of notifications");
            Error::Parse(ParseError { what: "segment", reason })
        };
        let (data, notifications) = text.split_once(' ').ok_or_else(bad)?;
        let (data, notifications): (RemoteMemory, RemoteMemory) = (data.parse()?, notifications.parse()?);
        let is_words = |number: u64| number.is_multiple_of(WORD as u64);
        let count = notifications.len / WORD as u64;
        if !is_words(notifications.addr) || !is_words(notifications.len) || count > u64::from(u32::MAX) {
            return Err(bad().into());
        }
        Ok(RemoteSegment { data, notifications })
    }

    /// Notifications.
    pub(crate) fn count(&self) -> u32 {
        (self.notifications.len / WORD as u64) as u32
    }

    /// The notifications have another key than the data.
    pub(crate) fn has_two_keys(&self) -> bool {
        self.notifications.len > 0 && self.notifications.rkey != self.data.rkey
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_ranks_tell_is_read_back(addr in 0u64..1 << 48, len in 0u64..1 << 40, words in 0u64..1 << 46, count: u32, rkeys: (u32, u32)) {
            let data = RemoteMemory { addr, len, rkey: rkeys.0 };
            let notifications = RemoteMemory { addr: words * 4, len: u64::from(count) * 4, rkey: rkeys.1 };
            let segment = RemoteSegment { data, notifications };
            prop_assert_eq!(RemoteSegment::parse(&segment.describe()).unwrap(), segment);
            prop_assert_eq!(segment.count(), count);
            prop_assert_eq!(segment.has_two_keys(), count > 0 && rkeys.0 != rkeys.1);
        }

        #[test]
        fn notifications_behind_data_are_not_in_its_cache_lines(len in 0usize..1 << 20, count in 0u32..5000) {
            prop_assert!(words_at(len) >= len && words_at(len).is_multiple_of(64));
            prop_assert_eq!(total(len, count).unwrap(), words_at(len) + count as usize * 4);
        }

        #[test]
        fn what_makes_no_sense_is_refused(text: String, odd in 1u64..4) {
            prop_assert!(RemoteSegment::parse(&text).is_err());
            for (addr, len) in [(odd, 8), (8, 8 + odd), (8, 1 << 34)] {
                let (data, notifications) = (RemoteMemory { addr: 0, len: 8, rkey: 1 }, RemoteMemory { addr, len, rkey: 1 });
                let segment = RemoteSegment { data, notifications };
                prop_assert!(RemoteSegment::parse(&segment.describe()).is_err());
            }
        }
    }
}
