//! Providers, which drive the card: the software card, or the system's libraries.

use crate::verbs::{Error, OpenError};
use gdsync_sys::VerbsApi;
use gdsync_sys::api::Provider;

/// The software card of this process: always there, needs nothing installed.
#[cfg(feature = "software-card")]
pub fn software() -> &'static VerbsApi {
    softhca::verbs_api()
}

/// Checks what a provider takes from the environment, and says it in words: its calls have only
/// error numbers.
///
/// # Errors
/// [`OpenError::Setting`].
pub(crate) fn check_settings(provider: Provider) -> Result<(), OpenError> {
    match provider {
        #[cfg(feature = "software-card")]
        Provider::Software => {
            softhca::environment::check().map_err(|error| OpenError::Setting { reason: error.to_string() })
        }
        _ => Ok(()),
    }
}

/// The system's libibverbs and libmlx5, loaded at the first call.
///
/// # Errors
/// [`OpenError::Load`] where a library or a symbol is missing; it says which package brings it.
pub fn system() -> Result<&'static VerbsApi, Error> {
    Ok(gdsync_sys::system::load().map_err(OpenError::from)?)
}
