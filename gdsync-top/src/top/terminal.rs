//! The terminal during the live view.

use gdsync_cli::failure::Failure;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use std::io::{Stdout, stdout};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// The live view's terminal. Dropping it, or a panic, restores the terminal.
///
/// ratatui's own drop panics if stderr accepts no bytes, as with a terminal that is gone.
pub(super) struct Terminal(ManuallyDrop<ratatui::Terminal<CrosstermBackend<Stdout>>>);

impl Terminal {
    pub(super) fn enter() -> Result<Self, Failure> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
        // In this order, so that a failure undoes earlier steps.
        enable_raw_mode()?;
        let made = execute!(stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| ratatui::Terminal::new(CrosstermBackend::new(stdout())));
        match made {
            Ok(terminal) => Ok(Terminal(ManuallyDrop::new(terminal))),
            Err(error) => {
                restore();
                Err(error.into())
            }
        }
    }
}

impl Deref for Terminal {
    type Target = ratatui::Terminal<CrosstermBackend<Stdout>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Terminal {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal. Errors are ignored: a terminal that is gone cannot be restored.
fn restore() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Error, Read};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::process::{Command, Stdio};

    const ROLE: &str = "GDSYNC_TEST_ROLE";

    /// Returns master and slave, which no process started by another test inherits.
    fn open() -> (File, OwnedFd) {
        let master = File::options().read(true).write(true).open("/dev/ptmx").unwrap();
        let (fd, locked) = (master.as_raw_fd(), 0);
        let size = libc::winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
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

    fn modes(terminal: &OwnedFd) -> [libc::tcflag_t; 4] {
        // SAFETY: all-zero bytes are a valid value of this plain C structure.
        let mut settings: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is valid.
        assert_eq!(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut settings) }, 0);
        [settings.c_iflag, settings.c_oflag, settings.c_cflag, settings.c_lflag]
    }

    #[test]
    fn a_panic_leaves_the_terminal_as_it_was_and_is_said_there() {
        if std::env::var_os(ROLE).is_some() {
            let mut terminal = Terminal::enter().unwrap();
            terminal.draw(|_| panic!("a view that panics")).unwrap();
        }
        let (mut master, slave) = open();
        let before = modes(&slave);
        let end = || Stdio::from(slave.try_clone().unwrap());
        let test = "top::terminal::tests::a_panic_leaves_the_terminal_as_it_was_and_is_said_there";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(ROLE, "panics").env("TERM", "xterm");
        let mut child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        drop(command);
        // Read concurrently, since a full terminal accepts no bytes. The end is an error: no process has the terminal
        // any more.
        let reader = std::thread::spawn(move || {
            let mut seen = Vec::new();
            let _ = master.read_to_end(&mut seen);
            String::from_utf8_lossy(&seen).into_owned()
        });
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(101));
        assert_eq!(modes(&slave), before);
        drop(slave);
        let seen = reader.join().unwrap();
        let last = |what: &str| seen.rfind(what).unwrap_or_else(|| panic!("{what:?} is not in {seen:?}"));
        assert!(
            last("\x1b[?1049l") > last("\x1b[?1049h") && last("\x1b[?25h") > last("\x1b[?25l"),
            "{seen:?}"
        );
        assert!(last("a view that panics") > seen.find("\x1b[?1049l").unwrap(), "{seen:?}");
    }
}
