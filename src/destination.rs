//! An output file that is written completely or not at all.

use crate::failure::Failure;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct Destination {
    path: PathBuf,
    /// The temporary file in the same folder, which replaces the destination once complete.
    temporary: PathBuf,
}

impl Destination {
    /// Checks that the file can be written, without writing it, so that no measurement is lost.
    ///
    /// # Errors
    /// The path is that of a folder or a device, or the system refuses to write there.
    pub fn new(path: &Path) -> Result<Self, Failure> {
        let refused = |why: &dyn std::fmt::Display| -> Failure {
            format!(
                "{} cannot be written: {why}: name a file in a folder that exists and that you may write to",
                path.display()
            )
            .into()
        };
        // A symbolic link stays; its target is written.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let name = path.file_name().ok_or_else(|| refused(&"it names no file"))?;
        if path.exists() {
            if !path.is_file() {
                return Err(refused(&"it is no regular file"));
            }
            OpenOptions::new().write(true).open(&path).map_err(|error| refused(&error))?;
        }
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let tried = File::create(&temporary).and_then(|_| fs::remove_file(&temporary));
        tried.map_err(|error| refused(&error))?;
        Ok(Destination { path, temporary })
    }

    /// Writes the file. An existing one stays as it is until the new one is complete.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, text: &str) -> Result<(), Failure> {
        self.fill(|path| Ok(File::create(path).and_then(|mut file| file.write_all(text.as_bytes()))?))
    }

    /// Like [`Self::write`]; `fill` writes the file at the path it gets.
    ///
    /// # Errors
    /// The system's, and those of `fill`.
    pub fn fill<T>(&self, fill: impl FnOnce(&Path) -> Result<T, Failure>) -> Result<T, Failure> {
        let filled = fill(&self.temporary).and_then(|answer| {
            File::open(&self.temporary)?.sync_all()?;
            fs::rename(&self.temporary, &self.path)?;
            Ok(answer)
        });
        filled.map_err(|error| {
            // If removing fails too, the first error is the one to report.
            let _ = fs::remove_file(&self.temporary);
            format!("{} cannot be written: {error}", self.path.display()).into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test's folder, removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("gdsync-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn names(&self) -> Vec<OsString> {
            fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_is_replaced_at_once_and_nothing_is_left_beside_it() {
        let folder = Folder::new("destination");
        let path = folder.0.join("picture.svg");
        let destination = Destination::new(&path).unwrap();
        assert!(folder.names().is_empty(), "asking writes nothing");
        destination.write("one").unwrap();
        Destination::new(&path).unwrap().write("two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(folder.names(), ["picture.svg"]);
    }

    #[test]
    fn a_link_stays_and_what_it_leads_to_is_written() {
        let folder = Folder::new("destination-link");
        let (real, link) = (folder.0.join("real"), folder.0.join("link"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        Destination::new(&link).unwrap().write("new").unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn what_cannot_be_written_is_refused_before_anything_is_measured() {
        let folder = Folder::new("destination-refused");
        for (path, why) in [
            (folder.0.clone(), "no regular file"),
            (folder.0.join("absent").join("x.svg"), "No such file"),
            (PathBuf::from("/dev/null"), "no regular file"),
            (PathBuf::from("/"), "it names no file"),
        ] {
            let said = Destination::new(&path).unwrap_err().to_string();
            assert!(said.starts_with(&path.display().to_string()) && said.contains(why), "{said}");
            assert!(said.contains("name a file in a folder that exists"), "{said}");
        }
    }

    #[test]
    fn a_folder_that_goes_meanwhile_is_an_error_and_leaves_nothing() {
        let folder = Folder::new("destination-gone");
        let inside = folder.0.join("inside");
        fs::create_dir(&inside).unwrap();
        let destination = Destination::new(&inside.join("x.svg")).unwrap();
        fs::remove_dir(&inside).unwrap();
        let said = destination.write("x").unwrap_err().to_string();
        assert!(said.contains("x.svg cannot be written: No such file"), "{said}");
    }
}
