//! Compiles the examples' kernels at run time: for a GPU by NVRTC, or for CPU threads by a C++ compiler. The device
//! header is embedded, so nothing has to be installed for it.

use gdsync::cudarc::driver::{CudaContext, CudaModule};
use gdsync::device::{headers, nvrtc};
use libloading::Library;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

/// Any error.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Prints an error, and returns the exit code.
pub(crate) fn end(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If printing fails, the exit code remains.
            _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) struct Source {
    /// Name in the compilers' messages.
    pub(crate) name: &'static str,
    /// CUDA C++ that is also valid C++.
    pub(crate) text: &'static str,
}

/// Compiles for a GPU, and loads. Also returns the compiler's name.
pub(crate) fn load(
    context: &Arc<CudaContext>,
    source: &Source,
) -> Result<(Arc<CudaModule>, String), Failure> {
    let module = nvrtc::load(context, source.name, source.text)?;
    let (major, minor) = nvrtc::version()?;
    Ok((module, format!("compiled by NVRTC {major}.{minor}")))
}

/// Compiles for threads of this process, and loads.
pub(crate) fn load_for_host(source: &Source) -> Result<Library, Failure> {
    let folder = Folder::new()?;
    for (path, text) in headers() {
        let path = folder.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
        std::fs::write(path, text)?;
    }
    let (from, to) = (folder.0.join(source.name), folder.0.join("kernels.so"));
    std::fs::write(&from, source.text)?;
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let said = Command::new(&compiler)
        .args(["-x", "c++", "-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-I"])
        .args([&folder.0, &from])
        .arg("-o")
        .arg(&to)
        .output()
        .map_err(|error| {
            format!("without a GPU, a C++ compiler has to make the kernel for the CPU, and {compiler} does not start: {error}; install one, or name it in CXX")
        })?;
    if !said.status.success() {
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        return Err(format!("{compiler} refuses {}: {errors}", source.name).into());
    }
    // SAFETY: our own code, without initialisers.
    Ok(unsafe { Library::new(&to) }?)
}

/// A folder for the compiler, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Failure> {
        // `create_dir` rejects existing folders, so no other process has prepared the content.
        let tried = (0..1000).find_map(|number: u32| {
            let path = std::env::temp_dir().join(format!("gdsync-{}-{number}", std::process::id()));
            std::fs::create_dir(&path).is_ok().then_some(path)
        });
        Ok(Folder(tried.ok_or("no folder can be made for temporary files: set TMPDIR")?))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The system removes leftovers.
        _ = std::fs::remove_dir_all(&self.0);
    }
}
