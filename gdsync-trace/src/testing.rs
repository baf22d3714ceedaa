//! Helpers of several modules' tests.

use crate::record::{EventKind, Header, MAGIC, Record, padded};
use std::path::PathBuf;

pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("gdsync-trace-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    folder
}

pub(crate) fn header(pid: u32) -> Header {
    Header { magic: MAGIC, pid, rank: 3, name: padded("program") }
}

pub(crate) fn record(kind: EventKind, at: u64, words: [u64; 3]) -> Record {
    Record { at, until: at + 10, kind: kind as u32, thread: 5, words }
}
