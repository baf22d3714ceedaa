//! `gdsync/team.h`: teams.

use crate::error::{self, CallError, cause_of};
use crate::log;
use crate::notify_types::gdsync_team_attr_t;
use crate::teams::{self, TEAMS};
use crate::types::{gdsync_bootstrap, gdsync_team};
use gdsync_notify::NotifyError;
use gdsync_sys::verbs::{ibv_context, ibv_pd};
use libc::{c_int, c_uint};
use std::time::Duration;

/// `gdsync_team_create`.
///
/// # Safety
/// Domain and context are null or valid, and outlive the team; `attr` is null or valid. No other thread uses the bootstrap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_team_create(
    bootstrap: *mut gdsync_bootstrap,
    pd: *mut ibv_pd,
    context: *mut ibv_context,
    attr: *const gdsync_team_attr_t,
) -> *mut gdsync_team {
    log::start();
    error::pointer("gdsync_team_create", || {
        // SAFETY: the caller passes a pointer that is null or valid.
        let attr = unsafe { attr.as_ref() }.copied().unwrap_or_default();
        // SAFETY: the caller keeps the domain and the context alive.
        unsafe { teams::create(bootstrap, pd, context, attr) }
    })
}

/// `gdsync_team_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_team_rank(team: *mut gdsync_team) -> c_int {
    // SAFETY: the caller lets no other thread free the object.
    error::count("gdsync_team_rank", || Ok(unsafe { TEAMS.find(team) }?.rank() as c_int))
}

/// `gdsync_team_size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_team_size(team: *mut gdsync_team) -> c_int {
    // SAFETY: the caller lets no other thread free the object.
    error::count("gdsync_team_size", || Ok(unsafe { TEAMS.find(team) }?.size() as c_int))
}

/// `gdsync_team_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_team_barrier(team: *mut gdsync_team) -> c_int {
    // SAFETY: the caller lets no other thread free the object.
    error::status("gdsync_team_barrier", || Ok(unsafe { TEAMS.find(team) }?.barrier()?))
}

/// `gdsync_team_flush`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_team_flush(
    team: *mut gdsync_team,
    queue: c_uint,
    timeout_ms: c_uint,
) -> c_int {
    error::status("gdsync_team_flush", || {
        // SAFETY: the caller lets no other thread free the object.
        let queue = unsafe { TEAMS.find(team) }?.queue(queue)?;
        let timeout = Duration::from_millis(timeout_ms.into());
        match queue.flush(timeout) {
            Err(NotifyError::TimedOut { .. }) => {
                let cause = cause_of(timeout, || queue.explain_flush());
                Err(CallError::NotFlushed { timeout_ms: timeout_ms.into(), cause })
            }
            done => Ok(done?),
        }
    })
}

/// `gdsync_team_is_dead`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_team_is_dead(team: *mut gdsync_team, rank: u32) -> c_int {
    error::count("gdsync_team_is_dead", || {
        // SAFETY: the caller lets no other thread free the object.
        let team = unsafe { TEAMS.find(team) }?;
        let size = team.size();
        if rank >= size {
            return Err(NotifyError::Rank { rank, size }.into());
        }
        let is_dropped = !team.members().contains(&rank);
        Ok((is_dropped || team.dead().iter().any(|(dead, _)| *dead == rank)).into())
    })
}

/// `gdsync_team_shrink`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_team_shrink(team: *mut gdsync_team) -> c_int {
    // SAFETY: the caller lets no other thread free the object.
    error::count("gdsync_team_shrink", || Ok(unsafe { TEAMS.find(team) }?.shrink()?.len() as c_int))
}

/// `gdsync_team_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_team_free(team: *mut gdsync_team) -> c_int {
    error::status("gdsync_team_free", || teams::free_team(team))
}
