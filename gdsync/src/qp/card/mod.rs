//! Work of the card without the CPU: triggers release sends, and collectors count completions.

#[deny(unsafe_code)]
pub(crate) mod collector;
pub(crate) mod trigger;
