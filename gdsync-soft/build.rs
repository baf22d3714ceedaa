//! Embeds the preload library of `gdsync soft` in the program.

use std::error::Error;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

type Failure = Box<dyn Error>;

const LIBRARY: &str = "libsofthca_uverbs";

fn main() -> Result<(), Failure> {
    println!("cargo::rerun-if-changed=build.rs");
    preload_library(&PathBuf::from(variable("OUT_DIR")?))
}

fn variable(name: &str) -> Result<String, Failure> {
    env::var(name).map_err(|error| format!("{name}, which cargo sets for build scripts: {error}").into())
}

/// Copies the preload library to `OUT_DIR`, from which the command includes it. softhca-uverbs is a
/// dependency of this script only for that: cargo builds it first, and reruns this script after each rebuild.
fn preload_library(out: &Path) -> Result<(), Failure> {
    let copy = out.join(LIBRARY).with_extension("so");
    let (host, target) = (variable("HOST")?, variable("TARGET")?);
    if host != target {
        println!(
            "cargo::warning=gdsync soft will need SOFTHCA_UVERBS_LIBRARY: cargo builds the library that it preloads for {host}, and the command for {target}"
        );
        return Ok(fs::write(copy, [])?);
    }
    let places = places(out);
    for place in &places {
        if let Some(library) = newest_library(place)? {
            fs::copy(library, copy)?;
            return Ok(());
        }
    }
    let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Err(format!(
        "cargo has built {LIBRARY}.so somewhere else than this script looks for it: {}",
        places.join(", ")
    )
    .into())
}

/// Returns the folders of libraries that build scripts depend on: PROFILE/deps below the target folder.
/// `OUT_DIR` is PROFILE/build/NAME/out below the same folder or, with `--target`, below its subfolder that is
/// named after the target.
fn places(out: &Path) -> Vec<PathBuf> {
    let Some(profile) = out.ancestors().nth(3) else { return Vec::new() };
    let mut folders = vec![profile.to_owned()];
    if let (Some(target), Some(name)) = (profile.ancestors().nth(2), profile.file_name()) {
        folders.push(target.join(name));
    }
    folders.into_iter().map(|folder| folder.join("deps")).collect()
}

/// Returns the library in `folder`. Cargo adds a hash to its name if the crate comes from a registry.
fn newest_library(folder: &Path) -> Result<Option<PathBuf>, Failure> {
    if !folder.is_dir() {
        return Ok(None);
    }
    let mut found = Vec::new();
    for path in sorted_files(folder, "so")? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if name.strip_prefix(LIBRARY).is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) {
            found.push((fs::metadata(&path)?.modified()?, path));
        }
    }
    Ok(found.into_iter().max().map(|(_, path)| path))
}

fn sorted_files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    let mut found: Vec<PathBuf> =
        paths.into_iter().filter(|path| path.extension() == Some(OsStr::new(extension))).collect();
    found.sort();
    Ok(found)
}
