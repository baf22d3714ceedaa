//! The documentation of the libraries is for their users: neither names of source files nor the order of locks are on it.

use gdsync_test_support::root;
use std::path::{Path, PathBuf};

/// Crates that programs use.
const LIBRARIES: [&str; 8] = [
    "gdsync",
    "gdsync-auth",
    "gdsync-gdr",
    "gdsync-notify",
    "gdsync-status",
    "gdsync-sys",
    "gdsync-trace",
    "softhca",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

/// Returns what a line of documentation has that is only for readers of the source.
fn fault(line: &str) -> Option<&'static str> {
    let line = line.trim_start();
    let text = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
    let is_file = |word: &str| {
        let name = word.trim_matches(|at: char| !at.is_ascii_alphanumeric());
        name.ends_with(".rs") && !word.contains("://") && name != "docs.rs"
    };
    if text.split_whitespace().any(is_file) {
        return Some("the name of a source file");
    }
    // Fields and functions that say it are private.
    (line.starts_with("//!") && text.to_lowercase().contains("lock order")).then_some("an order of locks")
}

#[test]
fn public_pages_name_neither_files_nor_the_order_of_locks() {
    assert_eq!(fault("    /// See (`life/create.rs`)."), Some("the name of a source file"));
    assert_eq!(fault("//! # Lock order"), Some("an order of locks"));
    assert_eq!(fault("/// https://docs.rs/gdsync, docs.rs."), None);
    assert_eq!(fault("// as in life/create.rs"), None);
    let mut all = Vec::new();
    for library in LIBRARIES {
        sources(&root().join(library).join("src"), &mut all);
    }
    assert!(all.len() > 300, "{}", all.len());
    for path in all {
        let text = std::fs::read_to_string(&path).unwrap();
        for (number, line) in (1..).zip(text.lines()) {
            let found = fault(line);
            assert_eq!(found, None, "{}:{number}: {line}", path.display());
        }
    }
}
