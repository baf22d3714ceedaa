//! libgdsync for C and C++: the interface of GPUDirect Async's libgdsync, version 2.2, and calls of gdsync (`include/gdsync/ext.h`).
//! [docs/c-abi.md](https://github.com/gdsync/gdsync/blob/main/docs/c-abi.md) lists them, and the differences.
//!
//! `api` has the C functions, one module for each header or part of one. `handles` and the modules of the objects that C programs have
//! (`objects`, `requests`, `streams`, `persistent`, `teams`, `pages`) hold all state of the process; `work`, `completion` and `batch`
//! translate between the C structs of `types` and gdsync.
//!
//! Loading the library has no effect. Every function may be called from any thread.

pub mod api;
mod batch;
mod completion;
mod error;
#[deny(unsafe_code)]
mod explain;
mod handles;
pub mod inside;
#[deny(unsafe_code)]
mod log;
pub mod notify_types;
mod objects;
mod pages;
mod persistent;
mod providers;
#[deny(unsafe_code)]
mod requests;
#[deny(unsafe_code)]
mod stream_object;
mod streams;
mod teams;
#[deny(unsafe_code)]
pub mod types;
#[deny(unsafe_code)]
mod words;
mod work;
