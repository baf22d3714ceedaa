//! Terminals of a given size, for what looks at them.

use crate::command::gdsync;
use std::fs::File;
use std::io::{Error, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Stdio;

/// Returns master and slave of a terminal, which no process started by another test inherits.
pub fn open(columns: u16, lines: u16) -> (File, OwnedFd) {
    let master = File::options().read(true).write(true).open("/dev/ptmx").unwrap();
    let (fd, locked) = (master.as_raw_fd(), 0);
    let size = libc::winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `locked` and `size` have the types that the calls read; the last call opens a file.
    let slave = unsafe {
        assert_eq!(libc::ioctl(fd, libc::TIOCSPTLCK, &raw const locked), 0);
        assert_eq!(libc::ioctl(fd, libc::TIOCSWINSZ, &raw const size), 0);
        libc::ioctl(fd, libc::TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC)
    };
    assert!(slave >= 0, "{}", Error::last_os_error());
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    (master, unsafe { OwnedFd::from_raw_fd(slave) })
}

/// Runs the command without colours on a terminal of so many columns. Returns what it prints there, on stdout and
/// stderr.
pub fn printed(columns: u16, arguments: &[&str]) -> String {
    let (mut master, slave) = open(columns, 24);
    let end = || Stdio::from(slave.try_clone().unwrap());
    let mut command = gdsync(arguments);
    command
        .env("NO_COLOR", "1")
        .env_remove("CLICOLOR_FORCE")
        .stdin(Stdio::null())
        .stdout(end())
        .stderr(end());
    let mut child = command.spawn().unwrap();
    drop((command, slave));
    let (mut seen, mut part) = (Vec::new(), [0; 4096]);
    // The end is an error: no process has the terminal any more.
    while let Ok(count @ 1..) = master.read(&mut part) {
        seen.extend_from_slice(&part[..count]);
    }
    child.wait().unwrap();
    // Progress, which a busy machine shows, erases itself.
    let seen = String::from_utf8_lossy(&seen).replace("\r\n", "\n");
    let kept = seen.split_inclusive('\n').map(|line| line.rsplit("\x1b[2K").next().unwrap_or_default());
    kept.collect()
}
