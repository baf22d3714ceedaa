//! The abstract socket names under which cards of this user hold their numbers.
//!
//! The plain name of a card contains the user and the number. It depends on the network namespace only, so processes find
//! each other across file systems. But abstract names have no owner: another user can take them, and sees
//! those in use (`/proc/net/unix`). Therefore:
//! - A name is only trusted when its holder is a process of this user ([`reach`]).
//! - When the plain names are taken, a card holds its number by a *secret* name, derived from the user's key.
//!   Another user cannot take it before a card of this user has held it.
//!
//! One card holds a number, under either name: a card takes its name first, and then checks whether another card of this
//! user holds the other name. If two cards take one number at the same time, at least one sees the other, and gives it up.

use super::config;
use super::error::FabricError;
use super::held::Held;
use super::packet::NUMBERS;
use crate::os::socket;
use gdsync_auth::{Key, own_user};
use gdsync_sys::local;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// The name of the card with a number, which anyone can compute.
pub(super) fn plain(number: u16) -> Vec<u8> {
    gdsync_status::card_name(number).into_bytes()
}

/// The name of the card with a number, which only holders of the key can compute.
fn secret(key: &Key, number: u16) -> Vec<u8> {
    let proof = key.number("the name of a card's number", &number.to_be_bytes());
    format!("{}/{proof:032x}", gdsync_status::card_name(number)).into_bytes()
}

/// A number, and the socket that holds it.
pub(super) struct Claim {
    pub(super) number: u16,
    pub(super) listener: Name,
}

/// Claims a number that no other card of this user has. The seed determines where the search starts.
pub(super) fn claim(seed: u32) -> Result<Claim, FabricError> {
    let none = |last| FabricError::NoLid { last };
    if let Some(claim) = first_free(seed, claim_plain).map_err(none)? {
        return Ok(claim.into());
    }
    tracing::info!("all plain names of cards are taken: a secret one is used");
    let key = config::key_for_this_host()?;
    let claim = first_free(seed, |number| claim_secret(&key, number)).map_err(none)?;
    claim.map(Claim::from).ok_or_else(|| none(ErrorKind::AddrInUse.into()))
}

impl From<(u16, Name)> for Claim {
    fn from((number, listener): (u16, Name)) -> Self {
        Claim { number, listener }
    }
}

/// A random number at which to start the search for a card's number: if a number were used again soon, the new card
/// would receive packets meant for its former owner.
pub(super) fn seed() -> u32 {
    RandomState::new().hash_one(()) as u32
}

/// Claims the first number of a card that is free; `None` if all are taken.
///
/// # Errors
/// The first error of `claim`, which returns `None` for a number that is taken.
pub(super) fn first_free<T>(
    seed: u32,
    mut claim: impl FnMut(u16) -> io::Result<Option<T>>,
) -> io::Result<Option<(u16, T)>> {
    let numbers = NUMBERS.len() as u32;
    for step in 0..numbers {
        let number = ((seed % numbers + step) % numbers) as u16 + NUMBERS.start();
        if let Some(held) = claim(number)? {
            return Ok(Some((number, held)));
        }
    }
    Ok(None)
}

/// Takes the plain name of a number. `None` if another card of this user has the number, or any process has the name.
pub(super) fn claim_plain(number: u16) -> io::Result<Option<Name>> {
    let Some(listener) = listen(&plain(number))? else { return Ok(None) };
    // Without a key, no card has a secret name.
    let other = known_key().is_some_and(|key| reach(&secret(&key, number)).is_ok());
    Ok((!other).then_some(listener))
}

/// As [`claim_plain`], by the secret name.
pub(super) fn claim_secret(key: &Key, number: u16) -> io::Result<Option<Name>> {
    let Some(listener) = listen(&secret(key, number))? else { return Ok(None) };
    Ok(reach(&plain(number)).is_err().then_some(listener))
}

/// A socket that holds a name.
pub(super) type Name = Held<UnixListener>;

/// Returns whether a name that is taken has been given up, so that it will be free soon.
pub(super) fn is_given_up(name: &[u8]) -> bool {
    local::connect(name).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Listens at a name. `None` if it is taken.
pub(super) fn listen(name: &[u8]) -> io::Result<Option<Name>> {
    match UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?) {
        Ok(listener) => {
            listener.set_nonblocking(true)?;
            Ok(Some(Held::new(listener)))
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
}

/// Connects to the card of this user that has a number. [`ErrorKind::WouldBlock`] if it has not accepted earlier
/// links yet.
pub(super) fn connect(number: u16) -> io::Result<UnixStream> {
    reach(&plain(number)).or_else(|error| {
        let Some(key) = known_key() else { return Err(error) };
        match reach(&secret(&key, number)) {
            // Any process may hold the plain name, and keep it busy.
            Err(other) if other.kind() != ErrorKind::WouldBlock => Err(error),
            result => result,
        }
    })
}

/// Connects to a name whose holder is a process of this user.
pub(super) fn reach(name: &[u8]) -> io::Result<UnixStream> {
    let stream = local::connect(name)?;
    let user = socket::peer_user(&stream)?;
    if user != own_user() {
        let reason = format!("user {user} holds the name of a card of user {}", own_user());
        return Err(io::Error::new(ErrorKind::PermissionDenied, reason));
    }
    Ok(stream)
}

/// The key of secret names, if there is one.
fn known_key() -> Option<Key> {
    config::existing_key().unwrap_or_else(|error| {
        tracing::debug!(%error, "there is no key for secret names of cards");
        None
    })
}
