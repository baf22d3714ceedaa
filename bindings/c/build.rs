//! Gives the shared library its name, whatever cargo calls the file, and cargo-c the device header.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgdsync.so.2");
    // gdsync's build script sets the folder. cargo-c installs the files of OUT_DIR/include.
    let header = path_in("DEP_GDSYNC_DEVICE_INCLUDE")?;
    println!("cargo::rerun-if-changed={}", header.display());
    copy_files(&header, &path_in("OUT_DIR")?.join("include"))
}

fn path_in(variable: &str) -> io::Result<PathBuf> {
    let path = env::var_os(variable).map(PathBuf::from);
    path.ok_or_else(|| io::Error::other(format!("cargo has not set {variable} for this build script")))
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_files(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
