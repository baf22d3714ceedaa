//! The terminal while the live view has it.

use crate::failure::Failure;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use std::io::{Stdout, stdout};
use std::ops::{Deref, DerefMut};

/// The screen of the view. The terminal is as it was before once this is dropped, and after a panic.
pub(super) struct Terminal(ratatui::Terminal<CrosstermBackend<Stdout>>);

impl Terminal {
    pub(super) fn enter() -> Result<Self, Failure> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
        // In this order: whatever fails, what was done before is undone.
        enable_raw_mode()?;
        let made = execute!(stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| ratatui::Terminal::new(CrosstermBackend::new(stdout())));
        match made {
            Ok(terminal) => Ok(Terminal(terminal)),
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

/// A terminal that is gone cannot be restored, and need not be.
fn restore() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}
