//! Refusals of the cards of a process, for `gdsync soft --strict`: lines of a file in the job's folder.

use super::journal::Entry;
use super::names;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Folder inside a job's in which each process notes what its cards refuse, if it is there. A file is a journal of
/// [`Entry::Found`].
pub const REFUSALS: &str = "refusals";

/// Maximum number of lines of a process. Later refusals are only in the log.
const LINES: u32 = 100_000;

/// Notes that a card of this process has refused something. A process may end at any moment, so the line is written at
/// once.
pub(crate) fn note(text: String) {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    static NOTED: AtomicU32 = AtomicU32::new(0);
    let Some(mut file) = FILE.get_or_init(open).as_ref() else { return };
    if NOTED.fetch_add(1, Ordering::Relaxed) < LINES {
        // A line that cannot be written is in the log.
        let _ = file.write_all(format!("{}\n", Entry::Found { text }).as_bytes());
    }
}

/// Opens the file, which children of a fork share.
fn open() -> Option<File> {
    let folder = names::job()?.join(REFUSALS);
    if !folder.is_dir() {
        return None;
    }
    let path = folder.join(format!("{}.{}", names::base_name(), std::process::id()));
    match File::options().create(true).append(true).open(&path) {
        Ok(file) => Some(file),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "refusals are not noted");
            None
        }
    }
}
