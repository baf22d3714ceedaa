//! libgdrapi for C and C++: the interface of gdrcopy's library, version 2.6, on the CPU mappings of
//! [`gdsync_gdr`]. Programs that use gdrcopy run without its kernel module where the memory allows.
//! [docs/gpu-memory.md](https://github.com/gdsync/gdsync/blob/main/docs/gpu-memory.md) lists the symbols and
//! what is different.
//!
//! Layers, bottom up: `types` are the structs of the header; `log` is the log on stderr; `error`
//! turns errors and panics into errno values; `backend` chooses the backend; `pin` is pinned
//! memory; `slots` stores it by handle; `table` has all handles of C programs, the only state of
//! the process; `api` has the C functions.
//!
//! Loading the library runs no code. Every function may be called from any thread.
//!
//! # Example
//! The functions are C's; Rust programs use [`gdsync_gdr`]. A Rust program that links the rlib
//! calls them as C does:
//! ```
//! use gdrapi::api::{gdr_close, gdr_open};
//!
//! let library = gdr_open();
//! // Null where nothing maps GPU memory: GDRCOPY_ENABLE_LOGGING=1 says why.
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
