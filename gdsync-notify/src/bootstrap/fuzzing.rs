//! Entry points of fuzz targets, built only for them (`cfg(fuzzing)`, which cargo-fuzz sets).

use super::frame::{Reader, Stop, decode_list, encode_list};

/// Longest payload of a message, small enough for the fuzzer to reach it.
const LIMIT: usize = 200;

/// Parses the bytes of a connection in pieces of the first byte's length.
pub fn messages(bytes: &[u8]) {
    let Some((piece, bytes)) = bytes.split_first() else { return };
    let (mut reader, mut position) = (Reader::new(LIMIT), 0);
    for piece in bytes.chunks(usize::from(*piece).max(1)) {
        reader.feed(piece);
        loop {
            match reader.next() {
                Ok(Some(frame)) => {
                    assert!(frame.payload.len() <= LIMIT);
                    let encoded = frame.encode();
                    assert!(bytes[position..].starts_with(&encoded), "{frame:?}");
                    position += encoded.len();
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// Parses the structured payloads: a list of parts, and a stop.
pub fn payloads(bytes: &[u8]) {
    let Some((count, bytes)) = bytes.split_first() else { return };
    if let Ok(parts) = decode_list(bytes, u32::from(*count)) {
        assert_eq!((parts.len(), encode_list(&parts)), (usize::from(*count), bytes.to_vec()));
    }
    if let Ok(stop) = Stop::decode(bytes) {
        assert_eq!(stop.encode(), bytes);
    }
}
