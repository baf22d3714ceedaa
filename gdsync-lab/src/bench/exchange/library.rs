//! libgdsync, loaded at run time as a C program's loader would.

use gdsync_c::types::{
    CUstream, gds_cq, gds_descriptor_t, gds_qp, gds_qp_init_attr_t, gds_send_request_t, gds_send_wr,
    gds_wait_request_t, ibv_recv_wr,
};
use gdsync_cli::failure::Failure;
use gdsync_sys::verbs::{ibv_context, ibv_gid, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp_attr, ibv_wc};
use libc::{c_char, c_int, c_uint, c_void, size_t};
use std::ffi::CStr;
use std::path::{Path, PathBuf};

/// The name that programs link with.
const NAME: &str = "libgdsync.so.2";
/// What cargo calls it.
const BUILT: &str = "libgdsync_c.so";

/// Declares the functions that are used, and loads them.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Its functions; `gdsync.h` and `gdsync/ext.h` say what each does.
        #[derive(Clone, Copy)]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            /// # Safety
            /// The library has these functions with these types.
            unsafe fn of(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Library {
                    // SAFETY: the caller's.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }?,)*
                })
            }
        }
    };
}

functions! {
    gdsync_error_text: fn() -> *const c_char;
    gdsync_soft_open: fn(*const c_char) -> *mut ibv_context;
    gdsync_soft_close: fn(*mut ibv_context) -> c_int;
    gdsync_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    gdsync_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    gdsync_reg_mr: fn(*mut ibv_pd, *mut c_void, size_t, c_int) -> *mut ibv_mr;
    gdsync_dereg_mr: fn(*mut ibv_mr) -> c_int;
    gdsync_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    gdsync_query_gid: fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    gds_create_qp: fn(*mut ibv_pd, *mut ibv_context, *mut gds_qp_init_attr_t, c_int, c_int) -> *mut gds_qp;
    gds_destroy_qp: fn(*mut gds_qp) -> c_int;
    gds_modify_qp: fn(*mut gds_qp, *mut ibv_qp_attr, c_int) -> c_int;
    gdsync_abort_qp: fn(*mut gds_qp) -> c_int;
    gds_post_recv: fn(*mut gds_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
    gds_poll_cq: fn(*mut gds_cq, c_int, *mut ibv_wc) -> c_int;
    gds_stream_queue_send: fn(CUstream, *mut gds_qp, *mut gds_send_wr, *mut *mut gds_send_wr) -> c_int;
    gds_stream_wait_cq: fn(CUstream, *mut gds_cq, c_int) -> c_int;
    gds_prepare_send: fn(*mut gds_qp, *mut gds_send_wr, *mut *mut gds_send_wr, *mut gds_send_request_t) -> c_int;
    gds_stream_post_send: fn(CUstream, *mut gds_send_request_t) -> c_int;
    gds_prepare_wait_cq: fn(*mut gds_cq, *mut gds_wait_request_t, c_int) -> c_int;
    gds_stream_post_wait_cq: fn(CUstream, *mut gds_wait_request_t) -> c_int;
    gds_stream_post_descriptors: fn(CUstream, size_t, *mut gds_descriptor_t, c_int) -> c_int;
    gdsync_soft_stream_create: fn() -> CUstream;
    gdsync_soft_stream_destroy: fn(CUstream) -> c_int;
    gdsync_stream_synchronize: fn(CUstream, c_uint) -> c_int;
    gdsync_stream_forget: fn(CUstream) -> c_int;
    gdsync_stream_keep: fn(CUstream, c_uint) -> c_int;
}

impl Library {
    /// Loads the library of a path, or else the first that is found: beside the command, where cargo builds
    /// it, or where the system's loader looks. Also tells which.
    ///
    /// # Errors
    /// In words, what was tried.
    pub(super) fn load(named: Option<&Path>) -> Result<(Self, PathBuf), String> {
        let mut tried = Vec::new();
        for path in named.map_or_else(candidates, |path| vec![path.to_owned()]) {
            match Self::load_from(&path) {
                Ok(library) => return Ok((library, path)),
                Err(error) => tried.push(format!("{}: {error}", path.display())),
            }
        }
        Err(tried.join("; "))
    }

    fn load_from(path: &Path) -> Result<Self, libloading::Error> {
        // SAFETY: libgdsync has no initialiser that could do harm, and its functions have these types: a
        // test compares the types with its headers.
        unsafe {
            let library = libloading::Library::new(path)?;
            let functions = Self::of(&library)?;
            // Never unloaded: its threads run in it.
            std::mem::forget(library);
            Ok(functions)
        }
    }

    /// Why the last call of this thread failed.
    pub(super) fn failed(&self, call: &str) -> Failure {
        // SAFETY: a string, valid until this thread's next failure.
        let text = unsafe { CStr::from_ptr((self.gdsync_error_text)()) };
        format!("{call} failed, by the C interface: {}", text.to_string_lossy()).into()
    }

    /// A status, which is 0 or an error.
    pub(super) fn done(&self, call: &str, status: c_int) -> Result<(), Failure> {
        if status == 0 { Ok(()) } else { Err(self.failed(call)) }
    }

    pub(super) fn made<T>(&self, call: &str, made: *mut T) -> Result<*mut T, Failure> {
        if made.is_null() { Err(self.failed(call)) } else { Ok(made) }
    }
}

fn candidates() -> Vec<PathBuf> {
    let command = std::env::current_exe().unwrap_or_default();
    let mut paths = Vec::new();
    if let Some(folder) = command.parent() {
        // cargo builds it there with the command; a copy beside the command may be of an earlier build.
        let all = [folder.join(NAME), folder.join("deps").join(BUILT)];
        paths.extend(all.into_iter().filter(|path| path.exists()));
    }
    paths.push(NAME.into());
    paths
}
