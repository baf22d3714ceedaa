//! The C functions. Their documentation is in the headers; what they take is described there.

pub mod descriptors;
pub mod ext;
pub mod memory;
pub mod mlx5;
pub mod queue_pair;
pub mod send;
pub mod verbs;
pub mod wait;
