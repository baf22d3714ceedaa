//! libgdrapi for C and C++: the interface of gdrcopy's library, version 2.6, on the CPU mappings of [`gdsync_gdr`]. Programs that use
//! gdrcopy run without its kernel module if the memory allows. [docs/gpu-memory.md](https://github.com/gdsync/gdsync/blob/main/docs/gpu-memory.md)
//! lists the symbols and the differences.
//!
//! `api` has the C functions, and `types` the structs of the header. A `backend` maps memory, a `pin` is pinned memory; `table` has all
//! handles of C programs, the only state of the process, in `slots`.
//!
//! Loading the library runs no code. Every function may be called from any thread.
//!
//! # Example
//! Rust programs use [`gdsync_gdr`]. A Rust program that links the rlib calls the functions as C does:
//! ```
//! use gdrapi::api::{gdr_close, gdr_open};
//!
//! let library = gdr_open();
//! // Null if nothing maps GPU memory; GDRCOPY_ENABLE_LOGGING=1 logs the reason.
//! if !library.is_null() {
//!     assert_eq!(gdr_close(library), 0);
//! }
//! ```

pub mod api;
#[deny(unsafe_code)]
mod backend;
#[deny(unsafe_code)]
mod error;
#[deny(unsafe_code)]
mod log;
mod pin;
#[deny(unsafe_code)]
mod slots;
mod table;
#[deny(unsafe_code)]
pub mod types;
