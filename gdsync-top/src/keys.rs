//! Keys of a terminal in raw mode. (crossterm's events read a closed terminal endlessly.)

use gdsync_sys::local::readable;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Quit,
    Pause,
    Sort,
    Wide,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
}

const ESC: u8 = 0x1b;
const CONTROL_C: u8 = 3;
/// Longer than any key's sequence.
const MAX_LENGTH: usize = 32;

pub(crate) struct Keys {
    terminal: File,
    /// The first bytes of an incomplete sequence.
    begun: Vec<u8>,
}

impl Keys {
    pub(crate) fn of(terminal: impl AsFd) -> io::Result<Self> {
        let terminal = File::from(terminal.as_fd().try_clone_to_owned()?);
        Ok(Keys { terminal, begun: Vec::new() })
    }

    /// Returns the keys pressed within `within`; returns early after the first ones or a signal.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) fn wait(&mut self, within: Duration) -> io::Result<Vec<Key>> {
        if readable(&[&self.terminal], within)? != [true] {
            // Nothing follows, so it is the escape key.
            let is_escape = std::mem::take(&mut self.begun) == [ESC];
            return Ok(if is_escape { vec![Key::Quit] } else { Vec::new() });
        }
        let mut bytes = [0; 256];
        match self.terminal.read(&mut bytes) {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the terminal is gone")),
            Ok(count) => {
                self.begun.extend_from_slice(&bytes[..count]);
                Ok(self.take())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn take(&mut self) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut rest = &self.begun[..];
        while let Some((key, length)) = first(rest) {
            keys.extend(key);
            rest = &rest[length..];
        }
        let left = if rest.len() > MAX_LENGTH { 0 } else { rest.len() };
        self.begun.drain(..self.begun.len() - left);
        keys
    }
}

/// Returns the first key, if it has a function, and its length in bytes. `None` if it is incomplete.
fn first(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    match bytes {
        [] | [ESC] | [ESC, b'[' | b'O'] => None,
        [ESC, b'[' | b'O', rest @ ..] => {
            // Parameters, and the final byte.
            let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte))?;
            Some((sequence(&rest[..end], rest[end]), end + 3))
        }
        [ESC, ESC, ..] => Some((Some(Key::Quit), 1)),
        // A key with Alt.
        [ESC, _, ..] => Some((None, 2)),
        [b'q' | CONTROL_C, ..] => Some((Some(Key::Quit), 1)),
        [b'p', ..] => Some((Some(Key::Pause), 1)),
        [b's', ..] => Some((Some(Key::Sort), 1)),
        [b'w', ..] => Some((Some(Key::Wide), 1)),
        _ => Some((None, 1)),
    }
}

fn sequence(parameters: &[u8], last: u8) -> Option<Key> {
    // Modifiers (Shift, Alt and Control) follow a semicolon.
    let number = parameters.split(|byte| *byte == b';').next().unwrap_or_default();
    Some(match (last, number) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'C', _) => Key::Right,
        (b'D', _) => Key::Left,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::OwnedFd;

    const LONG: Duration = Duration::from_secs(60);

    fn keys() -> (Keys, impl Write) {
        let (reader, writer) = io::pipe().unwrap();
        (Keys::of(OwnedFd::from(reader)).unwrap(), writer)
    }

    #[test]
    fn keys_are_known_by_their_bytes() {
        let (mut keys, mut terminal) = keys();
        terminal
            .write_all(b"q\x03pswx\x1b[A\x1bOB\x1b[1;5C\x1b[D\x1b[5~\x1b[6;2~\x1b[H\x1b[4~\x1b[8~\x1b[7~")
            .unwrap();
        let expected = [
            Key::Quit,
            Key::Quit,
            Key::Pause,
            Key::Sort,
            Key::Wide,
            Key::Up,
            Key::Down,
            Key::Right,
            Key::Left,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::End,
            Key::Home,
        ];
        assert_eq!(keys.wait(LONG).unwrap(), expected);
        // Others: with Alt, a function key, a letter of several bytes.
        terminal.write_all("\x1bq\x1b[15~µ\x1b\x1b[Z".as_bytes()).unwrap();
        assert_eq!(keys.wait(LONG).unwrap(), [Key::Quit]);
        assert_eq!(keys.wait(Duration::ZERO).unwrap(), []);
    }

    #[test]
    fn a_sequence_may_come_in_parts_and_an_escape_alone_is_a_key() {
        let (mut keys, mut terminal) = keys();
        for (part, expected) in
            [(&b"\x1b"[..], &[][..]), (b"[", &[]), (b"6", &[]), (b"~p", &[Key::PageDown, Key::Pause])]
        {
            terminal.write_all(part).unwrap();
            assert_eq!(keys.wait(LONG).unwrap(), expected);
        }
        terminal.write_all(b"\x1b").unwrap();
        assert_eq!(keys.wait(LONG).unwrap(), []);
        assert_eq!(keys.wait(Duration::ZERO).unwrap(), [Key::Quit]);
        // A sequence without an end is dropped.
        terminal.write_all(&[&b"\x1b["[..], &[b'1'; 200]].concat()).unwrap();
        assert_eq!(keys.wait(LONG).unwrap(), []);
        terminal.write_all(b"s").unwrap();
        assert_eq!(keys.wait(LONG).unwrap(), [Key::Sort]);
    }

    #[test]
    fn a_terminal_that_is_gone_is_an_error() {
        let (mut keys, terminal) = keys();
        drop(terminal);
        assert_eq!(keys.wait(LONG).unwrap_err().to_string(), "the terminal is gone");
    }
}
