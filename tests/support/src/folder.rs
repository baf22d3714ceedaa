//! Temporary folders.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// An empty folder of its own in the system's temporary one. Dropping it removes it and its content.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes one whose name contains `name`.
    pub fn new(name: &str) -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("gdsync-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Number of its entries.
    pub fn content(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }

    /// Waits until it is empty: a process of its own cleans up after a killed one.
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
        // A file that is left in the temporary folder does no harm.
        _ = std::fs::remove_dir_all(&self.0);
    }
}
