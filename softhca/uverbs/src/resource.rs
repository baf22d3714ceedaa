//! The objects of a card.

use softhca::card::{Card, CardError};

/// An object of a card, by number. A closing context destroys its objects in this order: users before the
/// objects that they use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Resource {
    Qp(u32),
    Srq(u32),
    Cq(u32),
    Mkey(u32),
    /// Device memory, by its first page.
    DeviceMemory(u32),
    Uar(u32),
    Pd(u32),
    Xrcd(u32),
}

impl Resource {
    pub(crate) fn number(self) -> u32 {
        let (Self::Qp(number)
        | Self::Srq(number)
        | Self::Cq(number)
        | Self::Mkey(number)
        | Self::DeviceMemory(number)
        | Self::Uar(number)
        | Self::Pd(number)
        | Self::Xrcd(number)) = self;
        number
    }

    /// Destroys the object. The card refuses while other objects use it.
    pub(crate) fn destroy(self, card: &Card) -> Result<(), CardError> {
        match self {
            Self::Qp(number) => card.destroy_qp(number),
            Self::Srq(number) => card.destroy_srq(number),
            Self::Cq(number) => card.destroy_cq(number),
            Self::Mkey(key) => card.deregister_memory(key),
            Self::DeviceMemory(page) => card.free_device_memory(page),
            Self::Uar(page) => card.free_uar(page),
            Self::Pd(number) => card.dealloc_pd(number),
            Self::Xrcd(number) => card.close_xrcd(number),
        }
    }
}
