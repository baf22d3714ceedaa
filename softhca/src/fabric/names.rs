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
use super::packet::NUMBERS;
use crate::os::socket;
use gdsync_auth::{Key, own_user};
use gdsync_sys::local;
use std::io::{self, ErrorKind};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of the card with a number, which anyone can compute.
pub(super) fn plain(number: u16) -> Vec<u8> {
    format!("gdsync-softhca/{}/{number}", own_user()).into_bytes()
}

/// The name of the card with a number, which only holders of the key can compute.
fn secret(key: &Key, number: u16) -> Vec<u8> {
    let proof = key.number("the name of a card's number", &number.to_be_bytes());
    format!("gdsync-softhca/{}/{number}/{proof:032x}", own_user()).into_bytes()
}

/// A number, and the socket that holds it.
pub(super) struct Claim {
    pub(super) number: u16,
    pub(super) listener: Name,
}

/// Claims a number that no other card of this user has. The seed determines where the search starts.
pub(super) fn claim(seed: u32) -> Result<Claim, FabricError> {
    if let Some(claim) = first_free(seed, NUMBERS.len() as u32, &mut claim_plain)? {
        return Ok(claim);
    }
    tracing::info!("all plain names of cards are taken: a secret one is used");
    let key = config::key_for_this_host()?;
    let claim = first_free(seed, NUMBERS.len() as u32, &mut |number| claim_secret(&key, number))?;
    claim.ok_or_else(|| FabricError::NoLid { last: ErrorKind::AddrInUse.into() })
}

fn first_free(
    seed: u32,
    tries: u32,
    claim: &mut dyn FnMut(u16) -> io::Result<Option<Name>>,
) -> Result<Option<Claim>, FabricError> {
    for step in 0..tries {
        let number = (seed.wrapping_add(step) % NUMBERS.len() as u32) as u16 + 1;
        match claim(number) {
            Ok(Some(listener)) => return Ok(Some(Claim { number, listener })),
            Ok(None) => {}
            Err(last) => return Err(FabricError::NoLid { last }),
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

/// A socket that holds a name. The name is given up when this is dropped, and free once the last copy of the
/// descriptor is closed: another thread may be starting a program, which has copies until it is executed.
#[derive(Debug)]
pub(super) struct Name(UnixListener);

/// Sockets with descriptors below this limit are closed in children.
const MAX_FD: usize = 1 << 16;
/// The descriptors of all names of the process.
static HELD: [AtomicU64; MAX_FD / 64] = [const { AtomicU64::new(0) }; MAX_FD / 64];

impl Name {
    fn of(listener: UnixListener) -> Name {
        let fd = listener.as_raw_fd() as usize;
        if let Some(word) = HELD.get(fd / 64) {
            word.fetch_or(1 << (fd % 64), Ordering::AcqRel);
        }
        Name(listener)
    }
}

impl Deref for Name {
    type Target = UnixListener;

    fn deref(&self) -> &UnixListener {
        &self.0
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let fd = self.0.as_raw_fd();
        socket::refuse_connections(self.0.as_fd());
        if let Some(word) = HELD.get(fd as usize / 64) {
            word.fetch_and(!(1 << (fd % 64)), Ordering::AcqRel);
        }
    }
}

/// Closes the parent's names, which only the parent holds and gives up. For the child of a fork: makes system calls
/// only.
pub fn close_names_in_child() {
    for (index, word) in HELD.iter().enumerate() {
        let mut held = word.swap(0, Ordering::AcqRel);
        while held != 0 {
            socket::close_inherited((index * 64) as i32 + held.trailing_zeros() as i32);
            held &= held - 1;
        }
    }
}

/// Returns whether a name that is taken has been given up, so that it will be free soon.
pub(super) fn is_given_up(name: &[u8]) -> bool {
    local::connect(name).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Listens at a name. `None` if it is taken.
pub(super) fn listen(name: &[u8]) -> io::Result<Option<Name>> {
    match UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?) {
        Ok(listener) => {
            listener.set_nonblocking(true)?;
            Ok(Some(Name::of(listener)))
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
