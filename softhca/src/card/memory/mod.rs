//! Every access of the card to a program's memory: rings, records, payloads. (Doorbell registers
//! are the card's own memory: `uar.rs`.)
//!
//! No other module of the card dereferences an address. The fronts promise that addresses of rings
//! and records are valid until their object is destroyed; memory regions check that registered
//! memory is mapped. *Contents* are never trusted. The card never dereferences an address of
//! registered memory of a peer-memory client: its bytes pass through the client's functions, and a
//! buffer of the card where the client does not copy to and from the fabric itself.

pub(crate) mod awaited;
pub(crate) mod clock;
pub(crate) mod copy;
pub(crate) mod gather;
pub(crate) mod indirect;
pub(crate) mod mapped;
pub(crate) mod parked;
pub(crate) mod peer_copies;
pub(crate) mod pieces;
pub(crate) mod region;
pub(crate) mod registered;
pub(crate) mod ring;
pub(crate) mod translation;
pub(crate) mod uar;
