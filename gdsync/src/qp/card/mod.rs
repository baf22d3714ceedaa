//! What the card waits for and does without the CPU: triggers of sends, and collectors of completions.

#[deny(unsafe_code)]
pub(crate) mod collector;
pub(crate) mod trigger;
