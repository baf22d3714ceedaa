//! The program of `gdsync top`: activity and waits of this user's processes on software cards and with the library.

mod keys;
mod sampler;
mod screen;
mod table;
mod view;
#[cfg(test)]
mod view_tests;

use gdsync_cli::cli::{Command, TopOptions};
use gdsync_cli::failure::Failure;
use gdsync_cli::{signals, text};
use keys::Keys;
use sampler::Sampler;
use screen::{KeyAction, Screen, Terminal};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;
use view::View;

/// Longest delay of a key or a signal.
const TICK: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    let run = |command| match command {
        Command::Top(options) => run(&options),
        other => gdsync_cli::run(other),
    };
    gdsync_cli::main(run, gdsync_cli::run_process)
}

fn run(options: &TopOptions) -> Result<ExitCode, Failure> {
    if options.once {
        let mut sampler = Sampler::default();
        sampler.sample()?;
        std::thread::sleep(options.interval);
        let view = sampler.sample()?;
        return text::print(options.json, &view, || table::to_text(&view)).map(|()| ExitCode::SUCCESS);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(
            "the live view needs a terminal on stdin and stdout: `gdsync top --once` prints one table".into(),
        );
    }
    signals::note_ends()?;
    // The first sample may fail: the error is reported before the screen changes.
    let mut sampler = Sampler::default();
    let first = sampler.sample()?;
    let views = sample_periodically(sampler, options.interval)?;
    let mut terminal = Terminal::enter()?;
    let result = show(&mut terminal, first, &views, options.interval);
    drop(terminal);
    if result.is_err() {
        // If the terminal is gone, its error precedes the signal that reports it.
        std::thread::sleep(TICK);
    }
    match signals::ended_by() {
        Some(signal) => Ok(ExitCode::from(128u8.saturating_add(signal as u8))),
        None => result.map(|()| ExitCode::SUCCESS),
    }
}

/// Samples processes on a separate thread, so that a silent process does not delay keys.
fn sample_periodically(
    mut sampler: Sampler,
    interval: Duration,
) -> Result<Receiver<Result<View, String>>, Failure> {
    let (sender, views) = sync_channel(1);
    let look = move || {
        loop {
            std::thread::sleep(interval);
            if sender.send(sampler.sample().map_err(|error| error.to_string())).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("look".to_owned()).spawn(look)?;
    Ok(views)
}

/// Shows views until a key, a signal or an error.
fn show(
    terminal: &mut Terminal,
    first: View,
    views: &Receiver<Result<View, String>>,
    interval: Duration,
) -> Result<(), Failure> {
    let has_colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut keys = Keys::of(std::io::stdin())?;
    let mut screen = Screen::new(first, interval, has_colors);
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        if signals::ended_by().is_some() {
            return Ok(());
        }
        if keys.wait(TICK)?.into_iter().any(|key| screen.press(key) == KeyAction::Quit) {
            return Ok(());
        }
        match views.try_recv() {
            Ok(Ok(view)) => screen.take(view),
            Ok(Err(error)) => return Err(error.into()),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                return Err("the thread that looks at processes has ended".into());
            }
        }
    }
}
