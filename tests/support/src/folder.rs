//! Temporary folders.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// An empty folder in the system's temporary one. Dropping it removes it with its content.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates one whose name contains `name`.
    pub fn new(name: &str) -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("gdsync-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the number of its entries.
    pub fn content(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }

    /// Waits until it is empty: a separate process cleans up after a killed one.
    pub fn becomes_empty(&self) {
        let end = Instant::now() + Duration::from_secs(30);
        while self.content() != 0 {
            assert!(Instant::now() < end, "{} is not empty", self.0.display());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover file in the temporary folder is harmless.
        _ = std::fs::remove_dir_all(&self.0);
    }
}
