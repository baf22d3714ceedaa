//! The errors of commands.

/// Why a command failed, in words for the user.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The error of a command whose cause is already on stderr, or reported by the parent process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlreadySaid;

impl std::fmt::Display for AlreadySaid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the cause stands above")
    }
}

impl std::error::Error for AlreadySaid {}

pub const WRONG_USAGE: u8 = 2;
