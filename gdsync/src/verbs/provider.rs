//! Providers, which drive the card: the software card, or the system's libraries.

use crate::verbs::error::{Error, OpenError};
use gdsync_sys::VerbsApi;

/// The software card of this process: always there, needs nothing installed.
#[cfg(feature = "software-card")]
pub fn software() -> &'static VerbsApi {
    softhca::verbs_api()
}

/// The system's libibverbs and libmlx5, loaded at the first call.
///
/// # Errors
/// [`OpenError::Load`] where a library or a symbol is missing; it says which package brings it.
pub fn system() -> Result<&'static VerbsApi, Error> {
    Ok(gdsync_sys::system::load().map_err(OpenError::from)?)
}
