//! Addresses of DC targets.

use crate::verbs::AddressHandle;
use gdsync_sys::prm::wqe::AddressVector;

/// The address of a DC target: the path to its port, its number and its access key, for the requests of
/// DC queue pairs ([`crate::WorkRequest::to_target`]). Made by [`crate::QueuePair::dc_address`].
///
/// A cheap handle; it belongs to a protection domain and a port, and serves every DC queue pair of both.
/// It needs neither the card's nor the target's consent: what is wrong with it, the request tells that is
/// sent there.
#[derive(Clone, Debug)]
pub struct DcAddress {
    pub(crate) handle: AddressHandle,
    /// As the card has it.
    pub(crate) vector: AddressVector,
}

impl DcAddress {
    pub(crate) fn new(handle: AddressHandle, number: u32, key: u64) -> Self {
        let vector = handle.inner.vector.with_destination(number, 0).with_dc_key(key);
        DcAddress { handle, vector }
    }

    /// Number of the target.
    pub fn number(&self) -> u32 {
        self.vector.fields().qpn
    }

    /// The access key that requests will carry.
    pub fn key(&self) -> u64 {
        self.vector.dc_key()
    }
}
