//! The software card, and the system's libraries. No other file of the library names the software card's crate.

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
        Provider::Software => gpu_memory::share(),
        _ => {}
    }
}

/// The software cards' peer-memory client, on top of [`CardRegion`](crate::cuda::CardRegion).
#[cfg(feature = "software-card")]
mod gpu_memory {
    use crate::cuda::{CardBuffer, CardRegion};
    use softhca::{AsyncCopy, HostRange, PeerMemory, PeerMemoryError, PeerRegion};
    use std::ops::Range;
    use std::sync::{Arc, Once};

    struct Client;

    #[derive(Debug)]
    struct Region(CardRegion);

    pub(super) fn share() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| softhca::register_peer_memory(Arc::new(Client)));
    }

    impl PeerMemory for Client {
        fn name(&self) -> &str {
            "CUDA"
        }

        fn acquire(
            &self,
            addr: u64,
            len: u64,
            _writable: bool,
        ) -> Result<Option<Arc<dyn PeerRegion>>, PeerMemoryError> {
            let found = CardRegion::find(addr, len).transpose().map_err(PeerMemoryError::new)?;
            Ok(found.map(|region| Arc::new(Region(region)) as Arc<dyn PeerRegion>))
        }
    }

    impl PeerRegion for Region {
        fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), PeerMemoryError> {
            self.0.read(addr, into).map_err(PeerMemoryError::new)
        }

        fn write(&self, addr: u64, from: &[u8]) -> Result<(), PeerMemoryError> {
            self.0.write(addr, from).map_err(PeerMemoryError::new)
        }

        unsafe fn begin_read(
            &self,
            addr: u64,
            into: *mut u8,
            len: usize,
        ) -> Result<AsyncCopy, PeerMemoryError> {
            // SAFETY: the card has checked that the address is in this region. It keeps the buffer writable, and uses it for
            // nothing else, until `finish` has returned (`PeerRegion::begin_read`).
            Ok(started(unsafe { self.0.begin(addr, into as usize, len, true, HostRange::of) }))
        }

        unsafe fn begin_write(
            &self,
            addr: u64,
            from: *const u8,
            len: usize,
        ) -> Result<AsyncCopy, PeerMemoryError> {
            // SAFETY: as in `begin_read`; the buffer stays readable.
            Ok(started(unsafe { self.0.begin(addr, from as usize, len, false, HostRange::of) }))
        }

        fn keeps_order(&self) -> bool {
            self.0.keeps_order()
        }

        fn start(&self) {
            self.0.start();
        }

        fn finish(&self) -> Result<(), PeerMemoryError> {
            self.0.finish().map_err(PeerMemoryError::new)
        }

        fn finish_started(&self) -> Result<(), PeerMemoryError> {
            self.0.finish_started().map_err(PeerMemoryError::new)
        }
    }

    fn started(started: bool) -> AsyncCopy {
        if started { AsyncCopy::Started } else { AsyncCopy::Unsupported }
    }

    // SAFETY: a `HostRange` keeps its memory mapped.
    unsafe impl CardBuffer for HostRange {
        fn addresses(&self) -> Range<usize> {
            self.address()..self.address() + self.len()
        }

        fn is_in_use(&self) -> bool {
            HostRange::is_in_use(self)
        }
    }
}
