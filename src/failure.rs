//! What every command answers with when it fails.

/// Why a command failed, in words for the user.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Why it failed is on stderr already, or with the process that has started this one: nothing is to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlreadySaid;

impl std::fmt::Display for AlreadySaid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the cause stands above")
    }
}

impl std::error::Error for AlreadySaid {}

/// The exit status of a command line that cannot be used.
pub const WRONG_USAGE: u8 = 2;
