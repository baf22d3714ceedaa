//! Raw interfaces of gdsync. All policy is in [`policy`]; nothing here owns verbs objects.
//!
//! Three layers make up the project; this crate is the lowest.
//!
//! 1. `gdsync-sys`: wire formats ([`prm`]), C types ([`verbs`], [`mlx5dv`]), requests to NVIDIA's kernel modules that
//!    map GPU memory ([`gdrdrv`], [`nvrm`]), and the table of entry points ([`VerbsApi`]) that a *provider* fills:
//!    the system's libibverbs and libmlx5 ([`system`]), or the software card of the `softhca` crate.
//! 2. `gdsync`: the safe library, which knows only the table.
//! 3. `gdsync-cli`: the command-line tool.
//!
//! C types and fields have the names of the C headers.

pub mod api;
pub mod barrier;
#[deny(unsafe_code)]
pub mod contain;
pub mod file_limit;
#[deny(unsafe_code)]
pub mod gdrdrv;
pub mod host;
#[deny(unsafe_code)]
pub mod launcher;
#[deny(unsafe_code)]
pub mod mlx5dv;
#[deny(unsafe_code)]
pub mod nvrm;
pub mod policy;
#[deny(unsafe_code)]
pub mod prm;
pub mod shared;
pub mod system;
pub mod thread;
pub mod verbs;

pub use api::VerbsApi;
pub use policy::{local, pause, wake};

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
