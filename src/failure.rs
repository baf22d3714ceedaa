//! What every command answers with when it fails.

/// Why a command failed, in words for the user.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
