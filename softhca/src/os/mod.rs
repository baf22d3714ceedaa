//! System calls that the standard library lacks.

pub(crate) mod call;
pub(crate) mod clock;
pub(crate) mod memory;
pub(crate) mod socket;
pub(crate) mod wait;
