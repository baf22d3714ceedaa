//! The software card, and the system's libraries. Only this and the software card's client of GPU memory name its crate.

use crate::verbs::{Error, OpenError};
use gdsync_sys::VerbsApi;
use gdsync_sys::api::Provider;

/// The software card of this process: always available, with nothing to install.
#[cfg(feature = "software-card")]
pub fn software() -> &'static VerbsApi {
    share_gpu_memory(Provider::Software);
    softhca::verbs_api()
}

/// The system's libibverbs and libmlx5, loaded at the first call.
///
/// # Errors
/// [`OpenError::Load`] if a library or a symbol is missing; it names the package to install.
pub fn system() -> Result<&'static VerbsApi, Error> {
    Ok(gdsync_sys::system::load().map_err(OpenError::from)?)
}

/// Checks the provider's settings in the environment: its calls return error numbers only.
pub(crate) fn check_settings(provider: Provider) -> Result<(), OpenError> {
    match provider {
        #[cfg(feature = "software-card")]
        Provider::Software => {
            softhca::environment::check().map_err(|error| OpenError::Setting { reason: error.to_string() })
        }
        _ => Ok(()),
    }
}

/// Gives the provider's cards access to GPU memory, if they need the library's help.
pub(crate) fn share_gpu_memory(provider: Provider) {
    match provider {
        #[cfg(feature = "software-card")]
        Provider::Software => crate::cuda::share(),
        _ => {}
    }
}
