//! The output of ranks: whole lines, each with its rank, and the last line of standard error of each.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

/// Time without output after which no more is expected, once all ranks have ended. Only a process that has left the
/// group, which nothing ends, still holds a pipe then.
const REST: Duration = Duration::from_secs(1);
/// Longest line that is kept whole.
pub(super) const MAX_LINE: u64 = 1 << 16;
/// The same for lines of other hosts, which already have their rank.
pub(super) const MAX_PREFIXED: u64 = MAX_LINE + 16;
/// Last line of a panic of Rust, which says nothing about its cause.
const HINT: &str = "note: run with `RUST_BACKTRACE=1`";

/// Number of threads that write output, and of lines that have been written.
static WRITING: AtomicUsize = AtomicUsize::new(0);
static LINES: AtomicUsize = AtomicUsize::new(0);

/// The last lines of standard error, by the name of the rank or host.
#[derive(Clone, Debug, Default)]
pub(super) struct LastLines(Arc<Mutex<BTreeMap<String, String>>>);

impl LastLines {
    pub(super) fn note(&self, of: &str, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end();
        if !line.trim().is_empty() && !line.starts_with(HINT) {
            let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            line.clone_into(lines.entry(of.to_owned()).or_default());
        }
    }

    pub(super) fn of(&self, name: &str) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}

/// Returns the text before each line of a rank, which also names the rank in [`LastLines`].
pub(super) fn prefix(rank: u32) -> String {
    format!("[{rank}] ")
}

/// Starts a thread that copies lines until the pipe ends, each as `edit` returns it, and calls `done` then. A line has up
/// to `limit` bytes, and is written by one call, so that those of several ranks do not mix. If this process's own output is closed, the rank's is,
/// too. `ended` is held until the end.
pub(super) fn copy<W: Write + 'static>(
    from: impl Read + Send + 'static,
    limit: u64,
    to: fn() -> W,
    ended: &Sender<()>,
    mut edit: impl FnMut(&[u8]) -> Option<Vec<u8>> + Send + 'static,
    done: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let ended = ended.clone();
    let body = move || {
        let _ended = ended;
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            match from.by_ref().take(limit).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            let Some(line) = edit(&line) else { continue };
            let mut to = to();
            WRITING.fetch_add(1, Ordering::Relaxed);
            let written = to.write_all(&line).and_then(|()| to.flush());
            LINES.fetch_add(1, Ordering::Relaxed);
            WRITING.fetch_sub(1, Ordering::Relaxed);
            if written.is_err() {
                break;
            }
        }
        done();
    };
    thread::Builder::new().name("output".to_owned()).spawn(body).map(drop)
}

/// Waits for the rest of the output, as long as this process's own output takes it.
pub(super) fn rest(all_ended: &Receiver<()>) {
    let mut before = None;
    while let Err(RecvTimeoutError::Timeout) = all_ended.recv_timeout(REST) {
        let lines = LINES.load(Ordering::Relaxed);
        if WRITING.load(Ordering::Relaxed) == 0 && before == Some(lines) {
            return;
        }
        before = Some(lines);
    }
}
