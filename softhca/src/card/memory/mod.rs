//! All accesses of the card to a program's memory: rings, records, payloads. (Doorbell registers are the card's own
//! memory.)
//!
//! No other module of the card dereferences an address. The front ends (`verbs`, softhca-uverbs) guarantee that
//! addresses of rings and records are valid until their object is destroyed; memory regions check that registered
//! memory is mapped, and an access survives if it is not any more. *Contents* are never trusted. The card never dereferences an address of a peer-memory client's
//! memory: the bytes pass through the client's functions, and through a buffer of the card where the client does not
//! copy to and from the fabric itself.

pub(crate) mod clock;
pub(crate) mod copy;
pub(crate) mod deferred;
pub(crate) mod fingerprint;
pub(crate) mod gather;
pub(crate) mod indirect;
pub(crate) mod peer_copies;
pub(crate) mod region;
pub(crate) mod registered;
pub(crate) mod ring;
pub(crate) mod translation;
pub(crate) mod uar;
