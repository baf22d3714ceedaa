//! The C functions. Their documentation is in the headers; what they take is described there.
//!
//! Where one demands of the caller that a pointer is null or valid, that is of the program's own
//! memory, and of objects of libibverbs and CUDA. Handles of gdsync's queue pairs, completion queues,
//! software streams and objects of the software card may have any value; only, no other thread
//! destroys the object during the call.

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
