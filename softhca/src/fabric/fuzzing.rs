//! Entry points of fuzz targets, built only for them (`cfg(fuzzing)`, which cargo-fuzz sets).

use super::frame;
use super::packet::{MAX_HEADER, MAX_PAYLOAD};

/// Parses the bytes of a connection between two cards: the greeting, then packets.
pub fn frames(bytes: &[u8]) {
    let Ok(greeted) = frame::parse_greeting(bytes) else { return };
    let mut rest = match greeted {
        Some(greeting) => {
            assert!(bytes.starts_with(&greeting.bytes()));
            &bytes[frame::GREETING_BYTES..]
        }
        None => bytes,
    };
    while let Ok(Some(found)) = frame::parse(rest) {
        assert!(found.header.len() <= MAX_HEADER && found.payload.len() <= MAX_PAYLOAD);
        let lengths = frame::lengths(found.header.len(), found.payload.len());
        let whole = [&lengths.unwrap_or_default()[..], found.header, found.payload].concat();
        assert!(rest.starts_with(&whole) && whole.len() == found.len());
        rest = &rest[found.len()..];
    }
}
