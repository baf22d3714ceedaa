//! `gdsync/team.h`: bootstraps, by which the processes of a job find each other.

use crate::error::{self, CallError, non_null, non_null_mut};
use crate::log;
use crate::notify_types::{gdsync_all_gather_t, gdsync_connection_t};
use crate::objects;
use crate::teams::{BOOTSTRAPS, keep_bootstrap, taken};
use crate::types::gdsync_bootstrap;
use gdsync::ConnectOptions;
use gdsync_notify::Connection;
use gdsync_notify::bootstrap::{Bootstrap, BootstrapError, Job, KEY_VARIABLES, Rendezvous};
use libc::{c_char, c_int, c_uint, c_void, size_t};
use std::ffi::CStr;
use std::time::Duration;

/// `gdsync_bootstrap_from_env`.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_bootstrap_from_env(timeout_ms: c_uint) -> *mut gdsync_bootstrap {
    log::start();
    error::pointer("gdsync_bootstrap_from_env", || {
        keep_bootstrap(Bootstrap::join(&Job::from_env()?, Duration::from_millis(timeout_ms.into()))?)
    })
}

/// `gdsync_bootstrap_join`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_bootstrap_join(
    rank: u32,
    size: u32,
    address: *const c_char,
    timeout_ms: c_uint,
) -> *mut gdsync_bootstrap {
    log::start();
    error::pointer("gdsync_bootstrap_join", || {
        let address = non_null("the address", address)?;
        // SAFETY: the caller passes a string.
        let address = unsafe { CStr::from_ptr(address) }.to_string_lossy().into_owned();
        // host:port is where rank 0 listens; any other text is a name on this host.
        let rendezvous = match address.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => Rendezvous::Root(address),
            _ => Rendezvous::Local(address),
        };
        let job = Job::new(rank, size, rendezvous)?;
        let key = KEY_VARIABLES.read(|name| std::env::var_os(name)).map_err(BootstrapError::from)?;
        let job = match key {
            Some(key) => job.with_key(key),
            None => job,
        };
        keep_bootstrap(Bootstrap::join(&job, Duration::from_millis(timeout_ms.into()))?)
    })
}

struct Exchange(gdsync_all_gather_t, *mut c_void);

// SAFETY: the library calls the function only on the thread that passes the bootstrap, as the caller of `gdsync_bootstrap_with` allows.
unsafe impl Send for Exchange {}

impl Exchange {
    fn gather(&self, own: &[u8], all: &mut [u8]) -> Result<(), String> {
        // SAFETY: the caller of `gdsync_bootstrap_with` passes a function that reads one block, and writes one for each rank to `all`.
        match unsafe { (self.0)(self.1, own.as_ptr().cast(), all.as_mut_ptr().cast(), own.len()) } {
            0 => Ok(()),
            code => Err(format!("it returned {code}")),
        }
    }
}

/// `gdsync_bootstrap_with`.
///
/// # Safety
/// The function is null, or may be called with the argument as the header says until the bootstrap, or the call that makes a team of
/// it, has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_bootstrap_with(
    rank: u32,
    size: u32,
    all_gather: Option<gdsync_all_gather_t>,
    argument: *mut c_void,
    timeout_ms: c_uint,
) -> *mut gdsync_bootstrap {
    log::start();
    error::pointer("gdsync_bootstrap_with", || {
        let exchange = Exchange(all_gather.ok_or(CallError::Null { what: "the all-gather" })?, argument);
        let gather = move |own: &[u8], all: &mut [u8]| exchange.gather(own, all);
        let timeout = Duration::from_millis(timeout_ms.into());
        keep_bootstrap(Bootstrap::with_all_gather(rank, size, timeout, gather)?)
    })
}

/// `gdsync_bootstrap_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_bootstrap_rank(bootstrap: *mut gdsync_bootstrap) -> c_int {
    // SAFETY: the caller lets no other thread free the object.
    error::count("gdsync_bootstrap_rank", || Ok(unsafe { BOOTSTRAPS.find(bootstrap) }?.rank as c_int))
}

/// `gdsync_bootstrap_size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_bootstrap_size(bootstrap: *mut gdsync_bootstrap) -> c_int {
    // SAFETY: the caller lets no other thread free the object.
    error::count("gdsync_bootstrap_size", || Ok(unsafe { BOOTSTRAPS.find(bootstrap) }?.size as c_int))
}

/// `gdsync_bootstrap_all_gather`.
///
/// # Safety
/// `own` is null or has `length` bytes, `all` as many for each rank. No other thread frees the bootstrap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_bootstrap_all_gather(
    bootstrap: *mut gdsync_bootstrap,
    own: *const c_void,
    length: size_t,
    all: *mut c_void,
) -> c_int {
    error::status("gdsync_bootstrap_all_gather", || {
        let (own, all) = (non_null("own", own)?, non_null_mut("all", all)?.cast::<u8>());
        // SAFETY: the caller passes an array of that length.
        let own = unsafe { std::slice::from_raw_parts(own.cast::<u8>(), length) };
        // SAFETY: the caller lets no other thread free the object.
        let parts = unsafe { with(bootstrap, |inner| inner.all_gather(own)) }?;
        let other = parts.iter().enumerate().find(|(_, part)| part.len() != length);
        if let Some((rank, part)) = other {
            return Err(CallError::OtherLength { length, rank, theirs: part.len() });
        }
        for (rank, part) in parts.iter().enumerate() {
            // SAFETY: the caller has room for `length` bytes of each rank in `all`.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), all.add(rank * length), length) };
        }
        Ok(())
    })
}

/// `gdsync_bootstrap_connect`.
///
/// # Safety
/// `connections` is null or an array of that number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_bootstrap_connect(
    bootstrap: *mut gdsync_bootstrap,
    number: size_t,
    connections: *const gdsync_connection_t,
) -> c_int {
    error::status("gdsync_bootstrap_connect", || {
        // SAFETY: the caller passes an array of that length.
        let given = unsafe { error::list("connections", number, connections) }?;
        let connection = |one: &gdsync_connection_t| {
            // SAFETY: the caller lets no other thread destroy the object.
            let queue_pair = &unsafe { objects::queue_pair(one.qp) }?.queue_pair;
            Ok(Connection { queue_pair, rank: one.rank, tag: one.tag })
        };
        let connections = given.iter().map(connection).collect::<Result<Vec<_>, CallError>>()?;
        // SAFETY: the caller lets no other thread free the object.
        unsafe { with(bootstrap, |inner| inner.connect(&connections, ConnectOptions::default())) }
    })
}

/// Calls a function with a bootstrap that no team has taken.
///
/// # Safety
/// No other thread frees it.
unsafe fn with<T, E>(
    bootstrap: *mut gdsync_bootstrap,
    call: impl FnOnce(&mut Bootstrap) -> Result<T, E>,
) -> Result<T, CallError>
where
    CallError: From<E>,
{
    // SAFETY: the caller lets no other thread free the object.
    let object = unsafe { BOOTSTRAPS.find(bootstrap) }?;
    let mut inner = object.inner.lock();
    let inner = inner.as_mut().ok_or_else(|| taken(bootstrap))?;
    Ok(call(inner)?)
}

/// `gdsync_bootstrap_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_bootstrap_barrier(bootstrap: *mut gdsync_bootstrap) -> c_int {
    error::status("gdsync_bootstrap_barrier", || {
        // SAFETY: the caller lets no other thread free the object.
        unsafe { with(bootstrap, Bootstrap::barrier) }
    })
}

/// `gdsync_bootstrap_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_bootstrap_free(bootstrap: *mut gdsync_bootstrap) -> c_int {
    error::status("gdsync_bootstrap_free", || BOOTSTRAPS.take(bootstrap).map(drop))
}
