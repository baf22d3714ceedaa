//! Writing and merging of parts: files with the records of one process, or of one copy of this library in it.
//!
//! A part consists of a [`Header`] and [`Record`]s. The last one, [`EventKind::End`], contains the numbers of records
//! and of dropped records; the part of a killed process lacks it.

use crate::chrome::Summary;
use crate::destination::{Destination, PART, with_path};
use crate::record::{EventKind, Header, MAGIC, NO_RANK, PartError, RECORD, Record, padded, read};
use crate::timeline;
use gdsync_sys::file_limit::within_file_limit;
use gdsync_sys::launcher::launcher_rank;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use zerocopy::IntoBytes;

/// Most records of a part: 96 MiB. Later ones are dropped and counted.
pub const LIMIT: u64 = 1 << 21;

/// The writer of a part.
#[derive(Debug)]
pub(crate) struct PartWriter {
    file: File,
    path: PathBuf,
    /// The trace to write at the end.
    trace: Option<PathBuf>,
    written: u64,
    dropped: u64,
    limit: u64,
}

impl PartWriter {
    pub(crate) fn open(to: Destination) -> io::Result<PartWriter> {
        PartWriter::with_limit(&to, &header(), LIMIT)
    }

    pub(crate) fn with_limit(to: &Destination, header: &Header, limit: u64) -> io::Result<PartWriter> {
        let opened = to.open(header.pid)?;
        let mut part =
            Self { file: opened.file, path: opened.path, trace: opened.trace, written: 0, dropped: 0, limit };
        within_file_limit(|| part.file.write_all(header.as_bytes()))
            .map_err(|error| with_path(&part.path, &error))?;
        Ok(part)
    }

    /// Appends records. Records without room, and those that cannot be written, are counted as dropped.
    pub(crate) fn append(&mut self, records: &[Record]) {
        let room = usize::try_from(self.limit - self.written).unwrap_or(usize::MAX);
        let (kept, rest) = records.split_at(records.len().min(room));
        self.dropped += rest.len() as u64;
        match within_file_limit(|| self.file.write_all(kept.as_bytes())) {
            Ok(()) => self.written += kept.len() as u64,
            Err(error) => {
                tracing::debug!(%error, "records of the trace cannot be written");
                self.dropped += kept.len() as u64;
                // The next record starts at a record's boundary.
                let end = size_of::<Header>() as u64 + self.written * RECORD as u64;
                if self.file.set_len(end).and(self.file.seek(io::SeekFrom::Start(end))).is_err() {
                    self.limit = self.written;
                }
            }
        }
    }

    /// Ends the part, and converts it to the trace, if one is requested. `dropped` is the number of records that were
    /// never appended.
    ///
    /// # Errors
    /// The file cannot be written; the part is then kept.
    pub(crate) fn finish(self, dropped: u64) -> io::Result<()> {
        within_file_limit(|| self.written_whole(dropped))
    }

    fn written_whole(mut self, dropped: u64) -> io::Result<()> {
        let words = [self.written, self.dropped + dropped, 0];
        let end = Record { at: 0, until: 0, kind: EventKind::End as u32, thread: 0, words };
        self.file.write_all(end.as_bytes()).map_err(|error| with_path(&self.path, &error))?;
        let Some(trace) = self.trace else { return Ok(()) };
        self.file.rewind()?;
        let part = read(&mut self.file).map_err(|error| with_path(&self.path, &io::Error::other(error)))?;
        let file = File::create(&trace).map_err(|error| with_path(&trace, &error))?;
        timeline::write(vec![part], file).map_err(|error| with_path(&trace, &error))?;
        std::fs::remove_file(&self.path).map_err(|error| with_path(&self.path, &error))
    }
}

/// Returns the header of this process's part: process id, rank, command line.
fn header() -> Header {
    Header {
        magic: MAGIC,
        pid: std::process::id(),
        rank: launcher_rank().unwrap_or(NO_RANK),
        name: padded(&command_line(std::env::args_os())),
    }
}

/// Returns the program's file name and its arguments.
fn command_line(words: impl Iterator<Item = OsString>) -> String {
    let words = words.enumerate().map(|(position, word)| match Path::new(&word).file_name() {
        Some(name) if position == 0 => name.to_string_lossy().into_owned(),
        _ => word.to_string_lossy().into_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Reasons why there is no trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file is no part of a trace.
    #[error("{}: {reason}: name files that GDSYNC_TRACE=FOLDER/ has made", path.display())]
    NoPart {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The trace cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// Returns the parts in a folder, sorted by name.
///
/// # Errors
/// [`MergeError::Read`].
pub fn parts_in(folder: &Path) -> Result<Vec<PathBuf>, MergeError> {
    let failed = |source| MergeError::Read { path: folder.to_owned(), source };
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|end| end == PART) {
            parts.push(path);
        }
    }
    parts.sort();
    Ok(parts)
}

/// Merges parts into one Chrome trace at `out`. Their processes ran on one host, with one clock.
///
/// A truncated part contributes its complete records.
///
/// # Errors
/// [`MergeError`]; if a part cannot be read, the trace is not created.
pub fn merge(parts: &[PathBuf], out: &Path) -> Result<Summary, MergeError> {
    let all = parts.iter().map(|path| {
        let failed = |source| MergeError::Read { path: path.clone(), source };
        let mut file = File::open(path).map_err(failed)?;
        read(&mut file).map_err(|error| match error {
            PartError::Read(source) => failed(source),
            PartError::Header => MergeError::NoPart { path: path.clone(), reason: error.to_string() },
        })
    });
    let all = all.collect::<Result<Vec<_>, _>>()?;
    let failed = |source| MergeError::Write { path: out.to_owned(), source };
    let file = File::create(out).map_err(failed)?;
    timeline::write(all, file).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::EventKind;
    use crate::testing::{folder, header, record};
    use zerocopy::IntoBytes;

    #[test]
    fn records_beyond_the_limit_are_dropped_and_counted() {
        let folder = folder("limit");
        let to = Destination::Folder(folder.clone());
        let mut part = PartWriter::with_limit(&to, &header(17), 5).unwrap();
        let records: Vec<Record> = (0..4).map(|at| record(EventKind::Polled, at, [at, 0, 0])).collect();
        part.append(&records);
        part.append(&records);
        part.finish(2).unwrap();
        let read = read(&mut File::open(folder.join("17-0.part")).unwrap()).unwrap();
        assert_eq!((read.pid, read.rank, &*read.name), (17, Some(3), "program"));
        assert_eq!(read.records, [&records[..], &records[..1]].concat());
        assert_eq!((read.dropped, read.is_whole), (3 + 2, true));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_part_of_a_file_becomes_the_trace_there() {
        let folder = folder("file");
        let trace = folder.join("t.json");
        let mut part = PartWriter::with_limit(&Destination::File(trace.clone()), &header(17), 5).unwrap();
        part.append(&[record(EventKind::Polled, 7, [0x41, 1, 0])]);
        part.finish(0).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
        assert_eq!((&trace["otherData"]["events"], &trace["otherData"]["dropped"]), (&1.into(), &0.into()));
        let left: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["t.json"]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_trace_that_cannot_be_written_is_named_and_its_part_stays() {
        let folder = folder("refused");
        let trace = folder.join("t.json");
        let part = PartWriter::with_limit(&Destination::File(trace.clone()), &header(17), 5).unwrap();
        std::fs::create_dir(&trace).unwrap();
        let error = part.finish(0).unwrap_err().to_string();
        assert!(error.contains("t.json: Is a directory") && folder.join("t.json.part").exists(), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_process_is_named_as_it_was_started() {
        let words = ["/usr/bin/gdsync", "pingpong", "--hca", "/dev/x"].map(OsString::from);
        assert_eq!(command_line(words.into_iter()), "gdsync pingpong --hca /dev/x");
        assert_eq!(command_line([].into_iter()), "");
    }

    #[test]
    fn parts_of_a_folder_become_one_trace_and_other_files_are_named() {
        let folder = folder("merge");
        let bytes =
            |pid| [header(pid).as_bytes(), record(EventKind::Polled, 5, [0x41, 1, 0]).as_bytes()].concat();
        std::fs::write(folder.join("1-0.part"), bytes(1)).unwrap();
        std::fs::write(folder.join("2-0.part"), bytes(2)).unwrap();
        std::fs::write(folder.join("notes.txt"), "no part").unwrap();
        let parts = parts_in(&folder).unwrap();
        assert_eq!(parts, [folder.join("1-0.part"), folder.join("2-0.part")]);
        let out = folder.join("t.json");
        let summary = merge(&parts, &out).unwrap();
        assert_eq!((summary.events, summary.processes, summary.cut_off), (2, 2, 2));
        serde_json::from_slice::<serde_json::Value>(&std::fs::read(&out).unwrap()).unwrap();

        let text = |parts: &[PathBuf], out: &Path| merge(parts, out).unwrap_err().to_string();
        let other = text(&[folder.join("notes.txt")], &out);
        assert!(other.contains("notes.txt: it is no part of a gdsync trace"), "{other}");
        assert!(text(&[folder.join("3-0.part")], &out).contains("3-0.part: No such file"));
        assert!(text(&parts, Path::new("/nowhere/t.json")).starts_with("/nowhere/t.json: "));
        assert!(parts_in(Path::new("/nowhere")).unwrap_err().to_string().starts_with("/nowhere: "));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
