//! Merging of parts of several processes into one trace.

use crate::chrome::Summary;
use crate::destination::PART;
use crate::read::{NoPart, read};
use crate::timeline;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

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
            NoPart::Read(source) => failed(source),
            NoPart::Front => MergeError::NoPart { path: path.clone(), reason: error.to_string() },
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
    use crate::record::Kind;
    use crate::testing::{folder, front, record};
    use zerocopy::IntoBytes;

    #[test]
    fn parts_of_a_folder_become_one_trace_and_other_files_are_named() {
        let folder = folder("merge");
        let bytes = |pid| [front(pid).as_bytes(), record(Kind::Polled, 5, [0x41, 1, 0]).as_bytes()].concat();
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
