//! What a fabric carries.

/// Longest header of a packet in bytes.
pub const MAX_HEADER: usize = 96;
/// Longest payload of a packet in bytes.
pub const MAX_PAYLOAD: usize = 64 * 1024;

/// A piece of payload: its address and its length in bytes.
pub type Part = (*const u8, usize);

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// The fabric has taken it.
    Sent,
    /// There is no room now. The fabric wakes its sleeper when there is.
    Full,
    /// No card is there, or its process has ended.
    Unreachable,
}
