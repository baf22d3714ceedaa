//! libgdsync for C and C++: the interface of GPUDirect Async's libgdsync, version 2.2, and a few
//! calls of its own (`include/gdsync/ext.h`), on gdsync.
//! [docs/c-abi.md](https://github.com/gdsync/gdsync/blob/main/docs/c-abi.md) lists it, and says
//! what is different.
//!
//! Layers, bottom up: `types` are the structs of the headers; `error` turns errors and panics into
//! errno values; `handles` are names that are never used twice, and `named` the objects that they stand for; `providers`, `objects`, `requests`,
//! `streams`, `persistent`, `teams`, `registrations` and `pages` are what C programs have names of, and the only state of the process;
//! `work`, `completion` and `batch` translate; `api` are the C functions, one module for each header
//! or part of one.
//!
//! Nothing happens when the library is loaded. Every function may be called from any thread.

pub mod api;
mod batch;
mod completion;
mod error;
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
mod work;
