//! The C functions. The headers document them and their arguments.
//!
//! # Safety
//! The caller of an `unsafe` function guarantees, besides what its own documentation says:
//! - A pointer to memory of the program is null, which is an error, or valid for the function's reads and writes: for an array, of as many
//!   elements as the call says. Objects of libibverbs and CUDA streams are alive.
//! - Objects of gdsync and of the software card may be any value, and no other thread destroys them during the call. During a call that
//!   destroys an object, no other thread uses it.

#![allow(clippy::missing_safety_doc, reason = "the module's documentation has what all functions require")]

pub mod bootstrap;
pub mod descriptors;
pub mod ext;
pub mod memory;
pub mod mlx5;
pub mod notify;
pub mod persistent;
pub mod queue_pair;
pub mod registration;
pub mod segment;
pub mod send;
pub mod team;
pub mod trigger;
pub mod upstream;
pub mod verbs;
pub mod wait;
