//! Makes what the command embeds: the PTX of its kernels.

#[path = "kernels/marker.rs"]
mod marker;

use std::error::Error;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

type Failure = Box<dyn Error>;

fn main() -> Result<(), Failure> {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(variable("OUT_DIR")?);
    ptx(&out)
}

fn variable(name: &str) -> Result<String, Failure> {
    env::var(name).map_err(|error| format!("{name}, which cargo sets for build scripts: {error}").into())
}

/// Puts the PTX of every kernel into `OUT_DIR/ptx`, where the command takes it from.
///
/// That is the committed PTX as long as it is the source's: `scripts/gpu/ptx` makes it with the
/// compiler of CUDA 12.0, so every driver since then takes it, and a command built anywhere carries
/// the same. A later compiler writes PTX that older drivers refuse. Where the committed PTX is
/// stale and nvcc is found, nvcc's stands in for it, so that a changed kernel can be tried at once.
fn ptx(out: &Path) -> Result<(), Failure> {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-env-changed=NVCC");
    let include = PathBuf::from(variable("DEP_GDSYNC_DEVICE_INCLUDE")?);
    println!("cargo::rerun-if-changed={}", include.display());
    let mut header = vec![include.join("gdsync/device_verbs.cuh")];
    header.extend(sorted_files(&include.join("gdsync/device"), "cuh")?);
    let header: Vec<String> = header.iter().map(|path| read(path)).collect::<Result<_, _>>()?;

    let (made, embedded) = (out.join("nvcc"), out.join("ptx"));
    fs::create_dir_all(&made)?;
    fs::create_dir_all(&embedded)?;
    let mut nvcc = Nvcc::find()?;
    for source in sorted_files(Path::new("kernels"), "cu")? {
        let file = Path::new(source.file_stem().unwrap_or_default()).with_extension("ptx");
        let (committed, made) = (Path::new("kernels/ptx").join(&file), made.join(&file));
        // One refusal is enough to be warned of.
        nvcc = nvcc.filter(|nvcc| nvcc.compile(&source, &include, &made));
        let text = match fs::read_to_string(&committed) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            text => Some(text?),
        };
        let marker = marker::first_line(&read(&source)?, header.iter().map(String::as_str));
        let is_stale = text.as_deref().and_then(|text| text.lines().next()) != Some(&marker);
        if is_stale {
            let instead = if nvcc.is_some() { ". Embedded instead: nvcc's" } else { "" };
            println!(
                "cargo::warning={} is stale, as {} or the device header has changed: run scripts/gpu/ptx{instead}",
                committed.display(),
                source.display()
            );
        }
        let chosen = if is_stale && nvcc.is_some() { &made } else { &committed };
        fs::copy(chosen, embedded.join(&file)).map_err(|error| format!("{}: {error}", chosen.display()))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn sorted_files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    let mut found: Vec<PathBuf> =
        paths.into_iter().filter(|path| path.extension() == Some(OsStr::new(extension))).collect();
    found.sort();
    Ok(found)
}

/// The CUDA toolkit's compiler.
struct Nvcc(String);

impl Nvcc {
    /// The one that the variable NVCC names, or else the one on the PATH, if there is one.
    fn find() -> Result<Option<Self>, Failure> {
        let named = env::var("NVCC").ok().filter(|name| !name.is_empty());
        let name = named.clone().unwrap_or_else(|| "nvcc".to_owned());
        match Command::new(&name).arg("--version").output() {
            Ok(_) => Ok(Some(Nvcc(name))),
            Err(_) if named.is_none() => Ok(None),
            Err(error) => {
                Err(format!("NVCC is {name}, which does not start: {error}; unset it, or set it to nvcc")
                    .into())
            }
        }
    }

    /// Whether it compiles. If not, a warning says why: a toolkit may be too new for the oldest
    /// GPU, as that of CUDA 13 is, and then the committed PTX serves.
    fn compile(&self, source: &Path, include: &Path, to: &Path) -> bool {
        let mut command = Command::new(&self.0);
        command.args(["--ptx", "--gpu-architecture=compute_70", "--std=c++11", "-I"]).arg(include);
        let why = match command.arg("-o").arg(to).arg(source).output() {
            Ok(output) if output.status.success() => return true,
            Ok(output) => [output.stderr, output.stdout].concat(),
            Err(error) => error.to_string().into_bytes(),
        };
        let why = String::from_utf8_lossy(&why);
        let why = why.lines().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
        println!("cargo::warning={} does not compile {}: {why}", self.0, source.display());
        false
    }
}
