//! The live view: its screen and its keys.

use super::keys::Key;
use super::table::{LineStyle, Order, lines};
use super::view::View;
use gdsync_cli::text;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use std::time::Duration;

const KEYS: &str = "q quit   p pause   s sort   arrows, PgUp, PgDn, Home, End scroll";
/// Columns scrolled by an arrow key.
const COLUMN_STEP: u16 = 8;

/// The consequence of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyAction {
    Continue,
    Quit,
}

/// The state of the screen.
pub(super) struct Screen {
    view: View,
    interval: Duration,
    has_colors: bool,
    is_paused: bool,
    order: Order,
    /// First visible line and column.
    top: u16,
    left: u16,
    /// Lines of the last frame.
    room: u16,
}

impl Screen {
    pub(super) fn new(view: View, interval: Duration, has_colors: bool) -> Self {
        Screen {
            view,
            interval,
            has_colors,
            is_paused: false,
            order: Order::default(),
            top: 0,
            left: 0,
            room: 1,
        }
    }

    /// Replaces the view, unless paused.
    pub(super) fn take(&mut self, view: View) {
        if !self.is_paused {
            self.view = view;
        }
    }

    pub(super) fn press(&mut self, key: Key) -> KeyAction {
        let page = self.room.saturating_sub(1).max(1);
        match key {
            Key::Quit => return KeyAction::Quit,
            Key::Pause => self.is_paused = !self.is_paused,
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

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let rows = [Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)];
        let [head, body, foot] = Layout::vertical(rows).areas(frame.area());
        let lines = lines(&self.view, self.order);
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
