//! Compiles kernels that include the device header, at run time, by NVRTC: CUDA's compiler as a library.
//!
//! The first call loads `libnvrtc.so.12`, `libnvrtc.so.13` or `libnvrtc.so` from the dynamic linker's search path:
//! `LD_LIBRARY_PATH` and the folders that `ldconfig` knows. CUDA's toolkit contains it, and so does PyPI's package
//! `nvidia-cuda-nvrtc-cu12`, which needs no GPU. No other compiler, toolkit or header is needed, as the program
//! embeds the header ([`headers()`]).
//!
//! ```no_run
//! use gdsync::cuda;
//! use gdsync::device::nvrtc;
//!
//! const SOURCE: &str = r#"
//! #include "gdsync/device_verbs.cuh"
//! extern "C" __global__ void put_word(gdsync_device_qp qp, gdsync::remote_memory to, gdsync::u64 word) {
//!     gdsync::put_inline(qp, to, &word, 8);
//! }
//! "#;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let module = nvrtc::load(&cuda::context(0)?, "put_word.cu", SOURCE)?;
//! let kernel = module.load_function("put_word")?;
//! # Ok(())
//! # }
//! ```

use crate::cuda::{self, CudaError};
use crate::device::headers;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaModule};
use cudarc::nvrtc::Ptx;
use libloading::Library;
use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

/// Errors of compiling a kernel at run time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// NVRTC is missing, or older than CUDA 12.
    #[error(
        "libnvrtc, which compiles kernels at run time, cannot be loaded ({reason}): run `pip install nvidia-cuda-nvrtc-cu12`, or install CUDA's toolkit, and put the library's folder into LD_LIBRARY_PATH"
    )]
    Library {
        /// The dynamic linker's reason.
        reason: String,
    },
    /// NVRTC does not compile for so old a GPU.
    #[error(
        "NVRTC {}.{} compiles for GPUs of compute capability {}.{} or newer, and this one has {}.{}: run `pip install nvidia-cuda-nvrtc-cu12`, and put its folder first into LD_LIBRARY_PATH",
        .version.0, .version.1, .oldest.0, .oldest.1, .capability.0, .capability.1
    )]
    Capability {
        /// NVRTC's version.
        version: (i32, i32),
        /// The oldest supported compute capability.
        oldest: (i32, i32),
        /// The requested one.
        capability: (i32, i32),
    },
    /// The source does not compile.
    #[error("NVRTC refuses {name}: {log}")]
    Source {
        /// The source's name.
        name: String,
        /// NVRTC's messages, with line numbers.
        log: String,
    },
    /// A text contains a zero byte.
    #[error("{name} has a zero byte at {at}, where it ends for NVRTC: remove it")]
    ZeroByte {
        /// The source's name.
        name: String,
        /// Offset of the byte.
        at: usize,
    },
    /// A call of NVRTC failed.
    #[error("{call} failed: nvrtcResult {code}")]
    Call {
        /// The function.
        call: &'static str,
        /// Its result.
        code: i32,
    },
    /// The driver is older than NVRTC, and does not accept its PTX.
    #[error(
        "NVRTC {}.{} writes PTX that the driver, which is of CUDA {}.{}, does not know: run `pip install nvidia-cuda-nvrtc-cu12==12.0.*` and put its folder first into LD_LIBRARY_PATH, or update the driver",
        .version.0, .version.1, .driver / 1000, .driver % 1000 / 10
    )]
    Driver {
        /// NVRTC's version.
        version: (i32, i32),
        /// The driver's, as [`cuda::driver_version`].
        driver: u32,
    },
    /// The driver does not load the compiled module.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// NVRTC's version, such as (12, 9).
///
/// # Errors
/// [`CompileError::Library`] if it cannot be loaded.
pub fn version() -> Result<(i32, i32), CompileError> {
    Ok(nvrtc()?.version)
}

/// Compiles a source to PTX for GPUs of that compute capability and newer ones. The compiler's messages call it `name`.
///
/// If NVRTC is older than the GPU, the PTX is for the newest GPU that it knows.
///
/// # Errors
/// All of [`CompileError`] except those of the driver.
pub fn compile(name: &str, source: &str, capability: (i32, i32)) -> Result<String, CompileError> {
    let nvrtc = nvrtc()?;
    let architecture = newest_of(&nvrtc.architectures, capability).ok_or_else(|| {
        let oldest = nvrtc.architectures.iter().min().copied().unwrap_or_default();
        CompileError::Capability { version: nvrtc.version, oldest: (oldest / 10, oldest % 10), capability }
    })?;
    Program::new(nvrtc, name, source)?.compile(name, architecture)
}

/// Compiles a source for the context's GPU, and loads it.
///
/// # Errors
/// [`CompileError`].
pub fn load(context: &Arc<CudaContext>, name: &str, source: &str) -> Result<Arc<CudaModule>, CompileError> {
    let capability =
        context.compute_capability().map_err(|error| CudaError::call("cuDeviceGetAttribute", error.0))?;
    let ptx = compile(name, source, capability)?;
    context.load_module(Ptx::from_src(ptx)).map_err(|error| match error.0 {
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => refused_by_driver(),
        code => CudaError::call("cuModuleLoadData", code).into(),
    })
}

fn refused_by_driver() -> CompileError {
    match (version(), cuda::driver_version()) {
        (Ok(version), Ok(driver)) => CompileError::Driver { version, driver },
        (Err(error), _) => error,
        (_, Err(error)) => error.into(),
    }
}

/// The newest architecture that a GPU of this compute capability runs: 90 for (9, 0).
fn newest_of(architectures: &[i32], (major, minor): (i32, i32)) -> Option<i32> {
    architectures.iter().copied().filter(|architecture| *architecture <= major * 10 + minor).max()
}

/// The header's files, under every name by which they are included: NVRTC compares the text between the quotes.
fn included() -> impl Iterator<Item = (&'static str, &'static str)> {
    headers().iter().flat_map(|(path, text)| {
        let names = path.match_indices('/').map(|(at, _)| &path[at + 1..]).chain([*path]);
        names.map(|name| (name, *text))
    })
}

/// The library's file names: first the older, whose PTX more drivers accept, last that of the development files.
const NAMES: [&str; 3] = ["libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so"];

/// `nvrtcProgram`.
type Raw = *mut c_void;

macro_rules! functions {
    ($($name:ident($($argument:ty),+);)+) => {
        /// NVRTC's functions. Each returns an `nvrtcResult`.
        #[allow(non_snake_case, reason = "the library's names")]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),+) -> c_int,)+
        }

        impl Functions {
            /// # Safety
            /// The library is NVRTC, and stays loaded.
            unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the caller's; the types are those of `nvrtc.h`.
                Ok(unsafe { Functions { $($name: *library.get(stringify!($name).as_bytes())?,)+ } })
            }
        }
    };
}

functions! {
    nvrtcVersion(*mut c_int, *mut c_int);
    nvrtcGetNumSupportedArchs(*mut c_int);
    nvrtcGetSupportedArchs(*mut c_int);
    nvrtcCreateProgram(*mut Raw, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
    nvrtcCompileProgram(Raw, c_int, *const *const c_char);
    nvrtcDestroyProgram(*mut Raw);
    nvrtcGetProgramLogSize(Raw, *mut usize);
    nvrtcGetProgramLog(Raw, *mut c_char);
    nvrtcGetPTXSize(Raw, *mut usize);
    nvrtcGetPTX(Raw, *mut c_char);
}

/// `NVRTC_ERROR_COMPILATION`.
const COMPILATION: c_int = 6;

fn check(call: &'static str, code: c_int) -> Result<(), CompileError> {
    if code == 0 { Ok(()) } else { Err(CompileError::Call { call, code }) }
}

fn c_string(name: &str, text: &str) -> Result<CString, CompileError> {
    CString::new(text)
        .map_err(|error| CompileError::ZeroByte { name: name.to_owned(), at: error.nul_position() })
}

/// The dynamic linker's message, which names the file.
fn said(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

struct Nvrtc {
    functions: Functions,
    version: (i32, i32),
    /// The architectures that it compiles for: 90 is `compute_90`.
    architectures: Vec<i32>,
    _library: Library,
}

/// The library, loaded at the first call that succeeds. After a failure, the next call tries again.
fn nvrtc() -> Result<&'static Nvrtc, CompileError> {
    static NVRTC: OnceLock<Nvrtc> = OnceLock::new();
    if let Some(nvrtc) = NVRTC.get() {
        return Ok(nvrtc);
    }
    let found = Nvrtc::find()?;
    Ok(NVRTC.get_or_init(|| found))
}

impl Nvrtc {
    fn find() -> Result<Self, CompileError> {
        let mut reason = None;
        for name in NAMES {
            // SAFETY: NVRTC's initialisers have no preconditions; users replace a library on the search path knowingly.
            let library = match unsafe { Library::new(name) } {
                Ok(library) => library,
                Err(error) => {
                    reason.get_or_insert_with(|| said(&error));
                    continue;
                }
            };
            // SAFETY: it has NVRTC's name; the struct keeps it with the functions.
            match unsafe { Functions::of(&library) } {
                Ok(functions) => return Self::new(functions, library),
                Err(error) => reason = Some(format!("{name} is older than CUDA 12: {}", said(&error))),
            }
        }
        Err(CompileError::Library { reason: reason.unwrap_or_default() })
    }

    fn new(functions: Functions, library: Library) -> Result<Self, CompileError> {
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: valid places.
        check("nvrtcVersion", unsafe { (functions.nvrtcVersion)(&mut major, &mut minor) })?;
        // SAFETY: as above.
        check("nvrtcGetNumSupportedArchs", unsafe { (functions.nvrtcGetNumSupportedArchs)(&mut count) })?;
        let mut architectures = vec![0; usize::try_from(count).unwrap_or_default()];
        // SAFETY: there is room for all of them.
        let code = unsafe { (functions.nvrtcGetSupportedArchs)(architectures.as_mut_ptr()) };
        check("nvrtcGetSupportedArchs", code)?;
        Ok(Nvrtc { functions, version: (major, minor), architectures, _library: library })
    }
}

struct Program<'a> {
    raw: Raw,
    functions: &'a Functions,
}

impl<'a> Program<'a> {
    fn new(nvrtc: &'a Nvrtc, name: &str, source: &str) -> Result<Self, CompileError> {
        let (c_name, body) = (c_string(name, name)?, c_string(name, source)?);
        let (mut names, mut texts) = (Vec::new(), Vec::new());
        for (included, text) in included() {
            names.push(c_string(included, included)?);
            texts.push(c_string(included, text)?);
        }
        let pointers = |of: &[CString]| of.iter().map(|one| one.as_ptr()).collect::<Vec<_>>();
        let (names_at, texts_at) = (pointers(&names), pointers(&texts));
        let (functions, mut raw) = (&nvrtc.functions, null_mut());
        // SAFETY: both lists have the given number of strings, which live until the call has returned.
        let code = unsafe {
            (functions.nvrtcCreateProgram)(
                &mut raw,
                body.as_ptr(),
                c_name.as_ptr(),
                names.len() as c_int,
                texts_at.as_ptr(),
                names_at.as_ptr(),
            )
        };
        check("nvrtcCreateProgram", code)?;
        Ok(Program { raw, functions })
    }

    fn compile(&self, name: &str, architecture: i32) -> Result<String, CompileError> {
        let option = c_string(name, &format!("--gpu-architecture=compute_{architecture}"))?;
        // SAFETY: the program lives until it is dropped; one option.
        let code = unsafe { (self.functions.nvrtcCompileProgram)(self.raw, 1, &option.as_ptr()) };
        if code == COMPILATION {
            let log = self.text(
                ("nvrtcGetProgramLogSize", self.functions.nvrtcGetProgramLogSize),
                ("nvrtcGetProgramLog", self.functions.nvrtcGetProgramLog),
            )?;
            return Err(CompileError::Source { name: name.to_owned(), log: log.trim().to_owned() });
        }
        check("nvrtcCompileProgram", code)?;
        self.text(
            ("nvrtcGetPTXSize", self.functions.nvrtcGetPTXSize),
            ("nvrtcGetPTX", self.functions.nvrtcGetPTX),
        )
    }

    /// Reads a text by the function that returns its size, with the final zero, and the one that copies it.
    fn text(
        &self,
        (size_call, size_of): (&'static str, unsafe extern "C" fn(Raw, *mut usize) -> c_int),
        (call, copy): (&'static str, unsafe extern "C" fn(Raw, *mut c_char) -> c_int),
    ) -> Result<String, CompileError> {
        let mut size = 0;
        // SAFETY: a valid place; the program lives until it is dropped.
        check(size_call, unsafe { size_of(self.raw, &mut size) })?;
        let mut bytes = vec![0u8; size];
        // SAFETY: as above, with room for the returned size.
        check(call, unsafe { copy(self.raw, bytes.as_mut_ptr().cast()) })?;
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: created by `new`, and not used afterwards. An error here has no remedy.
        _ = unsafe { (self.functions.nvrtcDestroyProgram)(&mut self.raw) };
    }
}

#[cfg(test)]
mod tests;
