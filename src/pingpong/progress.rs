//! A progress bar that appears only when a run takes long, on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How long it takes until progress is shown.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Progress {
    total: u64,
    done: u64,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(super) fn new(total: u64) -> Self {
        Progress { total, done: 0, started: Instant::now(), bar: None }
    }

    pub(super) fn advance(&mut self, count: u64) {
        self.done += count;
        if self.bar.is_none() && self.started.elapsed() > PATIENCE && std::io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(self.total), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} exchanges, {eta} left");
            self.bar = Some(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())));
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
