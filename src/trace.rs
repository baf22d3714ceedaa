//! `gdsync trace`: runs a command and writes the timeline of all its processes.

use crate::cli::TraceOptions;
use crate::destination::Destination;
use crate::failure::Failure;
use crate::folder::Folder;
use crate::signals::Held;
use crate::text;
use gdsync_trace::{GPU_VARIABLE, Summary, TRACE_VARIABLE};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Runs the command and returns its exit status, or merges existing parts.
pub(crate) fn run(options: &TraceOptions) -> Result<ExitCode, Failure> {
    let output = Destination::new(&options.output)?;
    let Some((name, arguments)) = options.command.split_first() else {
        let summary = merge(&parts(&options.merge)?, output)?;
        report(&options.output, &summary)?;
        return Ok(ExitCode::SUCCESS);
    };
    // As with `gdsync soft`, a signal ends the command, and the folder is removed.
    let signals = Held::new()?;
    let folder = Folder::new()?;
    let mut command = Command::new(name);
    // The trailing `/` marks the variable's value as a folder.
    command.args(arguments).env(TRACE_VARIABLE, folder.path().join(""));
    if options.gpu {
        command.env(GPU_VARIABLE, "1");
    }
    let code = signals.run(&mut command)?;
    let parts = gdsync_trace::parts_in(folder.path())?;
    if parts.is_empty() {
        // A command that could not be run has reported so.
        if code == 0 {
            return Err(format!(
                "there is no trace: no process of {} uses gdsync or its software card",
                name.to_string_lossy()
            )
            .into());
        }
        return Ok(ExitCode::from(code));
    }
    report(&options.output, &merge(&parts, output)?)?;
    Ok(ExitCode::from(code))
}

/// Returns the named parts, and those in named folders.
fn parts(named: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut parts = Vec::new();
    for path in named {
        if !path.is_dir() {
            parts.push(path.clone());
            continue;
        }
        let inside = gdsync_trace::parts_in(path)?;
        if inside.is_empty() {
            return Err(format!(
                "{} has no parts of a trace: name a folder that was the value of {TRACE_VARIABLE}",
                path.display()
            )
            .into());
        }
        parts.extend(inside);
    }
    Ok(parts)
}

fn merge(parts: &[PathBuf], output: Destination) -> Result<Summary, Failure> {
    output.fill(|path| Ok(gdsync_trace::merge(parts, path)?))
}

/// Prints on stderr what the trace contains: stdout is the command's.
fn report(output: &Path, summary: &Summary) -> Result<(), Failure> {
    let Summary { events, messages, processes, dropped, cut_off, .. } = *summary;
    let one_of = |number: u64, one: &str, many: &str| match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {many}"),
    };
    let mut said = format!(
        "gdsync: {} has {} of {} and {}, {dropped} dropped; https://ui.perfetto.dev opens it\n",
        output.display(),
        text::count(events, "event"),
        one_of(processes, "process", "processes"),
        text::count(messages, "message"),
    );
    if cut_off > 0 {
        said += &format!(
            "gdsync: {} lost: of processes that a signal has ended\n",
            one_of(cut_off, "end of a part is", "ends of parts are")
        );
    }
    Ok(io::stderr().lock().write_all(said.as_bytes())?)
}
