//! The C functions. The headers document them and their arguments.
//!
//! A function that requires a pointer to be null or valid means memory of the program, and objects of libibverbs and CUDA. Handles of
//! gdsync's queue pairs, completion queues, software streams and objects of the software card may have any value, as long as no other
//! thread destroys the object during the call.

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
