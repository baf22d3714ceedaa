//! Compiles the kernels of the examples at run time: for a GPU by NVRTC (through cudarc), or for
//! the CPU's threads by a C++ compiler. The device header is text in the program, so nothing has to
//! be installed for it.

use gdsync::cudarc::driver::{CudaContext, CudaModule};
use gdsync::cudarc::nvrtc::{Ptx, result, sys};
use gdsync::device::headers;
use libloading::Library;
use std::error::Error;
use std::ffi::{CStr, CString, c_char};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

/// Any error.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// How a program ends.
pub(crate) fn end(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where that cannot be said, the code says it.
            _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A source of `kernels/`.
pub(crate) struct Source {
    /// For messages of the compilers.
    pub(crate) name: &'static str,
    /// CUDA C++ that is C++, too.
    pub(crate) text: &'static str,
    /// What `scripts/gpu/ptx` has made of it, for machines without a compiler at run time.
    pub(crate) ptx: &'static str,
}

/// Compiles for a GPU, and loads. Where there is no NVRTC, or it refuses, loads the PTX of
/// `kernels/ptx/`. Says which, and why.
pub(crate) fn load(
    context: &Arc<CudaContext>,
    source: &Source,
) -> Result<(Arc<CudaModule>, String), Failure> {
    let (major, minor) = context.compute_capability()?;
    let compiled = compile(source, &format!("compute_{major}{minor}"))
        .and_then(|text| Ok(context.load_module(Ptx::from_src(text))?));
    match compiled {
        Ok(module) => Ok((module, format!("compiled by NVRTC for compute_{major}{minor}"))),
        Err(reason) => {
            let module = context.load_module(Ptx::from_src(source.ptx))?;
            Ok((module, format!("loaded from the repository's PTX, not compiled here: {reason}")))
        }
    }
}

/// Compiles to PTX, with the header given in memory.
pub(crate) fn compile(source: &Source, architecture: &str) -> Result<String, Failure> {
    // SAFETY: loads a library of the system, as any caller of NVRTC does.
    if !unsafe { sys::is_culib_present() } {
        return Err("no libnvrtc is found (CUDA's toolkit has it, and PyPI's nvidia-cuda-nvrtc-cu12): put its folder into LD_LIBRARY_PATH".into());
    }
    let program = Program::new(source)?;
    let options = [format!("--gpu-architecture={architecture}"), "--std=c++11".to_owned()];
    // SAFETY: the program is there until it is dropped.
    if let Err(error) = unsafe { result::compile_program(program.raw, &options) } {
        // SAFETY: as above.
        let log = unsafe { result::get_program_log(program.raw) }.map(|log| text(&log)).unwrap_or_default();
        return Err(format!("NVRTC: {error:?}: {}", log.trim()).into());
    }
    // SAFETY: as above; it is compiled.
    Ok(text(&unsafe { result::get_ptx(program.raw) }?))
}

/// A program of NVRTC's.
struct Program {
    raw: sys::nvrtcProgram,
}

impl Program {
    fn new(source: &Source) -> Result<Self, Failure> {
        let (name, body) = (CString::new(source.name)?, CString::new(source.text)?);
        let (mut names, mut bodies) = (Vec::new(), Vec::new());
        for (path, text) in headers() {
            // NVRTC compares the text between the quotes and knows no folders: each file gets every
            // name by which it is included.
            for included in path.match_indices('/').map(|(at, _)| &path[at + 1..]).chain([*path]) {
                names.push(CString::new(included)?);
                bodies.push(CString::new(*text)?);
            }
        }
        let pointers = |of: &[CString]| of.iter().map(|one| one.as_ptr()).collect::<Vec<_>>();
        let (included, texts) = (pointers(&names), pointers(&bodies));
        let (count, mut raw) = (i32::try_from(names.len())?, std::ptr::null_mut());
        // SAFETY: `count` strings in both lists, all of which live until the call has returned,
        // which copies them.
        let made = unsafe {
            let (included, texts) = (included.as_ptr(), texts.as_ptr());
            sys::nvrtcCreateProgram(&mut raw, body.as_ptr(), name.as_ptr(), count, texts, included)
        };
        made.result()?;
        Ok(Program { raw })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not used after. An error here has no remedy.
        _ = unsafe { result::destroy_program(self.raw) };
    }
}

/// A text of NVRTC's, which ends with a zero.
fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned()
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
    // SAFETY: our own code, which does nothing when it is loaded.
    Ok(unsafe { Library::new(&to) }?)
}

/// A folder for the compiler, removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Failure> {
        // `create_dir` refuses a folder that exists: no other process has put anything into it.
        let tried = (0..1000).find_map(|number: u32| {
            let path = std::env::temp_dir().join(format!("gdsync-{}-{number}", std::process::id()));
            std::fs::create_dir(&path).is_ok().then_some(path)
        });
        Ok(Folder(tried.ok_or("no folder can be made for temporary files: set TMPDIR")?))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays is for the system to remove.
        _ = std::fs::remove_dir_all(&self.0);
    }
}
