//! Why a program cannot use the card under `gdsync soft`.

use std::ffi::{CString, OsStr};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Reason for which a program does not see the card: the system does not load the library into it, or the
/// library does not reach its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// It names no loader.
    Static,
    /// It has the loader of another C library.
    OtherLibrary,
    /// It is not a 64-bit program.
    OtherWidth,
    /// It runs with rights that its caller lacks.
    Privileged,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Obstacle::Static => "is statically linked, so no library can be preloaded into it: link it dynamically",
            Obstacle::OtherLibrary => "is linked with musl, and the library that is preloaded needs glibc: build it for glibc",
            Obstacle::OtherWidth => "is a program of 32 bits, and the library that is preloaded is of 64",
            Obstacle::Privileged => {
                "has rights that its caller has not (setuid, setgid or file capabilities), so the loader preloads nothing into it: run a copy without"
            }
        })
    }
}

/// Maximum depth of script interpreters that are scripts themselves.
const MAX_DEPTH: usize = 4;

/// Returns the first program, among a file and the interpreters of a script, that does not see the card, and
/// why. `None` if there is none or it cannot be told.
pub fn obstacle(program: &Path) -> Option<(PathBuf, Obstacle)> {
    let mut path = program.to_owned();
    for _ in 0..MAX_DEPTH {
        let mut file = File::open(&path).ok()?;
        let mut first = [0; 256];
        let count = file.read(&mut first).ok()?;
        match interpreter(&first[..count]) {
            Some(next) => path = next,
            None => {
                let rights = file.metadata().is_ok_and(|facts| is_privileged(&path, &facts));
                let obstacle = if rights { Some(Obstacle::Privileged) } else { examine(&mut file).ok()? };
                return obstacle.map(|obstacle| (path, obstacle));
            }
        }
    }
    None
}

/// Finds the file of a command as execvp(3) does, in the folders of `PATH`.
pub fn find(command: &OsStr, path: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(command.into());
    }
    let is_program =
        |path: &PathBuf| path.metadata().is_ok_and(|facts| facts.is_file() && facts.mode() & 0o111 != 0);
    std::env::split_paths(path).map(|folder| folder.join(command)).find(is_program)
}

/// Returns the interpreter in the first line of a script.
fn interpreter(first: &[u8]) -> Option<PathBuf> {
    let line = first.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.split(|byte| byte.is_ascii_whitespace()).find(|word| !word.is_empty())?;
    Some(OsStr::from_bytes(name).into())
}

/// Returns whether a program would run in the loader's secure mode (`AT_SECURE` of getauxval(3)).
fn is_privileged(path: &Path, facts: &Metadata) -> bool {
    // SAFETY: the calls have no preconditions.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    changes_rights(facts.mode(), facts.uid() != user, facts.gid() != group)
        || user != 0 && has_capabilities(path)
}

fn changes_rights(mode: u32, other_user: bool, other_group: bool) -> bool {
    // A setgid bit without the group's right to execute means mandatory locking.
    const SET_GROUP: u32 = libc::S_ISGID | libc::S_IXGRP;
    mode & libc::S_ISUID != 0 && other_user || mode & SET_GROUP == SET_GROUP && other_group
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: C strings; with size 0 the call only returns the length.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Returns why the preload library cannot be loaded into a program, if so. Fails for a file that is no program.
fn examine(file: &mut (impl Read + Seek)) -> io::Result<Option<Obstacle>> {
    /// `PT_INTERP`: the segment that names the loader.
    const INTERPRETER: u32 = 3;
    /// Largest plausible number of segments and length of a loader's name.
    const MAX_SEGMENTS: u16 = 1024;
    const MAX_NAME: u64 = 4096;
    let no_program = || io::Error::from(io::ErrorKind::InvalidData);
    let mut header = [0; 64];
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut header)?;
    // The command runs on little-endian machines only.
    if !header.starts_with(b"\x7fELF") || header[5] != 1 {
        return Err(no_program());
    }
    if header[4] != 2 {
        return Ok(Some(Obstacle::OtherWidth));
    }
    let (place, count) = (long(&header, 32), short(&header, 56).min(MAX_SEGMENTS));
    for index in 0..u64::from(count) {
        let mut segment = [0; 56];
        let place = place.checked_add(index * u64::from(short(&header, 54))).ok_or_else(no_program)?;
        file.seek(SeekFrom::Start(place))?;
        file.read_exact(&mut segment)?;
        if u32::from_le_bytes([segment[0], segment[1], segment[2], segment[3]]) == INTERPRETER {
            let mut name = Vec::new();
            file.seek(SeekFrom::Start(long(&segment, 8)))?;
            file.by_ref().take(long(&segment, 32).min(MAX_NAME)).read_to_end(&mut name)?;
            let is_musl = String::from_utf8_lossy(&name).contains("/ld-musl");
            return Ok(is_musl.then_some(Obstacle::OtherLibrary));
        }
    }
    Ok(Some(Obstacle::Static))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// Makes a program with one segment of a type, followed by a name.
    fn program(kind: u32, name: &str) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (bytes[32], bytes[54], bytes[56]) = (64, 56, 1);
        bytes[64..68].copy_from_slice(&kind.to_le_bytes());
        (bytes[64 + 8], bytes[64 + 32]) = (64 + 56, name.len() as u8);
        bytes.extend(name.as_bytes());
        bytes
    }

    fn examined(bytes: Vec<u8>) -> Option<Option<Obstacle>> {
        examine(&mut Cursor::new(bytes)).ok()
    }

    #[test]
    fn programs_are_told_apart() {
        assert_eq!(examined(program(3, "/lib64/ld-linux-x86-64.so.2\0")), Some(None));
        assert_eq!(examined(program(3, "/lib/ld-musl-x86_64.so.1\0")), Some(Some(Obstacle::OtherLibrary)));
        assert_eq!(examined(program(1, "")), Some(Some(Obstacle::Static)));
        let mut short = program(1, "");
        short[4] = 1;
        assert_eq!(examined(short), Some(Some(Obstacle::OtherWidth)));
        let mut far = program(3, "");
        far[32..40].fill(0xff);
        for no_program in [b"text".to_vec(), far, program(1, "")[..100].to_vec()] {
            assert_eq!(examined(no_program), None);
        }
        assert_eq!(obstacle(&std::env::current_exe().unwrap()), None);
        assert_eq!(obstacle(Path::new("/no/such/program")), None);
    }

    #[test]
    fn commands_are_found_as_a_shell_finds_them() {
        let path = OsStr::new("/nowhere:/usr/bin:/bin");
        assert!(find(OsStr::new("sh"), path).is_some_and(|found| found.ends_with("bin/sh")));
        assert_eq!(find(OsStr::new("no-such-program"), path), None);
        assert_eq!(find(OsStr::new("./sh"), path), Some("./sh".into()), "a path is no command");
    }

    #[test]
    fn scripts_name_their_interpreters() {
        assert_eq!(interpreter(b"#! /bin/sh -e\nexit\n"), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"#!/usr/bin/env"), Some("/usr/bin/env".into()));
        assert_eq!((interpreter(b"#!\n"), interpreter(b"\x7fELF")), (None, None));
    }

    #[test]
    fn rights_of_others_are_noticed() {
        assert!(changes_rights(0o104755, true, false));
        assert!(!changes_rights(0o104755, false, true), "its owner runs it");
        assert!(changes_rights(0o102755, false, true));
        assert!(!changes_rights(0o102745, false, true), "mandatory locking");
        assert!(!changes_rights(0o100755, true, true));
    }
}
