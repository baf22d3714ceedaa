//! The book and the README: their navigation, their links, and their commands.

mod blocks;
mod commands;
mod links;
mod outputs;
mod page;
mod session;

use gdsync_test_support::root;
use page::Page;
use std::path::{Path, PathBuf};

/// Returns the pages of the book, without its navigation, sorted.
fn chapters(docs: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![docs.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "md") && !path.ends_with("SUMMARY.md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the README, and the pages of the book.
fn pages() -> Vec<Page> {
    let paths = [root().join("README.md")].into_iter().chain(chapters(&root().join("docs")));
    paths.map(|path| Page::read(root(), &path)).collect()
}
