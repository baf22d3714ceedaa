//! The live view: its screen, its keys, and its terminal.

use crate::keys::Key;
use crate::table::{LineStyle, Order, lines};
use crate::view::View;
use gdsync_cli::failure::Failure;
use gdsync_cli::text;
use ratatui::Frame;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use std::io::{Stdout, stdout};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

const KEYS: &str = "q quit   p pause   s sort   w all columns   arrows, PgUp, PgDn, Home, End scroll";
/// Columns scrolled by an arrow key.
const COLUMN_STEP: u16 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyAction {
    Continue,
    Quit,
}

pub(crate) struct Screen {
    view: View,
    interval: Duration,
    has_colors: bool,
    is_paused: bool,
    /// True if all columns are there, as wide as they are.
    is_wide: bool,
    order: Order,
    /// First visible line and column.
    top: u16,
    left: u16,
    /// Lines of the last frame.
    room: u16,
}

impl Screen {
    pub(crate) fn new(view: View, interval: Duration, has_colors: bool) -> Self {
        Screen {
            view,
            interval,
            has_colors,
            is_paused: false,
            is_wide: false,
            order: Order::default(),
            top: 0,
            left: 0,
            room: 1,
        }
    }

    /// Replaces the view, unless paused.
    pub(crate) fn take(&mut self, view: View) {
        if !self.is_paused {
            self.view = view;
        }
    }

    pub(crate) fn press(&mut self, key: Key) -> KeyAction {
        let page = self.room.saturating_sub(1).max(1);
        match key {
            Key::Quit => return KeyAction::Quit,
            Key::Pause => self.is_paused = !self.is_paused,
            Key::Wide => self.is_wide = !self.is_wide,
            Key::Sort => self.order = self.order.next(),
            Key::Up => self.top = self.top.saturating_sub(1),
            Key::Down => self.top = self.top.saturating_add(1),
            Key::Left => self.left = self.left.saturating_sub(COLUMN_STEP),
            Key::Right => self.left = self.left.saturating_add(COLUMN_STEP),
            Key::PageUp => self.top = self.top.saturating_sub(page),
            Key::PageDown => self.top = self.top.saturating_add(page),
            Key::Home => (self.top, self.left) = (0, 0),
            Key::End => self.top = u16::MAX,
        }
        KeyAction::Continue
    }

    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>) {
        let rows = [Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)];
        let [head, body, foot] = Layout::vertical(rows).areas(frame.area());
        let lines = lines(&self.view, self.order, (!self.is_wide).then_some(body.width.into()));
        self.room = body.height;
        // Scrolls at most to the last line and column.
        let height = u16::try_from(lines.len()).unwrap_or(u16::MAX);
        let width = lines.iter().map(|(_, line)| line.chars().count()).max().unwrap_or(0);
        let width = u16::try_from(width).unwrap_or(u16::MAX);
        self.top = self.top.min(height.saturating_sub(body.height));
        self.left = self.left.min(width.saturating_sub(body.width));
        let lines: Vec<Line<'_>> =
            lines.into_iter().map(|(look, line)| Line::styled(line, self.style(look))).collect();
        let reversed = Style::new().add_modifier(Modifier::REVERSED);
        frame.render_widget(Paragraph::new(self.title()).style(reversed), head);
        frame.render_widget(Paragraph::new(lines).scroll((self.top, self.left)), body);
        frame.render_widget(Paragraph::new(KEYS).style(reversed), foot);
    }

    fn title(&self) -> String {
        let processes = &self.view.processes;
        let cards: usize = processes.iter().map(|process| process.cards.len()).sum();
        let pairs = processes.iter().flat_map(|process| &process.cards).map(|card| card.queue_pairs.len());
        let counted = [
            format!("{} process{}", processes.len(), if processes.len() == 1 { "" } else { "es" }),
            text::count(cards as u64, "card"),
            text::count(pairs.sum::<usize>() as u64, "queue pair"),
        ];
        let pause = if self.is_paused { ", PAUSED" } else { "" };
        let (every, by) = (self.interval, self.order.name());
        format!("gdsync top: {}; every {every:?}, by {by}{pause}", counted.join(", "))
    }

    /// Uses the terminal's colors except for alarms: red is legible on light and on dark backgrounds.
    fn style(&self, look: LineStyle) -> Style {
        match look {
            LineStyle::Header => Style::new().add_modifier(Modifier::BOLD),
            LineStyle::Plain => Style::new(),
            LineStyle::Alarm if self.has_colors => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
            LineStyle::Alarm => Style::new().add_modifier(Modifier::BOLD),
        }
    }
}

/// The live view's terminal. Dropping it, or a panic, restores the terminal.
///
/// ratatui's own drop panics if stderr accepts no bytes, as with a terminal that is gone.
pub(crate) struct Terminal(ManuallyDrop<ratatui::Terminal<CrosstermBackend<Stdout>>>);

impl Terminal {
    pub(crate) fn enter() -> Result<Self, Failure> {
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
    use gdsync_test_support::terminal;
    use std::io::Read;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::process::{Command, Stdio};

    const ROLE: &str = "GDSYNC_TEST_ROLE";

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
        let (mut master, slave) = terminal::open(100, 30);
        let before = modes(&slave);
        let end = || Stdio::from(slave.try_clone().unwrap());
        let test = "screen::tests::a_panic_leaves_the_terminal_as_it_was_and_is_said_there";
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
