//! libgdrapi for C and C++: the interface of gdrcopy's library, version 2.6, on gdsync's CPU mappings of GPU memory
//! ([`gdsync::mapped`]). Programs that use gdrcopy run without its kernel module where the memory allows: `docs/gdrapi.md`.
//!
//! Layers, bottom up: `types` are the structs of the header; `fault` turns errors and panics into errno values; `backend` chooses the way
//! to map; `pin` is pinned memory; `slots` are places for it; `table` knows what C programs have handles of, the only state of the process; `api` are the C
//! functions.
//!
//! Nothing happens when the library is loaded. Every function may be called from any thread.

pub mod api;
mod backend;
mod fault;
mod log;
mod pin;
mod slots;
mod table;
pub mod types;
