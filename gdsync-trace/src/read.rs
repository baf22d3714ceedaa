//! Reading of parts.

use crate::record::{Front, Kind, MAGIC, NO_RANK, RECORD, Record, unpadded};
use std::io::{self, Read};
use zerocopy::FromBytes;

/// The content of a part.
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

/// Reasons why a file is not a part.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPart {
    #[error("it is no part of a gdsync trace of this version: its first bytes are not {:?}", String::from_utf8_lossy(&MAGIC))]
    Front,
    #[error(transparent)]
    Read(#[from] io::Error),
}

/// Reads a part. A truncated one yields its complete records.
pub(crate) fn read(from: &mut impl Read) -> Result<ReadPart, NoPart> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    let (front, rest) = Front::read_from_prefix(&bytes).map_err(|_| NoPart::Front)?;
    if front.magic != MAGIC {
        return Err(NoPart::Front);
    }
    let mut part = ReadPart {
        pid: front.pid,
        rank: (front.rank != NO_RANK).then_some(front.rank),
        name: unpadded(&front.name),
        records: Vec::with_capacity(rest.len() / RECORD),
        dropped: 0,
        is_whole: false,
    };
    let mut unknown = 0;
    for piece in rest.chunks_exact(RECORD) {
        let Ok(record) = Record::read_from_bytes(piece) else { break };
        match Kind::of(record.kind) {
            Some(Kind::End) => {
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
    use crate::testing::{front, record};
    use zerocopy::IntoBytes;

    fn bytes(records: &[Record]) -> Vec<u8> {
        [front(17).as_bytes(), records.as_bytes()].concat()
    }

    #[test]
    fn a_part_that_was_cut_off_has_its_whole_records() {
        let records = [record(Kind::Polled, 1, [0; 3]), record(Kind::Polled, 2, [0; 3])];
        let whole = bytes(&records);
        for (len, count) in [(whole.len(), 2), (whole.len() - 1, 1), (size_of::<Front>(), 0)] {
            let read = read(&mut &whole[..len]).unwrap();
            assert_eq!((read.records.len(), read.is_whole), (count, false), "{len} bytes");
        }
    }

    #[test]
    fn what_is_no_record_is_counted() {
        let mut strange = record(Kind::Polled, 1, [0; 3]);
        strange.kind = 99;
        let end = record(Kind::End, 0, [2, 1, 0]);
        let read = read(&mut &bytes(&[record(Kind::Polled, 1, [0; 3]), strange, end])[..]).unwrap();
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
