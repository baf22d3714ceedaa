//! Bytes of a connection from another process: the exchange of keys, packets of cards, or messages of a job's
//! bootstrap. The first byte selects which.
#![no_main]

use gdsync_auth::{Exchange, Key};
use std::io::{self, ErrorKind, Read, Write};
use std::sync::LazyLock;

static KEY: LazyLock<Key> = LazyLock::new(|| Key::new(b"the fuzzer has no key").expect("it is long enough"));

/// A connection that delivers these bytes, a few at a time.
struct Connection<'a> {
    bytes: &'a [u8],
    at_most: usize,
}

impl Read for Connection<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(self.at_most).min(self.bytes.len());
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let (now, later) = self.bytes.split_at(count);
        into[..count].copy_from_slice(now);
        self.bytes = later;
        Ok(count)
    }
}

impl Write for Connection<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len().min(self.at_most))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// No bytes prove the key, on either side.
fn exchange(bytes: &[u8]) {
    let Some((at_most, bytes)) = bytes.split_first() else { return };
    let at_most = usize::from(*at_most).max(1);
    let sides = [Exchange::connecting(&KEY, b"fuzz"), Exchange::accepting(&KEY, b"fuzz")];
    for mut side in sides.into_iter().flatten() {
        let mut connection = Connection { bytes, at_most };
        assert!(!matches!(side.advance(&mut connection), Ok(true)));
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    match which % 4 {
        0 => softhca::fabric::fuzzing::frames(bytes),
        1 => gdsync_notify::bootstrap::fuzzing::messages(bytes),
        2 => gdsync_notify::bootstrap::fuzzing::payloads(bytes),
        _ => exchange(bytes),
    }
});
