//! The device header as host C++, compiled where there is a C++ compiler, and called from Rust as kernels call it.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test file uses its part")]

use gdsync::device::DeviceQpData;
use libloading::Library;
use std::ffi::c_void;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// `gdsync::status` of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Ok,
    NoRoom,
    TimedOut,
    Failed,
    Invalid,
}

impl Ended {
    pub fn new(code: i32) -> Self {
        *[Ended::Ok, Ended::NoRoom, Ended::TimedOut, Ended::Failed, Ended::Invalid]
            .get(code as usize)
            .expect("a status that the header does not have")
    }
}

/// `operation` of [`Request`].
pub const PUT: u32 = 0;
pub const PUT_INLINE: u32 = 1;
pub const PUT_SIGNAL: u32 = 2;
pub const PUT_SIGNAL_ADD: u32 = 3;
pub const GET: u32 = 4;
pub const SEND: u32 = 5;
pub const SEND_INLINE: u32 = 6;
pub const FETCH_ADD: u32 = 7;
pub const COMPARE_SWAP: u32 = 8;
pub const PUT_WARP: u32 = 9;
pub const PUT_BLOCK: u32 = 10;

/// Arguments of a call, as `calls.cpp` has them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    pub operation: u32,
    pub lkey: u32,
    pub local: u64,
    pub bytes: u64,
    pub remote: u64,
    pub signal: u64,
    pub value: u64,
    pub desired: u64,
    pub timeout_ns: u64,
    pub rkey: u32,
    pub more: u32,
}

/// What `storm` does.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    pub threads: u32,
    pub count: u64,
    pub slots: u32,
    pub remote: u64,
    pub rkey: u32,
    pub counters: u64,
    pub local: u64,
    pub lkey: u32,
}

pub struct Calls(Library);

fn skip(test: &str, why: &str) {
    std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes()).unwrap();
}

/// Compiles a source of the repository. `Err` says why that cannot be done here; a mistake in the header fails the test.
pub fn compile(source: &str, output: &str, options: &[&str]) -> Result<PathBuf, String> {
    // Also for gdsync-notify, whose tests use this file.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let source = root.join(source);
    let name = source.file_name().unwrap().to_string_lossy();
    let output =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}-{output}", std::process::id()));
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    // Whether it works at all, with these options, is found out with a program that has no mistakes.
    let empty = output.with_extension("empty.cpp");
    std::fs::write(&empty, "#include <thread>\nint main() { return 0; }\n").unwrap();
    let compile = |source: &Path| {
        Command::new(&compiler)
            .args(["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
            .args(options)
            .arg("-I")
            .arg(root.join("gdsync/include"))
            .arg(source)
            .arg("-o")
            .arg(&output)
            .output()
    };
    match compile(&empty) {
        Err(error) => return Err(format!("no C++ compiler {compiler}: {error}")),
        Ok(said) if !said.status.success() => {
            let said = String::from_utf8_lossy(&said.stderr).lines().next().unwrap_or_default().to_owned();
            return Err(format!("{compiler} {options:?} does not work: {said}"));
        }
        Ok(_) => {}
    }
    std::fs::remove_file(&empty).unwrap();
    let said = compile(&source).unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    Ok(output)
}

/// The library of `calls.cpp`; `None`, and said so, where there is no C++ compiler.
pub fn calls(test: &str) -> Option<&'static Calls> {
    static CALLS: OnceLock<Result<Calls, String>> = OnceLock::new();
    let found = CALLS.get_or_init(|| {
        let path = compile("gdsync/tests/device/calls.cpp", "calls.so", &["-shared", "-fPIC"])?;
        // SAFETY: our own library, which does nothing when it is loaded.
        let library = unsafe { Library::new(&path) }.unwrap();
        std::fs::remove_file(&path).unwrap();
        Ok(Calls(library))
    });
    match found {
        Ok(calls) => Some(calls),
        Err(why) => {
            skip(test, why);
            None
        }
    }
}

/// Compiles a program as [`compile`] does, and runs it under ThreadSanitizer; says so where that is not possible.
pub fn run_sanitized(test: &str, source: &str, arguments: &[&str]) {
    let path = match compile(source, "sanitized", &["-fsanitize=thread"]) {
        Ok(path) => path,
        Err(why) => return skip(test, &why),
    };
    let said = Command::new(&path).args(arguments).env("TSAN_OPTIONS", "halt_on_error=1").output().unwrap();
    std::fs::remove_file(&path).unwrap();
    let (output, errors) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    if errors.contains("unexpected memory mapping") {
        return skip(test, "ThreadSanitizer does not run on this kernel");
    }
    assert!(said.status.success() && output == "ok\n", "{:?} {output} {errors}", said.status);
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

macro_rules! symbol {
    ($self:ident, $name:literal, $type:ty) => {{
        // SAFETY: `calls.cpp` defines the function so.
        let function: libloading::Symbol<'_, $type> = unsafe { $self.0.get($name) }.unwrap();
        function
    }};
}

/// Every call takes a queue pair that is handed over to this process's threads, and not dropped meanwhile: the tests see to that.
impl Calls {
    pub fn layout(&self) -> Vec<u64> {
        let mut offsets = [0u64; 64];
        let function = symbol!(self, b"layout", unsafe extern "C" fn(*mut u64) -> i32);
        // SAFETY: room for more than the function writes.
        let count = unsafe { function(offsets.as_mut_ptr()) };
        offsets[..count as usize].to_vec()
    }

    pub fn call(&self, qp: &DeviceQpData, request: &Request) -> (Ended, u64) {
        type Call = unsafe extern "C" fn(*const DeviceQpData, *const Request, *mut u64) -> i32;
        let function = symbol!(self, b"call", Call);
        let mut ticket = 0;
        // SAFETY: as the block's comment says; the memory that is named is registered.
        let code = unsafe { function(qp, request, &mut ticket) };
        (Ended::new(code), ticket)
    }

    pub fn quiet(&self, qp: &DeviceQpData, timeout: Duration) -> Ended {
        let function = symbol!(self, b"call_quiet", unsafe extern "C" fn(*const DeviceQpData, u64) -> i32);
        // SAFETY: as the block's comment says.
        Ended::new(unsafe { function(qp, ns(timeout)) })
    }

    pub fn wait(&self, qp: &DeviceQpData, ticket: u64, timeout: Duration) -> Ended {
        let function =
            symbol!(self, b"call_wait", unsafe extern "C" fn(*const DeviceQpData, u64, u64) -> i32);
        // SAFETY: as the block's comment says.
        Ended::new(unsafe { function(qp, ticket, ns(timeout)) })
    }

    pub fn poll(&self, qp: &DeviceQpData) -> (Ended, u64) {
        let function =
            symbol!(self, b"call_poll", unsafe extern "C" fn(*const DeviceQpData, *mut u64) -> i32);
        let mut completed = 0;
        // SAFETY: as the block's comment says.
        (Ended::new(unsafe { function(qp, &mut completed) }), completed)
    }

    pub fn ring(&self, qp: &DeviceQpData) -> Ended {
        let function = symbol!(self, b"call_ring", unsafe extern "C" fn(*const DeviceQpData) -> i32);
        // SAFETY: as the block's comment says.
        Ended::new(unsafe { function(qp) })
    }

    pub fn wait_signal(&self, word: u64, value: u64, timeout: Duration) -> Ended {
        let function =
            symbol!(self, b"call_wait_signal", unsafe extern "C" fn(*const c_void, u64, u64) -> i32);
        // SAFETY: the tests give aligned words of live regions.
        Ended::new(unsafe { function(word as *const c_void, value, ns(timeout)) })
    }

    pub fn error(&self, qp: &DeviceQpData) -> u64 {
        let function = symbol!(self, b"call_error", unsafe extern "C" fn(*const DeviceQpData) -> u64);
        // SAFETY: as the block's comment says.
        unsafe { function(qp) }
    }

    pub fn syndrome(&self, qp: &DeviceQpData) -> u32 {
        let function = symbol!(self, b"call_syndrome", unsafe extern "C" fn(*const DeviceQpData) -> u32);
        // SAFETY: as the block's comment says.
        unsafe { function(qp) }
    }

    pub fn crc32(&self, bytes: &[u8], before: u32) -> u32 {
        let function = symbol!(self, b"call_crc32", unsafe extern "C" fn(*const u8, u64, u32) -> u32);
        // SAFETY: so many bytes are there.
        unsafe { function(bytes.as_ptr(), bytes.len() as u64, before) }
    }

    pub fn stop_inside(&self, qp: &DeviceQpData, place: i32) {
        let function = symbol!(self, b"stop_inside", unsafe extern "C" fn(*const DeviceQpData, i32));
        // SAFETY: as the block's comment says.
        unsafe { function(qp, place) }
    }

    pub fn storm(&self, qp: &DeviceQpData, storm: Storm) -> u64 {
        type Function =
            unsafe extern "C" fn(*const DeviceQpData, u32, u64, u32, u64, u32, u64, u64, u32) -> u64;
        let function = symbol!(self, b"storm", Function);
        let Storm { threads, count, slots, remote, rkey, counters, local, lkey } = storm;
        // SAFETY: as the block's comment says.
        unsafe { function(qp, threads, count, slots, remote, rkey, counters, local, lkey) }
    }
}
