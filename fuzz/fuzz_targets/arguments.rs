//! The command's arguments, one per line: they parse or are rejected with a message.
#![no_main]

use gdsync_cli::cli::Cli;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    use std::os::unix::ffi::OsStrExt;
    let words = bytes.split(|byte| *byte == b'\n').map(std::ffi::OsStr::from_bytes);
    if let Err(error) = Cli::parse_words(std::iter::once("gdsync".as_ref()).chain(words)) {
        assert!(!error.to_string().is_empty());
    }
});
