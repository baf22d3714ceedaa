//! Records of events, the header of a part, and the reading of parts.

use std::io::{self, Read};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Declares the kinds of records, with their numbers, and their names in traces and profilers.
macro_rules! kinds {
    ($(#[$about:meta])* $kinds:ident { $($(#[$doc:meta])* $kind:ident = $number:literal, $name:literal;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum $kinds { $($(#[$doc])* $kind = $number,)* }

        impl $kinds {
            pub(crate) const ALL: [$kinds; [$($number),*].len()] = [$($kinds::$kind),*];

            /// Returns its name in traces and profilers.
            pub(crate) const fn name(self) -> &'static str {
                match self { $($kinds::$kind => $name),* }
            }
        }
    };
}

kinds! {
    /// Kinds of events. The numbers are those of the records; each kind lists the content of a record's words.
    ///
    /// A *queue* is a queue pair of a card: `node << 32 | number`, where the node is the card's LID, or on the fabric of several hosts its IPv4 address.
    EventKind {
        /// The thread's name: 16 bytes, padded with zeros; then 1 if the program set it, or 0 if it is the system's.
        ThreadName = 1, "name thread";
        /// A card's name: its node, and 16 bytes.
        CardName = 2, "name card";
        /// The library created a queue pair: the address of its doorbell register's page, and the queue.
        QueuePair = 3, "make queue pair";
        /// A send was prepared: the address of its doorbell register, and the doorbell.
        PreparedSend = 4, "prepare send";
        /// A wait was prepared: the number of the completion queue, and the index of the entry.
        PreparedWait = 5, "prepare wait";
        /// The CPU posted a receive: the queue, and its `wr_id`.
        PostedReceive = 6, "post receive";
        /// The CPU submitted memory operations to a stream: the stream, their number, and the submission's number in
        /// the process.
        Posted = 7, "post";
        /// A doorbell among the operations of the [`EventKind::Posted`] that ends after it: register, doorbell, and the
        /// submission's number.
        PostedDoorbell = 8, "post doorbell";
        /// The CPU rang a doorbell: register and doorbell.
        Rung = 9, "ring by the CPU";
        /// A stream reached a wait: address, value, and bits of the word.
        WaitBegin = 10, "wait";
        /// The wait ended; the words of its begin.
        WaitEnd = 11, "wait";
        /// A stream stored: address, value, and bits of the word.
        Stored = 12, "store";
        /// A stream ran a closure of the program.
        Kernel = 13, "kernel";
        /// The CPU waited until a stream was idle.
        Synchronize = 14, "synchronize";
        /// The CPU polled a completion: the queue pair's number, and the `wr_id`.
        Polled = 15, "poll";
        /// The card saw a doorbell: the queue, and the index of the WQE.
        DoorbellSeen = 16, "doorbell";
        /// The last packet of a message left the card: the queue, the packet's PSN `<< 32 |` bytes of the message,
        /// and the destination's node `<< 32 |` the packet's kind `<< 24 |` the index of the WQE.
        Sent = 17, "send";
        /// The last packet of a message arrived at a queue: the queue, the packet's PSN `<< 32 |` bytes of the
        /// message, and the source's node `<< 32 |` the packet's kind `<< 24 |` its queue pair.
        Arrived = 18, "arrive";
        /// The card wrote a completion entry: the queue, the number of the completion queue, and the entry's opcode
        /// `<< 16 |` the WQE's counter.
        Completed = 19, "complete";
        /// The last record of a part: number of records before it, and of dropped records.
        End = 20, "end";
        /// A GPU performed a submission, measured by CUDA events: the stream, the number of operations, and the
        /// submission's number.
        Performed = 21, "memory operations";
    }
}

impl EventKind {
    /// Returns the kind with a number.
    pub(crate) fn of(number: u32) -> Option<EventKind> {
        EventKind::ALL.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// A record of an event. Integers have the host's byte order: parts do not leave the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Record {
    /// Begin, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) at: u64,
    /// End; equal to the begin for a moment.
    pub(crate) until: u64,
    pub(crate) kind: u32,
    /// The thread's id (gettid(2)).
    pub(crate) thread: u32,
    pub(crate) words: [u64; 3],
}

pub(crate) const RECORD: usize = size_of::<Record>();

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: [u8; 8],
    pub(crate) pid: u32,
    /// Its rank in a job, or [`NO_RANK`].
    pub(crate) rank: u32,
    /// The command line, truncated, padded with zeros.
    pub(crate) name: [u8; 48],
}

/// The first bytes of a part. The last one is the version of the format.
pub(crate) const MAGIC: [u8; 8] = *b"gdsynct1";
/// The rank of a process outside of a job.
pub(crate) const NO_RANK: u32 = u32::MAX;

/// Encodes text as bytes of a record: truncated at a character boundary, padded with zeros.
pub(crate) fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let mut len = text.len().min(N);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
    bytes
}

/// Decodes such text. Invalid UTF-8 becomes U+FFFD.
pub(crate) fn unpadded(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Encodes padded text as `N` words of a record.
pub(crate) fn text_words<const N: usize>(text: &str) -> [u64; N] {
    let mut words = [0; N];
    let bytes: [u8; 24] = padded(text);
    let len = words.as_bytes().len().min(bytes.len());
    words.as_mut_bytes()[..len].copy_from_slice(&bytes[..len]);
    words
}

#[derive(Debug)]
pub(crate) struct ReadPart {
    pub(crate) pid: u32,
    pub(crate) rank: Option<u32>,
    pub(crate) name: String,
    pub(crate) records: Vec<Record>,
    pub(crate) dropped: u64,
    /// True if it has its end record, and only records of known kinds.
    pub(crate) is_whole: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PartError {
    #[error("it is no part of a gdsync trace of this version: its first bytes are not {:?}", String::from_utf8_lossy(&MAGIC))]
    Header,
    #[error(transparent)]
    Read(#[from] io::Error),
}

/// Reads a part. A truncated one yields its complete records.
pub(crate) fn read(from: &mut impl Read) -> Result<ReadPart, PartError> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    let (header, rest) = Header::read_from_prefix(&bytes).map_err(|_| PartError::Header)?;
    if header.magic != MAGIC {
        return Err(PartError::Header);
    }
    let mut part = ReadPart {
        pid: header.pid,
        rank: (header.rank != NO_RANK).then_some(header.rank),
        name: unpadded(&header.name),
        records: Vec::with_capacity(rest.len() / RECORD),
        dropped: 0,
        is_whole: false,
    };
    let mut unknown = 0;
    for piece in rest.chunks_exact(RECORD) {
        let Ok(record) = Record::read_from_bytes(piece) else { break };
        match EventKind::of(record.kind) {
            Some(EventKind::End) => {
                let [count, dropped, _] = record.words;
                part.dropped = dropped;
                part.is_whole = count == part.records.len() as u64;
                break;
            }
            Some(_) => part.records.push(record),
            None => unknown += 1,
        }
    }
    part.dropped += unknown;
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{header, record};
    use std::mem::offset_of;

    #[test]
    fn records_have_no_padding_and_fixed_places() {
        assert_eq!((size_of::<Record>(), size_of::<Header>()), (48, 64));
        let places = [
            offset_of!(Record, at),
            offset_of!(Record, until),
            offset_of!(Record, kind),
            offset_of!(Record, thread),
            offset_of!(Record, words),
        ];
        assert_eq!(places, [0, 8, 16, 20, 24]);
    }

    #[test]
    fn every_kind_is_found_by_its_number_and_others_are_not() {
        for (position, kind) in EventKind::ALL.into_iter().enumerate() {
            assert_eq!((kind as usize, EventKind::of(kind as u32)), (position + 1, Some(kind)));
        }
        assert_eq!([0, 22, u32::MAX].map(EventKind::of), [None; 3]);
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(unpadded(&padded::<8>("stream 1")), "stream 1");
        assert_eq!(unpadded(&padded::<8>("1234567µ")), "1234567");
        assert_eq!(unpadded(&[b'a', 0xff, b'b']), "a\u{fffd}b");
        assert_eq!(unpadded(text_words::<3>("stream 12").as_bytes()), "stream 12");
        assert_eq!(unpadded(text_words::<2>("a name of twenty bytes").as_bytes()), "a name of twenty");
    }

    fn bytes(records: &[Record]) -> Vec<u8> {
        [header(17).as_bytes(), records.as_bytes()].concat()
    }

    #[test]
    fn a_part_that_was_cut_off_has_its_whole_records() {
        let records = [record(EventKind::Polled, 1, [0; 3]), record(EventKind::Polled, 2, [0; 3])];
        let whole = bytes(&records);
        for (len, count) in [(whole.len(), 2), (whole.len() - 1, 1), (size_of::<Header>(), 0)] {
            let read = read(&mut &whole[..len]).unwrap();
            assert_eq!((read.records.len(), read.is_whole), (count, false), "{len} bytes");
        }
    }

    #[test]
    fn what_is_no_record_is_counted() {
        let mut strange = record(EventKind::Polled, 1, [0; 3]);
        strange.kind = 99;
        let end = record(EventKind::End, 0, [2, 1, 0]);
        let read = read(&mut &bytes(&[record(EventKind::Polled, 1, [0; 3]), strange, end])[..]).unwrap();
        assert_eq!((read.records.len(), read.dropped, read.is_whole), (1, 2, false));
    }

    #[test]
    fn other_files_are_refused() {
        for other in [&b""[..], b"[{}]", &[0; 200]] {
            let error = read(&mut &other[..]).unwrap_err().to_string();
            assert!(error.contains("no part of a gdsync trace"), "{error}");
        }
    }
}
