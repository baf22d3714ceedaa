//! Progress of a long run, on a terminal only, after the first second, and never with JSON.

use crate::terminal;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a run takes until progress is shown.
const PATIENCE: Duration = Duration::from_secs(1);
/// Update interval without a number of steps.
const TICK: Duration = Duration::from_millis(250);
/// Columns of a terminal that tells no number, and the bar's share of them.
const WIDTH: usize = 80;
const BAR: u64 = 30;

fn is_shown(json: bool) -> bool {
    !json && std::io::stderr().is_terminal()
}

/// The bottom line of the terminal, rewritten in place and erased on drop.
struct Line;

impl Line {
    /// Writes the line, cut to the width of the terminal.
    fn write(&self, what: impl fmt::Display) {
        let columns = terminal::columns_of(io::stderr()).unwrap_or(WIDTH);
        let what: String = what.to_string().chars().take(columns.saturating_sub(1)).collect();
        let _ = write!(io::stderr().lock(), "\r\x1b[2K{what}");
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.write("");
    }
}

/// A bar of the steps done, out of all.
pub struct Progress {
    total: u64,
    unit: &'static str,
    done: u64,
    started: Instant,
    shown: bool,
    line: Option<(Line, Instant)>,
}

impl Progress {
    /// `total` steps of `unit`, such as `exchanges`.
    pub fn new(json: bool, total: u64, unit: &'static str) -> Self {
        Progress { total, unit, done: 0, started: Instant::now(), shown: is_shown(json), line: None }
    }

    pub fn advance(&mut self, count: u64) {
        self.done = self.total.min(self.done.saturating_add(count));
        let now = Instant::now();
        let elapsed = now - self.started;
        let is_due = match &self.line {
            Some((_, last)) => now - *last > TICK,
            None => self.shown && elapsed > PATIENCE,
        };
        if is_due {
            let text = self.text(elapsed);
            let (line, last) = self.line.get_or_insert((Line, now));
            *last = now;
            line.write(text);
        }
    }

    fn text(&self, elapsed: Duration) -> String {
        let part = self.done as f64 / self.total.max(1) as f64;
        let full = (part * BAR as f64) as usize;
        let bar = "#".repeat(full) + &"-".repeat(BAR as usize - full);
        let left = elapsed.as_secs_f64() * (1.0 - part) / part.max(f64::MIN_POSITIVE);
        format!("{bar} {}/{} {}, {left:.0} s left", self.done, self.total, self.unit)
    }
}

/// Shows what runs, and for how long, if the number of steps is unknown; until [`clear`], which precedes all output.
pub fn show(json: bool, what: String) {
    *current() = Activity::start(json, what);
}

/// Removes the line of [`show`], if any.
pub fn clear() {
    let ended = current().take();
    drop(ended);
}

fn current() -> MutexGuard<'static, Option<Activity>> {
    static CURRENT: Mutex<Option<Activity>> = Mutex::new(None);
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Activity {
    ended: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Activity {
    /// Returns none if no thread can be started.
    fn start(json: bool, what: String) -> Option<Self> {
        if !is_shown(json) {
            return None;
        }
        let (ended, end) = channel();
        let started = Instant::now();
        let show = move || {
            if let Err(RecvTimeoutError::Timeout) = end.recv_timeout(PATIENCE) {
                let line = Line;
                while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(TICK) {
                    line.write(format_args!("{what}, {} s", started.elapsed().as_secs()));
                }
            }
        };
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(show).ok()?;
        Some(Activity { ended: Some(ended), thread: Some(thread) })
    }
}

impl Drop for Activity {
    /// Returns once the line is gone.
    fn drop(&mut self) {
        self.ended = None;
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, the message would be on stderr.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_how_much_is_done_and_how_long_the_rest_takes() {
        let mut progress = Progress::new(true, 1000, "exchanges");
        progress.advance(250);
        let half = format!("{}{} 250/1000 exchanges, 30 s left", "#".repeat(7), "-".repeat(23));
        assert_eq!(progress.text(Duration::from_secs(10)), half);
        progress.advance(u64::MAX);
        assert_eq!(progress.text(Duration::from_secs(40)), "#".repeat(30) + " 1000/1000 exchanges, 0 s left");
    }
}
