//! What is shown while a run takes its time: on a terminal, from the second second on, and never beside JSON.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long it takes until progress is shown.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks of what has no number to show.
const TICK: Duration = Duration::from_millis(250);

fn is_shown(json: bool) -> bool {
    !json && std::io::stderr().is_terminal()
}

fn bar(total: Option<u64>, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr()).with_style(style)
}

/// A bar of what is done of all.
pub struct Progress {
    total: u64,
    unit: &'static str,
    done: u64,
    started: Instant,
    shown: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// `total` of `unit`, such as `exchanges`.
    pub fn new(json: bool, total: u64, unit: &'static str) -> Self {
        Progress { total, unit, done: 0, started: Instant::now(), shown: is_shown(json), bar: None }
    }

    /// So many more are done.
    pub fn advance(&mut self, count: u64) {
        self.done = self.total.min(self.done.saturating_add(count));
        if self.bar.is_none() && self.shown && self.started.elapsed() > PATIENCE {
            let template = format!("{{wide_bar}} {{pos}}/{{len}} {}, {{eta}} left", self.unit);
            self.bar = Some(bar(Some(self.total), &template));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Shows a line that says what goes on, and for how long, where the number of steps is not known: until [`clear`], which
/// comes before everything that is printed.
pub fn show(json: bool, what: String) {
    *current() = Activity::start(json, what);
}

/// Takes the line of [`show`] away, if there is one.
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
    /// Where no thread can be had, nothing is shown.
    fn start(json: bool, what: String) -> Option<Self> {
        if !is_shown(json) {
            return None;
        }
        let (ended, end) = channel();
        let show = move || {
            if let Err(RecvTimeoutError::Timeout) = end.recv_timeout(PATIENCE) {
                let line = bar(None, "{spinner} {msg}, {elapsed}").with_message(what);
                while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(TICK) {
                    line.tick();
                }
                line.finish_and_clear();
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
            // It panics nowhere; if it did, the message would be on stderr.
            let _ = thread.join();
        }
    }
}
